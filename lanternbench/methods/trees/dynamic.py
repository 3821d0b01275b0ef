"""Dynamic trees (EAGLE-2, Li et al. 2024, section 4): grow by path confidence, keep the best nodes
of all levels.

B prompts, k children per expanded node, C candidates, N nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import field_validator
from torch import Tensor

from lanternbench.component import option
from lanternbench.engine.proposal import (
    AnyTreeGrower,
    DraftSize,
    Expand,
    TreeGrower,
    TreePolicy,
)
from lanternbench.engine.sampling import likeliest
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import MAX_DEPTH, Draft, chain, from_parents
from lanternbench.errors import UserError
from lanternbench.methods.trees.fixed import FixedTree
from lanternbench.models.target import Target
from lanternbench.models.transformer import additive
from lanternbench.registry import register
from lanternbench.utils.files import packaged_yaml

MAX_CANDIDATES = 5_000_000  # over all levels: 1,000 children per node on 5 levels have fewer


class PromptBounds(NamedTuple):
    """Each prompt's own depth and width [B], at most those of the whole batch."""

    depths: Tensor
    widths: Tensor

    def unused(self, ranks: Tensor, level: int) -> Tensor:
        """Return which children of each expanded node a prompt does not use, the first ``level``
        being 1: bool [B, k]; ranks [k] 0 … k − 1.
        """
        return (ranks >= self.widths[:, None]) | (self.depths < level)[:, None]


class Bounds(NamedTuple):
    """The size of a grown tree."""

    depth: int  # levels below the root
    top_k: int  # children per expanded node
    total: int  # nodes with the root

    def check(self, options: str) -> None:
        """Raises UserError if a tree would be chosen from so many nodes that a step takes minutes
        and gigabytes.
        """
        width = min(self.top_k, self.total - 1)
        count = width + width * width * (self.depth - 1)
        if count > MAX_CANDIDATES:
            raise UserError(
                f"{self.depth} levels with {width:,} children per expanded node are {count:,} "
                f"candidates, of which a tree may have {MAX_CANDIDATES:,}: give a smaller {options}"
            )


class Candidates(NamedTuple):
    """All nodes that a tree may keep, level by level: [B, C] each."""

    tokens: Tensor
    scores: Tensor  # Σ log p from the root
    parents: Tensor  # their indices plus 1, 0 the root


def grow_by_confidence(
    state: DecodeState, expand: Expand, bounds: Bounds, each: PromptBounds | None = None
) -> Draft:
    """Expand the top-k nodes of each level by Σ log p, rerank, keep the best ``total`` − 1 nodes
    under the root.
    """
    bounds = bounds._replace(top_k=min(bounds.top_k, state.target.vocab))
    pool = candidates(state, expand, bounds, each)
    return keep_best(pool, state.now.root, bounds)


class Frontier(NamedTuple):
    """The k nodes of one level that are expanded next: [B, k] each."""

    tokens: Tensor
    scores: Tensor
    places: Tensor  # in the pool of candidates, of which 0 is the root
    parents: Tensor | None  # in the frontier before; None for children of the root
    visible: Tensor  # [B, k, nodes expanded so far] additive
    itself: Tensor  # [B, k, k] additive: each node sees itself

    @classmethod
    def first(cls, children: Candidates, ranks: Tensor) -> Frontier:
        """The children of the root; ranks [k] 0 … k − 1."""
        b, k = children.tokens.shape
        places = (ranks + 1).expand(b, k)
        itself = _itself(k, ranks.device).expand(b, k, k)
        return cls(children.tokens, children.scores, places, None, itself, itself)

    def next(self, children: Candidates, scores: Tensor, chosen: Tensor, start: int) -> Frontier:
        """The ``chosen`` [B, k] of the children, which stand in the pool from ``start`` on."""
        parents = chosen // self.tokens.shape[1]
        nodes = self.visible.shape[-1]
        seen = self.visible.gather(1, parents[..., None].expand(-1, -1, nodes))
        return Frontier(
            tokens=children.tokens.gather(1, chosen),
            scores=scores,
            places=start + chosen,
            parents=parents,
            visible=torch.cat([seen, self.itself], -1),
            itself=self.itself,
        )


