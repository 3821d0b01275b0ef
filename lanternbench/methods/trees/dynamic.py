"""Dynamic trees (EAGLE-2, Li et al. 2024, section 4): grow by path confidence, keep the best nodes
of all levels.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
import yaml
from pydantic import field_validator
from torch import Tensor

from lanternbench.component import Prepared, option
from lanternbench.engine.plain import TreeSpec
from lanternbench.engine.proposal import Expand, Proposal, Search, TreePolicy
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import MAX_DEPTH, Draft, additive, chain, from_parents
from lanternbench.errors import UserError
from lanternbench.methods.trees.fixed import FixedTree
from lanternbench.models.target import Target
from lanternbench.registry import register

MAX_CANDIDATES = 5_000_000  # over all levels: 1,000 children per node on 5 levels have fewer


class Bounds(NamedTuple):
    """The size of a grown tree."""

    depth: int  # levels below the root
    top_k: int  # children per expanded node
    total: int  # nodes with the root
    # [B] each prompt's own bounds below the first two (adaptive trees)
    depths: Tensor | None = None
    widths: Tensor | None = None


def check_candidates(bounds: Bounds, options: str) -> None:
    """Raises UserError where a tree would be chosen from so many nodes that a step takes minutes
    and gigabytes.
    """
    depth, width = bounds.depth, min(bounds.top_k, bounds.total - 1)
    count = width + width * width * (depth - 1)
    if count > MAX_CANDIDATES:
        raise UserError(
            f"{depth} levels with {width:,} children per expanded node are {count:,} candidates, of which a tree may "
            f"have {MAX_CANDIDATES:,}: give a smaller {options}"
        )


class Candidates(NamedTuple):
    """All nodes that a tree may keep, level by level: [B, C] each."""

    tokens: Tensor
    scores: Tensor  # Σ log p from the root
    parents: Tensor  # their indices plus 1, 0 the root


def grow_by_confidence(
    state: DecodeState, logits: Tensor, expand: Expand, bounds: Bounds
) -> Draft:
    """Expand the top-k nodes of each level by Σ log p, rerank, keep the best ``total`` − 1 nodes
    under the root.
    """
    bounds = bounds._replace(top_k=min(bounds.top_k, logits.shape[-1]))
    return keep_best(candidates(state, logits, expand, bounds), state.now.root, bounds)


def candidates(state: DecodeState, logits: Tensor, expand: Expand, bounds: Bounds) -> Candidates:
    """Expand the top-k nodes of each level by Σ log p."""
    depth, widths, depths = bounds.depth, bounds.widths, bounds.depths
    root, warp = state.now.root, state.warp
    b, k = len(root), bounds.top_k
    rank = torch.arange(k, device=root.device)
    # [B, k] ranks that a prompt does not use
    narrow = None if widths is None else rank >= widths[:, None]
    value, token = likeliest(warp(logits), k)  # [B, k]
    if narrow is not None:
        value = value.masked_fill(narrow, -torch.inf)
    if depths is not None:
        value = value.masked_fill((depths < 1)[:, None], -torch.inf)
    tokens, scores, parents, pool = [token], [value], [torch.zeros_like(token)], 1 + k
    index, parent = (rank + 1).expand(b, k), None  # in the pool of candidates, where 0 is the root
    # additive; ``visible`` over all nodes so far
    itself = visible = _itself(k, root.device).expand(b, k, k)
    for level in range(1, depth):
        # [B, k, k]
        value_next, token_next = likeliest(warp(expand(token, parent, visible, level)), k)
        # a sure child comes after its parent
        below = torch.nextafter(value, torch.full_like(value, -torch.inf))
        score = torch.minimum(value[..., None] + value_next, below[..., None])
        if narrow is not None:
            score = score.masked_fill(narrow[:, None], -torch.inf)
        if depths is not None:
            score = score.masked_fill((depths <= level)[:, None, None], -torch.inf)
        tokens.append(token_next.flatten(1))
        scores.append(score.flatten(1))
        parents.append(index[..., None].expand(-1, -1, k).flatten(1))
        value, chosen = best_of(scores[-1], k)
        if narrow is not None:
            value = value.masked_fill(narrow, -torch.inf)
        token, index, parent = tokens[-1].gather(1, chosen), pool + chosen, chosen // k
        pool += k * k
        seen = visible.gather(1, parent[..., None].expand(-1, -1, visible.shape[-1]))
        visible = torch.cat([seen, itself], -1)
    return Candidates(torch.cat(tokens, 1), torch.cat(scores, 1), torch.cat(parents, 1))


def likeliest(p: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """log p and ids of the k likeliest tokens of p [..., V]: [..., k] each."""
    value, token = p.topk(k)
    return value.log(), token


def best_of(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest of scores [..., n] and where they are; of equal ones the first, so that
    parents come first.
    """
    value, index = scores.sort(dim=-1, descending=True, stable=True)
    return value[..., :k], index[..., :k]


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
    """The best ``total`` − 1 of the candidates as a tree."""
    tokens, scores, parents = pool
    b, depth, width = len(root), bounds.depth, bounds.top_k
    keep = min(bounds.total - 1, tokens.shape[1])
    value, best = best_of(scores, keep)
    none = tokens.shape[1]
    # [B, keep] parents before children, unused last
    best = torch.where(value > -torch.inf, best, none).sort(-1).values
    used = best < none
    best = best.clamp(max=none - 1)
    # 0: the root, or left out
    node_of = torch.zeros(b, tokens.shape[1] + 1, dtype=torch.long, device=root.device)
    node_of.scatter_(1, best + 1, torch.arange(1, keep + 1, device=root.device).expand(b, -1))
    level = _levels(width, depth, root.device)[best]
    parent = node_of.gather(1, parents.gather(1, best))
    used = used & ((parent > 0) | (level == 1))
    parent = F.pad(parent, (1, 0))
    for _ in range(depth - 2):  # a tie may leave a child whose grandparent was cut
        used = used & F.pad(used, (1, 0), value=True).gather(1, parent)[:, 1:]
    level = F.pad(torch.where(used, level, -1), (1, 0))
    # no path has more nodes than there are
    tree = from_parents(parent, level, min(depth, keep), width)
    return Draft(torch.cat([root[:, None], tokens.gather(1, best)], 1), grown=tree)


