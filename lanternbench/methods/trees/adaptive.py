"""ADT-Tree (arXiv 2512.21857): a dynamic tree whose depth and width follow how well the
neighbourhood was drafted.

The host keeps a few integers per image, as it knows every accepted length anyway.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from lanternbench.component import Prepared, option
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.plain import AdaptiveBounds, TreeSpec
from lanternbench.engine.proposal import Expand, Proposal, Search, TreePolicy
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import MAX_DEPTH, Draft
from lanternbench.methods.trees.dynamic import Bounds, Grown, check_candidates, grow_by_confidence
from lanternbench.models.grids import Grid, place
from lanternbench.models.target import Target
from lanternbench.registry import register

Depth: TypeAlias = Annotated[int, Field(ge=0, le=MAX_DEPTH)]
Width: TypeAlias = Annotated[int, Field(ge=0, le=1024)]
TreeSize = tuple[int, int]  # d̂, k̂
WIDTH_BUCKETS = (4, 8, 16, 40)  # widths of the trees that CUDA graphs are recorded for


def inside(x: float, interval: tuple[int, int]) -> int:
    """The nearest integer strictly inside."""
    return min(max(round(x), interval[0] + 1), interval[1] - 1)


def adapt(start: tuple[float, float], alpha: float | None, within: AdaptiveBounds) -> TreeSize:
    """d̂, k̂ from (d̃, k̃): deeper and narrower after success (α ≥ β), else shallower and wider
    (bisectional adaptation).

    The first tree has no α, and is as initialised.  The width is held inside its interval only
    where d̃ ± l_d > 1.
    """
    sign = 0 if alpha is None else 1 if alpha >= within.beta else -1
    d, k = start[0] + sign * within.l_d, start[1] - sign * within.l_k
    return inside(d, within.d), inside(k, within.k) if d > 1 else max(1, round(k))


class History(NamedTuple):
    """One image: the sizes of the trees that produced each token, and α of the last."""

    trees: tuple[TreeSize, ...]  # of token 0, which no tree produced, the initial size
    alpha: float | None
    seed: int


def start(
    history: History, grids: Sequence[Grid], init: str, within: AdaptiveBounds
) -> tuple[float, float]:
    """(d̃, k̃) for the tree that will produce the next token, from those of earlier tokens of its
    grid.
    """
    trees, at = history.trees, len(history.trees)
    first, width = place(grids, at)
    same_grid = trees[first:]
    if init == "random":  # uniform over both ranges, whatever the trees so far
        pairs = zip((within.d, within.k), random_uniforms(history.seed, at), strict=True)
        d, k = (low + 1 + int(u * (high - low - 1)) for (low, high), u in pairs)
        return d, k
    if init == "vertical" and len(same_grid) >= width:
        return same_grid[-width]
    if init == "token-flock" and same_grid:
        return _flock(same_grid, width)
    return trees[-1]


def random_uniforms(seed: int, token: int) -> tuple[float, float]:
    """The uniforms for depth and width of the tree that will produce this token."""
    generator = random.Random(f"{seed} {token}")
    return generator.random(), generator.random()


def _flock(trees: tuple[TreeSize, ...], width: int, radius: int = 2) -> tuple[float, float]:
    """Weighted mean of the known trees in the disk of radius δ (eq. 6): Δy rows above weigh (δ −
    Δy + 1)/δ.
    """
    y, x = divmod(len(trees), width)
    near = []
    for dy in range(min(radius, y) + 1):
        weight, reach = (radius - dy + 1) / radius, math.isqrt(radius**2 - dy**2)  # Δx² + Δy² ≤ δ²
        row = (y - dy) * width
        last = min(x + reach, width - 1) if dy else x - 1
        near += [(weight, tree) for tree in trees[row + max(0, x - reach) : row + last + 1]]
    near = near or [(1.0, trees[-1])]
    total = sum(w for w, _ in near)
    return (sum(w * t[0] for w, t in near) / total, sum(w * t[1] for w, t in near) / total)


class Plan(NamedTuple):
    """What the next step drafts: a tree size per prompt, on the host and on the device."""

    history: PerPrompt  # of History
    tree_sizes: PerPrompt  # of TreeSize
    depths: Tensor  # [B]
    widths: Tensor  # [B]


@register("tree", "adaptive")
class Adaptive(Grown):
    """ADT-Tree: depth and width follow the neighbourhood"""

    search: ClassVar[Search | None] = "bounds"

    init: Literal["horizontal", "vertical", "random", "token-flock"] = option(
        "horizontal", "whose tree is adapted"
    )
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

    within = Prepared[AdaptiveBounds]()

    @model_validator(mode="after")
    def _ordered(self) -> Adaptive:
        for low, high in (self.depth_range or (0, 2), self.width_range or (0, 2)):
            if high - low < 2:
                raise ValueError(
                    "an open interval needs a whole number between its bounds, as 0 10 has"
                )
        return self

    def prepare(self, target: Target, proposal: Proposal) -> TreePolicy:
        options: Any = self  # resolved
        intervals: Any = map(tuple, (options.depth_range, options.width_range))
        return self.adapting(
            AdaptiveBounds(self.beta, self.l_d, options.l_k, *intervals), self.first_bounds()
        )

    def adapting(self, within: AdaptiveBounds, first: Bounds) -> Self:
        """The policy, ready to grow trees of at most ``first.total`` nodes, as in EAGLE-2, the
        first of that size.
        """
        max_depth, widest = (
            max(within.d[1] - 1, self.fixed_depth or 1),
            max(within.k[1] - 1, self.fixed_width or 1),
        )
        check_candidates(
            Bounds(max_depth, widest, first.total), "range, or fixed size, of depth or width"
        )
        # a tree of one level may be wider than its interval, but has no use for more children than
        # nodes
        width = max(widest, first.total - 1)
        return self.ready(
            within=within,
            bounds=first,
            nodes=first.total,
            max_depth=max_depth,
            width=width,
            adapts=True,
        )

    def plain(self) -> TreeSpec | None:
        if self.init == "random" or self.fixed_depth or self.fixed_width:
            return None
        first = (self.bounds.depth, self.bounds.top_k)
        return TreeSpec(
            "adaptive",
            bounds=self.within,
            init=self.init,
            total=self.nodes,
            first=first,
            bonus=self.bonus,
        )

    def begin(self, state: DecodeState) -> Plan:
        first = self.bounds[:2]
        return self._plan(state, [History((first,), None, seed) for seed in state.seeds])

    def _plan(self, state: DecodeState, histories: list[History]) -> Plan:
        sizes = []
        for history in histories:
            d, k = adapt(
                start(history, state.target.grids, self.init, self.within),
                history.alpha,
                self.within,
            )
            sizes.append((self.fixed_depth or d, self.fixed_width or k))
        drafted = torch.tensor([self.drafted(size) for size in sizes])
        on_device = drafted.to(state.device, non_blocking=True)  # [B, 2]; the host goes on at once
        return Plan(PerPrompt(histories), PerPrompt(sizes), *on_device.unbind(1))

    def drafted(self, size: TreeSize) -> TreeSize:
        """The size that is drafted: no wider than the tree has nodes, however wide the method asks
        for it.
        """
        return size[0], min(size[1], self.width)

    def bucket(self, plan: Plan) -> tuple[int, int]:
        """Depth and width that hold every prompt's tree, from a few."""
        deepest, widest = map(max, zip(*map(self.drafted, plan.tree_sizes), strict=True))
        wider = next((w for w in WIDTH_BUCKETS if widest <= w <= self.width), self.width)
        return deepest if deepest == 1 else min(deepest + deepest % 2, self.max_depth), wider

    def grow(
        self, state: DecodeState, plan: Plan, logits: Tensor, expand: Expand, u: Tensor
    ) -> Draft:
        # then shapes are those of the bucket, sizes on the device
        recorded = state.now.length.host is None
        sizes = [self.bucket(plan)] if recorded else map(self.drafted, plan.tree_sizes)
        depth, width = map(max, zip(*sizes, strict=True))
        alike = len(set(plan.tree_sizes)) == 1 and not recorded
        each = (None, None) if alike else (plan.depths, plan.widths)
        return grow_by_confidence(state, logits, expand, Bounds(depth, width, self.nodes, *each))

    def sizes(self, plan: Plan) -> PerPrompt:
        """Depth and nodes of each prompt's tree: all it may hold, or as many as it expands."""
        return PerPrompt((d, min(self.nodes, 1 + k + k * k * (d - 1))) for d, k in plan.tree_sizes)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        """The least width k̂ with so many candidates (see ``sizes``): that of a full tree is not
        known.
        """
        width = next((k for k in range(1, nodes) if 1 + k + k * k * (depth - 1) >= nodes), 1)
        return (max(width, self.within.k[0]),) * (depth - 1)

    def plan(self, state: DecodeState, plan: Plan) -> Plan:
        histories = []
        for history, size, tokens in zip(
            plan.history, plan.tree_sizes, state.now.last.advance.host or (), strict=True
        ):
            alpha = (tokens if self.bonus else tokens - 1) / size[0]  # τ/d̂ of this tree
            histories.append(history._replace(trees=history.trees + (size,) * tokens, alpha=alpha))
        return self._plan(state, histories)
