"""Rules and residuals at work: each component gives its own scalar definition, ``plain``, and this applies it.

q is the target, p the drafter, both after guidance, temperature, top-k and top-p.  A child that was chosen, not
sampled, has p = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lanternbench.engine.plain import PlainRule, Probs
from lanternbench.lossless.plain.world import normalise

Residual = Callable[[Probs, Probs, int, int, PlainRule], Probs]  # (q, p, x, depth, rule) -> weights


def after_rejection(residual: Residual, q: Probs, p: Probs, x: int, rule: PlainRule, depth: int) -> Probs:
    """The distribution after x was rejected.  Where its formula leaves nothing, q itself."""
    return normalise(residual(q, p, x, depth, rule), q)


def without(p: Probs, x: int) -> Probs:
    """p of the next sibling: x removed, renormalised; all zero where nothing is left."""
    return normalise([0.0 if y == x else py for y, py in enumerate(p)])


def stage_loss(residual: Residual, q: Probs, p: Probs, rule: PlainRule, depth: int) -> float:
    """TV(q, K) of one test, K = p·f + Σ_x p(x)·(1 − f(x))·G_x (Cool-SD, Theorem 2)."""
    kernel = [0.0] * len(q)
    for y, py in enumerate(p):
        if py > 0:
            f = rule.plain_prob(q, p, y, depth)
            kernel[y] += py * f
            if f < 1:
                rest = after_rejection(residual, q, p, y, rule, depth)
                kernel = [k + py * (1 - f) * g for k, g in zip(kernel, rest, strict=True)]
    return 0.5 * math.fsum(abs(a - b) for a, b in zip(q, kernel, strict=True))
