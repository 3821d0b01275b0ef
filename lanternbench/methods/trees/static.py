"""Static trees, chains among them: the shape is data, children are sampled without replacement (top-k when greedy)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
import yaml
from torch import Tensor

from lanternbench.engine.address import additive
from lanternbench.engine.proposal import Expand, TreeBuilder
from lanternbench.engine.sampling import draw_distinct
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import MAX_DEPTH, Draft, Paths, StaticTree, chain, from_paths
from lanternbench.errors import UserError
from lanternbench.methods.component import Choices, Proposal, Search, Tree, option
from lanternbench.models.target import Target
from lanternbench.registry import register


@cache
def named() -> dict[str, Paths]:
    """The trees of ``static_trees.yaml``."""
    data = yaml.safe_load((Path(__file__).with_name("static_trees.yaml")).read_text())
    return {name: tuple(tuple(p) for p in paths) for name, paths in data.items()}


def static_tree(spec: str | list[list[int]]) -> StaticTree:
    """``chain-5``, a name of ``static_trees.yaml``, or a list of child paths -> the tree.  Raises UserError."""
    if not isinstance(spec, str):
        if not spec:
            raise UserError("a static tree needs at least one path, each a non-empty list of child ranks, as [0, 1]")
        return from_paths(tuple(tuple(p) for p in spec))
    if spec.startswith("chain-") and spec[6:].isdigit() and 0 < int(spec[6:]) <= MAX_DEPTH:
        return chain(int(spec[6:]))
    if spec not in named():
        known = f"chain-1 to chain-{MAX_DEPTH}, {', '.join(named())}"
        raise UserError(f"no static tree is called '{spec}': use {known} or a list of paths")
    return from_paths(named()[spec])


class StaticBuilder(TreeBuilder):
    """Drafts a static tree level by level.  ``samples`` False takes the likeliest tokens, which count as p = 1."""

    def __init__(self, static: StaticTree, samples: bool, device: torch.device):
        self.static, self.samples = static.to(device), samples
        self.nodes, self.max_depth, self.width = static.tree.nodes, static.tree.max_depth, static.tree.width
        self.uniforms = sum(len(level.parents) * max(level.widths) for level in static.levels)
        ancestors = static.tree.ancestors[0]
        inner = list(static.inner)
        # per level: which of the last level's children are expanded, the index of their parents, their mask
        self.plan: list[tuple[Tensor, Tensor, Tensor | None]] = []
        before: list[int] = [0]
        for last, level in zip(static.levels, static.levels[1:], strict=False):
            nodes = list(level.parents)
            parents = [next(a for a in before if bool(ancestors[n, a])) for n in nodes]
            seen = inner[1 : inner.index(nodes[-1]) + 1]
            mask = None if static.is_chain else additive(ancestors[nodes][:, seen])[None].to(device)
            index = torch.tensor([n - last.first for n in nodes], device=device)
            self.plan.append((index, torch.tensor([before.index(a) for a in parents], device=device), mask))
            before = nodes

    def grow(self, state: DecodeState, own: Any, logits: Tensor, expand: Expand, u: Tensor) -> Draft:
        static, warp = self.static, state.warp
        sampled = self.samples and not warp.greedy
        tokens, p_all, used, logits = [state.now.root[:, None]], [], 0, logits[:, None]
        for i, level in enumerate(static.levels):
            if i:
                index, parents, mask = self.plan[i - 1]
                expanded = tokens[-1] if static.is_chain else tokens[-1][:, index]
                logits = expand(expanded, parents, mask, i)
            m, w = len(level.parents), max(level.widths)
            if sampled:
                p_all.append(warp(logits))
                drawn = draw_distinct(p_all[-1], u[:, used : used + m * w].view(-1, m, w))
                used += m * w
            else:
                drawn = logits.topk(w).indices  # of logits: far below the first their softmax is 0
            tokens.append(drawn.flatten(1) if m * w == len(level.rows) else drawn[:, level.rows, level.ranks])
        return Draft(torch.cat(tokens, 1), torch.cat(p_all, 1) if sampled else None, static)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        return tuple(len(level.parents) for level in self.static.levels[1:])


@register("tree", "none")
class NoTree(Tree):
    """no draft"""

    def refuses(self, choices: Choices) -> str | None:
        if choices.proposal == "none":
            return None
        return "a proposal needs a tree, and autoregressive decoding (proposal none) has none"


class Shaped(Tree):
    """Base of chains and static trees."""

    kind: ClassVar[str]
    fallback: ClassVar[str]

    shape: str | list[list[int]] | None = option(
        None, "chain-N, a name of static_trees.yaml, or a list of child paths (default: the target's)", small=None
    )
    depth: int | None = option(None, "levels of a chain", small=None, ge=0, le=MAX_DEPTH)

    def tree(self, target: Target, proposal: Proposal) -> StaticTree:
        if self.depth == 0:
            return chain(0)
        made = chain(self.depth) if self.depth else None
        if self.shape is None:
            key = proposal.static_trees[self.kind]
            return made or static_tree(target.options.get(key, self.fallback))
        given = static_tree(self.shape)
        if made is not None and given.tree.max_depth != self.depth:
            raise UserError(
                f"the tree '{self.shape}' is {given.tree.max_depth} levels deep and --depth says {self.depth}: "
                "give one of the two"
            )
        return given

    def build(self, target: Target, proposal: Proposal) -> TreeBuilder:
        return StaticBuilder(self.tree(target, proposal), proposal.samples, target.device)


@register("tree", "static")
class Static(Shaped):
    """a fixed shape"""

    search: ClassVar[Search | None] = "shape"
    kind: ClassVar[str] = "static"
    fallback: ClassVar[str] = "mc_sim_7b_63"


@register("tree", "chain")
class Chain(Shaped):
    """a single branch"""

    search: ClassVar[Search | None] = "length"
    kind: ClassVar[str] = "chain"
    fallback: ClassVar[str] = "chain-5"

    def tree(self, target: Target, proposal: Proposal) -> StaticTree:
        made = super().tree(target, proposal)
        if made.tree.width > 1:
            raise UserError("--tree chain needs a chain: give --depth N or --shape chain-N")
        return made
