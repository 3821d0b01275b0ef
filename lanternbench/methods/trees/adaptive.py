"""ADT-Tree (arXiv 2512.21857): a dynamic tree whose size follows how well neighbours were drafted.

The host keeps a few integers per image, because it knows every accepted length anyway.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from lanternbench.component import option
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.plain import AdaptiveBounds
from lanternbench.engine.proposal import DraftSize, Expand, TreeGrower
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import MAX_DEPTH, Draft
from lanternbench.methods.trees.dynamic import (
    Bounds,
    Grown,
    PromptBounds,
    grow_by_confidence,
    resolved,
)
from lanternbench.models.grids import Grid, place
from lanternbench.models.target import Target
from lanternbench.registry import register

Depth: TypeAlias = Annotated[int, Field(ge=0, le=MAX_DEPTH)]
Width: TypeAlias = Annotated[int, Field(ge=0, le=1024)]
Neighbour = Literal["horizontal", "vertical", "random", "token-flock"]
TreeSize = tuple[int, int]  # d̂, k̂
Mean = tuple[float, float]  # d̃, k̃
WIDTH_BUCKETS = (4, 8, 16, 40)  # widths of the trees that CUDA graphs are recorded for


def inside(x: float, interval: tuple[int, int]) -> int:
    """Return the nearest integer strictly inside."""
    return min(max(round(x), interval[0] + 1), interval[1] - 1)


def adapt(start: Mean, alpha: float | None, within: AdaptiveBounds) -> TreeSize:
    """Return d̂, k̂ from (d̃, k̃): deeper and narrower after success (α ≥ β), else shallower and
    wider (bisectional adaptation).

    The first tree has no α, and is as initialised.  The width is held inside its interval only if
    d̃ ± l_d > 1.
    """
    sign = 0
    if alpha is not None:
        sign = 1 if alpha >= within.beta else -1
    depth = start[0] + sign * within.l_d
    width = start[1] - sign * within.l_k
    bounded_width = inside(width, within.k) if depth > 1 else max(1, round(width))
    return inside(depth, within.d), bounded_width


class History(NamedTuple):
    """One image: the sizes of the trees that produced each token, and α of the last."""

    trees: tuple[TreeSize, ...]  # of token 0, which no tree produced, the initial size
    alpha: float | None
    seed: int


def start(history: History, grids: Sequence[Grid], init: str, within: AdaptiveBounds) -> Mean:
    """Return (d̃, k̃) for the next token's tree, from the trees of earlier tokens of its grid."""
    trees = history.trees
    token = len(trees)
    first, width = place(grids, token)
    same_grid = trees[first:]
    if init == "random":
        return random_size(history.seed, token, within)
    if init == "vertical" and len(same_grid) >= width:
        return same_grid[-width]
    if init == "token-flock" and same_grid:
        return _flock(same_grid, width)
    return trees[-1]


def random_size(seed: int, token: int, within: AdaptiveBounds) -> TreeSize:
    """Return a size that is uniform over both ranges, whatever the trees so far."""
    u_depth, u_width = random_uniforms(seed, token)
    return uniform_inside(u_depth, within.d), uniform_inside(u_width, within.k)


def uniform_inside(u: float, interval: tuple[int, int]) -> int:
    low, high = interval
    return low + 1 + int(u * (high - low - 1))


def random_uniforms(seed: int, token: int) -> tuple[float, float]:
    """Return the uniforms for depth and width of the tree that will produce this token."""
    generator = random.Random(f"{seed} {token}")
    return generator.random(), generator.random()


def _flock(trees: tuple[TreeSize, ...], width: int, radius: int = 2) -> Mean:
    """Return the weighted mean of the known trees in the disk of radius δ (eq. 6).

    Trees Δy rows above weigh (δ − Δy + 1)/δ.
    """
    y, x = divmod(len(trees), width)
    total = 0.0
    depths = 0.0
    widths = 0.0
    for dy in range(min(radius, y) + 1):
        weight = (radius - dy + 1) / radius
        reach = math.isqrt(radius**2 - dy**2)  # Δx² + Δy² ≤ δ²
        row = (y - dy) * width
        last = min(x + reach, width - 1) if dy else x - 1
        for tree_depth, tree_width in trees[row + max(0, x - reach) : row + last + 1]:
            total += weight
            depths += weight * tree_depth
            widths += weight * tree_width
    if total == 0:
        return trees[-1]
    return depths / total, widths / total


class Plan(NamedTuple):
    """The size of the next draft tree of each prompt, on the host and on the device."""

    history: PerPrompt  # of History
    tree_sizes: PerPrompt  # of TreeSize
    on_device: PromptBounds