@cache
def named() -> dict[str, dict[str, Any]]:
    """The sizes of ``grown_trees.yaml``."""
    return yaml.safe_load(Path(__file__).with_name("grown_trees.yaml").read_text(encoding="utf-8"))


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

    bounds = Prepared[Bounds]()

    @field_validator("shape")
    @classmethod
    def _known(cls, shape: str | None) -> str | None:
        if shape is not None and shape not in named():
            raise ValueError(f"of such trees there are {', '.join(named())}")
        return shape

    def resolve(self, defaults: Mapping[str, Any]) -> Self:
        return super().resolve({**defaults, **(named()[self.shape] if self.shape else {})})

    def first_bounds(self) -> Bounds:
        options: Any = self  # resolved
        return Bounds(options.depth, options.draft_top_k, options.total_nodes)


@register("tree", "dynamic")
class Dynamic(Grown):
    """EAGLE-2: grown by path confidence, reranked"""

    search: ClassVar[Search | None] = "growth"

    def prepare(self, target: Target, proposal: Proposal) -> TreePolicy:
        if self.depth == 0:
            return FixedTree().drafting(chain(0), False, target.device)
        return self.growing(self.first_bounds())

    def growing(self, bounds: Bounds) -> Self:
        """The policy, ready to grow trees of this size."""
        check_candidates(bounds, "--depth or --draft-top-k")
        return self.ready(
            bounds=bounds, max_depth=bounds.depth, width=bounds.top_k, nodes=bounds.total
        )

    def grow(
        self, state: DecodeState, tree_state: Any, logits: Tensor, expand: Expand, u: Tensor
    ) -> Draft:
        return grow_by_confidence(state, logits, expand, self.bounds)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        return (self.width,) * (depth - 1)

    def plain(self) -> TreeSpec:
        return TreeSpec(
            "dynamic", depth=self.bounds.depth, top_k=self.bounds.top_k, total=self.bounds.total
        )
