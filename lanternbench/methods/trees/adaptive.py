"""ADT-Tree (arXiv 2512.21857): a dynamic tree whose depth and width follow how well the neighbourhood was drafted.

The bookkeeping is a few integers per image and lives on the host, which knows every accepted length anyway.
"""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.proposal import Expand, TreeBuilder
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import MAX_DEPTH, Draft
from lanternbench.methods.component import Proposal, Search, option
from lanternbench.methods.trees.dynamic import Bounds, Grown, grow_by_confidence
from lanternbench.models.target import Target
from lanternbench.registry import register

Depth: TypeAlias = Annotated[int, Field(ge=0, le=MAX_DEPTH)]
Width: TypeAlias = Annotated[int, Field(ge=1, le=1024)]
TreeSize = tuple[int, int]  # d̂, k̂
WIDTH_BUCKETS = (4, 8, 16, 40)  # widths of the trees that CUDA graphs are recorded for


class Range(NamedTuple):
    """β, l_d, l_k and the ranges of depth and width (paper: Anole β=1, l_d=1, l_k=3; LlamaGen l_k=10)."""

    beta: float = 1.0
    l_d: int = 1
    l_k: int = 3
    d: tuple[int, int] = (0, 10)
    k: tuple[int, int] = (3, 14)

    def clamp(self, d: float, k: float) -> TreeSize:
        return (min(max(round(d), self.d[0]), self.d[1]), min(max(round(k), self.k[0]), self.k[1]))


def adapt(start: tuple[float, float], alpha: float, within: Range) -> TreeSize:
    """d̂, k̂ from (d̃, k̃): deeper and narrower after success (α ≥ β), shallower and wider after failure."""
    sign = 1 if alpha >= within.beta else -1
    return within.clamp(start[0] + sign * within.l_d, start[1] - sign * within.l_k)


class History(NamedTuple):
    """One image: the sizes of the trees that produced each token, and α of the last."""

    trees: tuple[TreeSize, ...]  # of token 0, which no tree produced, the initial size
    alpha: float
    seed: int


def start(history: History, width: int, init: str) -> tuple[float, float]:
    """(d̃, k̃) for the tree that will produce the next token; ``width``: tokens a row."""
    trees = history.trees
    at = len(trees)
    if init == "vertical" and at >= width:
        return trees[at - width]
    if init == "random":
        return trees[random.Random(f"{history.seed} {at}").randrange(at)]
    if init == "token-flock":
        return _flock(trees, width)
    return trees[-1]


def _flock(trees: tuple[TreeSize, ...], width: int, radius: int = 2) -> tuple[float, float]:
    """Mean of the known trees within ``radius`` tokens on the grid, weighted by 1 / distance."""
    y, x = divmod(len(trees), width)
    near = []
    for dy in range(-radius, 1):
        for dx in range(-radius, radius + 1):
            i = (y + dy) * width + x + dx
            if 0 <= i < len(trees) and 0 <= x + dx < width:
                near.append((1 / (dx * dx + dy * dy) ** 0.5, trees[i]))
    near = near or [(1.0, trees[-1])]
    total = sum(w for w, _ in near)
    return (sum(w * t[0] for w, t in near) / total, sum(w * t[1] for w, t in near) / total)


class Plan(NamedTuple):
    """What the next step drafts: a tree size per prompt, on the host and on the device."""

    history: PerPrompt  # of History
    now: PerPrompt  # of TreeSize
    depths: Tensor  # [B]
    widths: Tensor  # [B]