@register("tree", "adaptive")
class Adaptive(Grown):
    """ADT-Tree: depth and width follow the neighbourhood"""

    search = "bounds"

    init: Neighbour = option("horizontal", "the neighbour whose tree is adapted")
    beta: float = option(1.0, "acceptance level β that deepens the tree", symbol="β", gt=0)
    l_d: int = option(1, "step of the depth", ge=0)
    l_k: int | None = option(
        None, "step of the width (default: the target's)", small=None, ge=0, unset=3
    )
    depth_range: tuple[Depth, Depth] | None = option(
        None,
        "open interval of the depth (default: the target's, or 0 to 10)",
        small=(0, 4),
        unset=(0, 10),
    )
    width_range: tuple[Width, Width] | None = option(
        None, "open interval of the width (default: the target's)", small=None, unset=(3, 14)
    )
    bonus: bool = option(True, "count the bonus token in α = τ/d̂", also=False)
    fixed_depth: int | None = option(
        None, "a constant depth: only the width adapts", small=2, ge=1, le=MAX_DEPTH, unset=0
    )
    fixed_width: int | None = option(
        None, "a constant width: only the depth adapts", small=2, ge=1, le=1024, unset=0
    )

    @model_validator(mode="after")
    def _ordered(self) -> Adaptive:
        for low, high in (self.depth_range or (0, 2), self.width_range or (0, 2)):
            if high - low < 2:
                raise ValueError(
                    "an open interval needs a whole number between its bounds, as 0 10 has"
                )
        return self

    @property
    def within(self) -> AdaptiveBounds:
        """Return β, the steps and the intervals of resolved options."""
        min_depth, max_depth = self.depth_range or (0, 2)
        min_width, max_width = self.width_range or (0, 2)
        return AdaptiveBounds(
            beta=self.beta,
            l_d=self.l_d,
            l_k=resolved(self.l_k),
            d=(min_depth, max_depth),
            k=(min_width, max_width),
        )

    def build(self, target: Target, samples: bool) -> AdaptiveTree:
        return AdaptiveTree.of(self, self.within, self.bounds)


@dataclass(frozen=True, eq=False)
class AdaptiveTree(TreeGrower[Plan]):
    """Grows trees of at most ``size.nodes`` nodes, as EAGLE-2 does, the first of a given size."""

    size: DraftSize
    options: Adaptive
    within: AdaptiveBounds
    first: TreeSize

    @classmethod
    def of(cls, options: Adaptive, within: AdaptiveBounds, first: Bounds) -> AdaptiveTree:
        """Raise UserError for trees that are too large."""
        deepest = max(within.d[1] - 1, options.fixed_depth or 1)
        widest = max(within.k[1] - 1, options.fixed_width or 1)
        Bounds(deepest, widest, first.total).check("range, or fixed size, of depth or width")
        # a tree of one level may be wider than its interval, but not wider than its nodes
        width = max(widest, first.total - 1)
        size = DraftSize(first.total, deepest, width, adapts=True)
        return cls(size, options, within, (first.depth, first.top_k))

    def begin(self, state: DecodeState) -> Plan:
        return self._plan(state, [History((self.first,), None, seed) for seed in state.seeds])

    def _plan(self, state: DecodeState, histories: list[History]) -> Plan:
        sizes: list[TreeSize] = []
        for history in histories:
            initial = start(history, state.target.grids, self.options.init, self.within)
            depth, width = adapt(initial, history.alpha, self.within)
            sizes.append((self.options.fixed_depth or depth, self.options.fixed_width or width))
        drafted = torch.tensor([self.drafted(size) for size in sizes])
        on_device = drafted.to(state.device, non_blocking=True)  # [B, 2]; the host goes on at once
        return Plan(PerPrompt(histories), PerPrompt(sizes), PromptBounds(*on_device.unbind(1)))

    def drafted(self, size: TreeSize) -> TreeSize:
        """Return the size that is drafted, which is no wider than the tree has nodes."""
        depth, width = size
        return depth, min(width, self.size.width)

    def largest(self, plan: Plan) -> TreeSize:
        """Return the depth and width that hold every prompt's tree."""
        depths, widths = zip(*plan.tree_sizes, strict=True)
        return self.drafted((max(depths), max(widths)))

    def bucket(self, plan: Plan) -> TreeSize:
        """Return a depth and width that hold every prompt's tree, rounded up to one of a few."""
        depth, width = self.largest(plan)
        if depth > 1:
            depth = min(depth + depth % 2, self.size.max_depth)
        for wider in WIDTH_BUCKETS:
            if width <= wider <= self.size.width:
                return depth, wider
        return depth, self.size.width

    def grow(self, state: DecodeState, own: Plan, expand: Expand, u: Tensor) -> Draft:
        total = self.size.nodes
        if state.now.length.host is None:  # recorded: shapes of the bucket, sizes on the device
            bounds = Bounds(*self.bucket(own), total)
            return grow_by_confidence(state, expand, bounds, own.on_device)
        bounds = Bounds(*self.largest(own), total)
        alike = len(set(own.tree_sizes)) == 1
        each = None if alike else own.on_device
        return grow_by_confidence(state, expand, bounds, each)

    def sizes(self, plan: Plan) -> PerPrompt:
        """Return depth and nodes of each prompt's tree: all it may hold, or what it expands."""
        sizes: list[tuple[int, int]] = []
        for depth, width in plan.tree_sizes:
            expanded = 1 + width + width * width * (depth - 1)
            sizes.append((depth, min(self.size.nodes, expanded)))
        return PerPrompt(sizes)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        """Return the least width k̂ with so many candidates (see ``sizes``).

        The width of a full tree is not known.
        """
        width = 1
        while width < nodes and 1 + width + width * width * (depth - 1) < nodes:
            width += 1
        return (max(width, self.within.k[0]),) * (depth - 1)

    def plan(self, state: DecodeState, plan: Plan) -> Plan:
        histories: list[History] = []
        new_tokens = state.now.last.advance.host or ()
        steps = zip(plan.history, plan.tree_sizes, new_tokens, strict=True)
        for history, size, tokens in steps:
            accepted = tokens if self.options.bonus else tokens - 1
            alpha = accepted / size[0]  # τ/d̂ of this tree
            trees = history.trees + (size,) * tokens
            histories.append(History(trees, alpha, history.seed))
        return self._plan(state, histories)