def candidates(
    state: DecodeState, expand: Expand, bounds: Bounds, each: PromptBounds | None = None
) -> Candidates:
    """Expand the top-k nodes of each level by Σ log p."""
    k = bounds.top_k
    logits = expand(state.now.root[:, None], None, None, 0)[:, 0]
    value, tokens = likeliest(state.drawn_after(state.warp(logits), 0), k)
    scores = value.log()
    ranks = torch.arange(k, device=tokens.device)
    unused: Tensor | None = None
    if each is not None:
        scores = scores.masked_fill(each.unused(ranks, 1), -torch.inf)
    levels = [Candidates(tokens, scores, torch.zeros_like(tokens))]
    frontier = Frontier.first(levels[0], ranks)
    start = 1 + k
    for level in range(1, bounds.depth):
        logits = expand(frontier.tokens, frontier.parents, frontier.visible, level)
        if each is not None:
            unused = each.unused(ranks, level + 1)
        p = state.drawn_after(state.warp(logits), level)
        children = children_of(frontier, p, k, unused)
        levels.append(children)
        scores, chosen = likeliest(children.scores, k)
        if unused is not None:
            scores = scores.masked_fill(unused, -torch.inf)
        frontier = frontier.next(children, scores, chosen, start)
        start += k * k
    return Candidates(*[torch.cat(parts, 1) for parts in zip(*levels, strict=True)])


def children_of(frontier: Frontier, p: Tensor, k: int, unused: Tensor | None) -> Candidates:
    """Return the k likeliest children of each node, [B, k · k] each; p [B, k, V]; ``unused``: see
    ``PromptBounds``.
    """
    value, tokens = likeliest(p, k)
    log_p = value.log()
    # a sure child comes after its parent
    below = torch.nextafter(frontier.scores, torch.full_like(frontier.scores, -torch.inf))
    scores = torch.minimum(frontier.scores[..., None] + log_p, below[..., None])
    if unused is not None:
        scores = scores.masked_fill(unused[:, None], -torch.inf)
    parents = frontier.places[..., None].expand(-1, -1, k)
    return Candidates(tokens.flatten(1), scores.flatten(1), parents.flatten(1))


@cache
def _itself(k: int, device: torch.device) -> Tensor:
    """[k, k] additive: each node sees itself."""
    return additive(torch.eye(k, dtype=torch.bool, device=device))


@cache
def _levels(width: int, depth: int, device: torch.device) -> Tensor:
    """The depths [C] of the candidates: ``width`` children of the root, then their ``width``² on
    every level.
    """
    sizes = torch.tensor([width] + [width * width] * (depth - 1))
    return torch.arange(1, depth + 1).repeat_interleave(sizes).to(device)


def keep_best(pool: Candidates, root: Tensor, bounds: Bounds) -> Draft:
    """Return the best ``total`` − 1 of the candidates as a tree."""
    count = pool.tokens.shape[1]
    keep = min(bounds.total - 1, count)
    scores, best = likeliest(pool.scores, keep)
    # parents before children, unused last: [B, keep]
    best = torch.where(scores > -torch.inf, best, count).sort(-1).values
    is_used = best < count
    best = best.clamp(max=count - 1)
    depth, parent = kept_places(pool.parents, best, is_used, bounds)
    # no path has more nodes than there are
    tree = from_parents(parent, depth, min(bounds.depth, keep), bounds.top_k)
    tokens = pool.tokens.gather(1, best)
    return Draft(torch.cat([root[:, None], tokens], 1), grown=tree)