class AdaptiveBuilder(TreeBuilder):
    """Depth d̂ ≤ d_max and width k̂ ≤ k_max per tree; at most ``total`` nodes with the root, as in EAGLE-2.

    ``fixed_depth``, ``fixed_width``: the paper's ablations, one of the two held constant.
    """

    samples = False

    def __init__(
        self, within: Range, init: str, first: Bounds, fixed_depth: int | None = None, fixed_width: int | None = None
    ):
        self.within, self.initial, self.first = within, init, first
        self.fixed_depth, self.fixed_width = fixed_depth, fixed_width
        self.nodes = first.total
        self.max_depth = max(within.d[1], fixed_depth or 1)
        self.width = max(within.k[1], fixed_width or 1)

    def init(self, state: DecodeState) -> Plan:
        first = self.within.clamp(self.first.depth, self.first.top_k)
        histories = [History((first,), self.within.beta, seed) for seed in state.seeds]  # α as after a success
        return self._plan(state, histories)

    def _plan(self, state: DecodeState, histories: list[History]) -> Plan:
        sizes = []
        for history in histories:
            d, k = adapt(start(history, state.target.grid[1], self.initial), history.alpha, self.within)
            sizes.append((self.fixed_depth or d, self.fixed_width or k))
        depths, widths = (torch.tensor(x, device=state.device) for x in zip(*sizes, strict=True))
        return Plan(PerPrompt(histories), PerPrompt(sizes), depths, widths)

    def bucket(self, own: Plan) -> tuple[int, int]:
        """Depth and width that hold every prompt's tree, from a few."""
        deepest, widest = (max(x) for x in zip(*own.now, strict=True))
        wider = next((w for w in WIDTH_BUCKETS if widest <= w <= self.width), self.width)
        return min(max(1, deepest + deepest % 2), self.max_depth), wider

    def grow(self, state: DecodeState, own: Plan, logits: Tensor, expand: Expand, u: Tensor) -> Draft:
        if state.now.length.host is None:  # recorded: shapes of the bucket, sizes on the device
            depth, width = self.bucket(own)
            bounds = Bounds(depth, width, self.nodes, own.depths, own.widths)
        else:
            deepest, widest = (max(x) for x in zip(*own.now, strict=True))
            equal = len(set(own.now)) == 1 and deepest > 0
            each = (None, None) if equal else (own.depths, own.widths)
            bounds = Bounds(max(deepest, 1), widest, self.nodes, *each)
        return grow_by_confidence(state, logits, expand, bounds)

    def sizes(self, own: Plan) -> PerPrompt:
        """Depth and nodes of each prompt's tree: all it may hold, or as many as it expands."""
        return PerPrompt((d, min(self.nodes, 1 + k + k * k * (d - 1)) if d else 1) for d, k in own.now)

    def update(self, state: DecodeState, own: Plan, result: StepResult) -> Plan:
        histories = []
        for history, size, tokens in zip(own.history, own.now, state.now.last.advance.host or (), strict=True):
            alpha = tokens / size[0] if size[0] else self.within.beta  # τ of this tree, the bonus token included
            histories.append(history._replace(trees=history.trees + (size,) * tokens, alpha=alpha))
        return self._plan(state, histories)


@register("tree", "adaptive")
class Adaptive(Grown):
    """ADT-Tree: depth and width follow the neighbourhood"""

    search: ClassVar[Search | None] = "bounds"

    init: Literal["horizontal", "vertical", "random", "token-flock"] = option("horizontal", "whose tree is adapted")
    beta: float = option(1.0, "acceptance level β that deepens the tree", symbol="β", gt=0)
    l_d: int = option(1, "step of the depth", ge=0)
    l_k: int | None = option(None, "step of the width (default: the target's)", small=None, ge=0)
    depth_range: tuple[Depth, Depth] | None = option(
        None, "least and greatest depth (default: the target's, or 0 to 10)", small=None
    )
    width_range: tuple[Width, Width] | None = option(
        None, "least and greatest width (default: the target's)", small=None
    )
    fixed_depth: int | None = option(None, "ablation: adapt the width alone", small=2, ge=1, le=MAX_DEPTH)
    fixed_width: int | None = option(None, "ablation: adapt the depth alone", small=2, ge=1, le=1024)

    @model_validator(mode="after")
    def _ordered(self) -> Adaptive:
        for low, high in (self.depth_range or (0, 0), self.width_range or (1, 1)):
            if low > high:
                raise ValueError("a range needs its lower bound first")
        return self

    def build(self, target: Target, proposal: Proposal) -> TreeBuilder:
        own = self.sizes(target)
        depths = self.depth_range or own.get("depth_range", (0, 10))
        widths = self.width_range or own.get("width_range", (3, 14))
        l_k = own.get("l_k", 3) if self.l_k is None else self.l_k
        within = Range(self.beta, self.l_d, l_k, tuple(depths), tuple(widths))
        return AdaptiveBuilder(within, self.init, self.bounds(target), self.fixed_depth, self.fixed_width)
