"""ADT-Tree (arXiv 2512.21857): a dynamic tree whose depth and width follow how well the neighbourhood was drafted.

The bookkeeping is a few integers per image and lives on the host, which knows every accepted length anyway.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.sampling import Warp
from lanternbench.engine.state import Session
from lanternbench.engine.verify import Draft, Verdict
from lanternbench.methods.proposals.drafters import Drafter
from lanternbench.methods.trees.growth import grow_by_confidence

INITS = ("horizontal", "vertical", "random", "token-flock")


class Bounds(NamedTuple):
    """β, l_d, l_k and the ranges of depth and width (paper: Anole β=1, l_d=1, l_k=3; LlamaGen l_k=10)."""

    beta: float = 1.0
    l_d: int = 1
    l_k: int = 3
    d: tuple[int, int] = (0, 10)
    k: tuple[int, int] = (3, 14)

    def clamp(self, d: float, k: float) -> tuple[int, int]:
        return (min(max(round(d), self.d[0]), self.d[1]), min(max(round(k), self.k[0]), self.k[1]))


def adapt(start: tuple[float, float], alpha: float, bounds: Bounds) -> tuple[int, int]:
    """d̂, k̂ from (d̃, k̃): deeper and narrower after success (α ≥ β), shallower and wider after failure."""
    sign = 1 if alpha >= bounds.beta else -1
    return bounds.clamp(start[0] + sign * bounds.l_d, start[1] - sign * bounds.l_k)


class Neighbourhood:
    """The trees (d̂, k̂) that produced each token of one image."""

    def __init__(self, width: int, init: str, first: tuple[int, int], seed: int):
        self.width, self.init = width, init
        self.trees: list[tuple[int, int]] = [first]  # of token 0, which no tree produced
        self.random = random.Random(seed)

    def start(self) -> tuple[float, float]:
        """(d̃, k̃) for the tree that will produce the next token."""
        at = len(self.trees)
        if self.init == "vertical" and at >= self.width:
            return self.trees[at - self.width]
        if self.init == "random":
            return self.trees[self.random.randrange(at)]
        if self.init == "token-flock":
            return self._flock(at)
        return self.trees[-1]

    def _flock(self, at: int, radius: int = 2) -> tuple[float, float]:
        """Mean of the known trees within ``radius`` tokens on the grid, weighted by 1 / distance."""
        y, x = divmod(at, self.width)
        near = []
        for dy in range(-radius, 1):
            for dx in range(-radius, radius + 1):
                i = (y + dy) * self.width + x + dx
                if 0 <= i < at and 0 <= x + dx < self.width:
                    near.append((1 / (dx * dx + dy * dy) ** 0.5, self.trees[i]))
        near = near or [(1.0, self.trees[-1])]
        total = sum(w for w, _ in near)
        return (sum(w * t[0] for w, t in near) / total, sum(w * t[1] for w, t in near) / total)


class AdaptiveGrowth:
    """Depth d̂ ≤ d_max and width k̂ ≤ k_max per tree; at most ``total`` nodes with the root, as in EAGLE-2.

    ``fixed_depth``, ``fixed_width``: the paper's ablations, one of the two held constant.
    """

    uniforms, fixed = 0, False

    def __init__(
        self,
        bounds: Bounds,
        init: str,
        total: int,
        first: tuple[int, int],
        fixed_depth: int | None = None,
        fixed_width: int | None = None,
    ):
        self.bounds, self.init, self.nodes, self.first = bounds, init, total, first
        self.fixed_depth, self.fixed_width = fixed_depth, fixed_width

    def begin(self, session: Session) -> None:
        first = self.bounds.clamp(*self.first)
        self.around = [Neighbourhood(session.target.grid[1], self.init, first, s) for s in session.seeds]
        self.alpha = [self.bounds.beta] * session.batch  # as after a success
        self.now = [first] * session.batch

    def grow(self, drafter: Drafter, logits: Tensor, root: Tensor, warp: Warp, u: Tensor) -> Draft:
        for i, (around, alpha) in enumerate(zip(self.around, self.alpha, strict=True)):
            d, k = adapt(around.start(), alpha, self.bounds)
            self.now[i] = (self.fixed_depth or d, self.fixed_width or k)
        depths, widths = (torch.tensor(x, device=root.device) for x in zip(*self.now, strict=True))
        deepest, widest = (max(x) for x in zip(*self.now, strict=True))
        alike = len(set(self.now)) == 1 and deepest > 0
        return grow_by_confidence(
            drafter,
            logits,
            root,
            warp,
            max(deepest, 1),
            widest,
            self.nodes,
            None if alike else widths,
            None if alike else depths,
        )

    def sizes(self) -> list[tuple[int, int]]:
        """Depth and nodes of each prompt's tree: all it may hold, or as many as it expands."""
        return [(d, min(self.nodes, 1 + k + k * k * (d - 1)) if d else 1) for d, k in self.now]

    def keep(self, prompts: list[int]) -> None:
        self.around = [self.around[i] for i in prompts]
        self.alpha = [self.alpha[i] for i in prompts]
        self.now = [self.now[i] for i in prompts]

    def learn(self, session: Session, draft: Draft, verdict: Verdict) -> None:
        for i, tokens in enumerate(session.fresh.advances):  # τ of this tree, the bonus token included
            self.around[i].trees += [self.now[i]] * tokens
            self.alpha[i] = tokens / self.now[i][0] if self.now[i][0] else self.bounds.beta