def kept_places(
    parents: Tensor,
    best: Tensor,
    is_used: Tensor,
    bounds: Bounds,
) -> tuple[Tensor, Tensor]:
    """Return depth and parent of the root and of the candidates ``best`` [B, keep]: [B, 1 + keep]
    each, the depth of unused ones −1.  parents [B, C].
    """
    b, keep = best.shape
    device = best.device
    nodes = torch.arange(1, keep + 1, device=device)
    # the kept node that each candidate is; 0: the root, or left out
    node_of = torch.zeros(b, parents.shape[1] + 1, dtype=torch.long, device=device)
    node_of.scatter_(1, best + 1, nodes.expand(b, -1))
    depth = _levels(bounds.top_k, bounds.depth, device)[best]
    parent = node_of.gather(1, parents.gather(1, best))
    is_used = is_used & ((parent > 0) | (depth == 1))
    parent = F.pad(parent, (1, 0))
    for _ in range(bounds.depth - 2):  # a tie may leave a child whose grandparent was cut
        with_root = F.pad(is_used, (1, 0), value=True)
        is_used = is_used & with_root.gather(1, parent)[:, 1:]
    depth = torch.where(is_used, depth, -1)
    return F.pad(depth, (1, 0)), parent


@cache
def named() -> dict[str, dict[str, Any]]:
    """The sizes of ``grown_trees.yaml``."""
    sizes: dict[str, dict[str, Any]] = packaged_yaml(__file__, "grown_trees.yaml")
    return sizes


class Grown(TreePolicy):
    """Base of dynamic and adaptive trees.  Unset options come from ``shape``, else from the
    target's defaults.
    """

    shape: str | None = option(
        None, "a name of grown_trees.yaml (default: the target's sizes)", small=None, unset=""
    )
    depth: int | None = option(
        None,
        "levels below the root (default: the target's)",
        small=None,
        ge=0,
        le=MAX_DEPTH,
        unset=5,
    )
    draft_top_k: int | None = option(
        None,
        "children per expanded node (default: the target's)",
        small=3,
        also=3,
        ge=1,
        le=1024,
        unset=10,
    )
    total_nodes: int | None = option(
        None, "nodes with the root (default: the target's)", small=None, ge=2, le=1024, unset=59
    )

    @field_validator("shape")
    @classmethod
    def _known(cls, shape: str | None) -> str | None:
        if shape is not None and shape not in named():
            raise ValueError(f"of such trees there are {', '.join(named())}")
        return shape

    def resolve(self, defaults: Mapping[str, Any]) -> Self:
        if self.shape:
            defaults = {**defaults, **named()[self.shape]}
        return super().resolve(defaults)

    @property
    def bounds(self) -> Bounds:
        """The size of the first tree; of resolved options."""
        return Bounds(resolved(self.depth), resolved(self.draft_top_k), resolved(self.total_nodes))


def resolved(value: int | None) -> int:
    """Return a resolved option's value."""
    if value is None:
        raise TypeError("an option of a tree is set before the tree is built")
    return value


@register("tree", "dynamic")
class Dynamic(Grown):
    """EAGLE-2: grown by path confidence, reranked"""

    search = "growth"

    def build(self, target: Target, samples: bool) -> AnyTreeGrower:
        if self.depth == 0:
            return FixedTree.of(chain(0), False, target.device)
        return DynamicTree.of(self.bounds)


@dataclass(frozen=True, eq=False)
class DynamicTree(TreeGrower[None]):
    """Grows trees of one size."""

    size: DraftSize
    bounds: Bounds

    @classmethod
    def of(cls, bounds: Bounds) -> Self:
        """Raises UserError for a tree that is too large."""
        bounds.check("--depth or --draft-top-k")
        return cls(DraftSize(bounds.total, bounds.depth, bounds.top_k), bounds)

    def grow(self, state: DecodeState, own: None, expand: Expand, u: Tensor) -> Draft:
        return grow_by_confidence(state, expand, self.bounds)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        return (self.bounds.top_k,) * (depth - 1)
