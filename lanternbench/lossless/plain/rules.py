"""Rules and residuals at work: each component gives its own scalar definition, ``plain``, and this applies it.

q is the target, p the drafter, both after guidance, temperature, top-k and top-p.  A child that was chosen, not
sampled, has p = 1.
"""

import math
from collections.abc import Callable, Iterable

from lanternbench.engine.plain import PlainRule, Probs
from lanternbench.lossless.plain.branches import Draws
from lanternbench.lossless.plain.world import normalise

Residual = Callable[[Probs, Probs, int, int, PlainRule], Probs]  # (q, p, x, depth, rule) -> weights


def after_rejection(residual: Residual, q: Probs, p: Probs, x: int, rule: PlainRule, depth: int) -> Probs:
    """The distribution after x was rejected.  Where its formula leaves nothing, q itself."""
    return normalise(residual(q, p, x, depth, rule), q)


def without(p: Probs, x: int) -> Probs:
    """p of the next sibling: x removed, renormalised; all zero where nothing is left."""
    return normalise([0.0 if y == x else py for y, py in enumerate(p)])


def first_accepted(
    draws: Draws, rule: PlainRule, residual: Residual, q: Probs, p: Probs,
    children: Iterable[tuple[int | None, Probs | None]], depth: int, counts: bool = True,
) -> tuple[int | None, int, Probs]:  # fmt: skip
    """Try a node's children in draft order, each against what the earlier rejections left of q and p.

    ``children``: (token, its own p); a token that is None is drawn now, a p that is None is that of the node.
    ``counts``: do the tests decide a token of the image?  -> (accepted token or None, its rank, what is left of q)
    """
    for rank, (drafted, p_child) in enumerate(children):
        if drafted is None and not any(p):
            break  # p is exhausted: there are no more children
        law = p if p_child is None else p_child
        if counts:
            draws.lose(stage_loss, residual, q, law, rule, depth)
        x = draws.token(law) if drafted is None else drafted
        if draws.accepts(rule.plain_prob(q, law, x, depth)):
            return x, rank, q
        q, p = after_rejection(residual, q, law, x, rule, depth), without(p, x)
    return None, 0, q


def stage_loss(residual: Residual, q: Probs, p: Probs, rule: PlainRule, depth: int) -> float:
    """TV(q, K) of one test, K = p·f + Σ_x p(x)·(1 − f(x))·G_x (Cool-SD, Theorem 2)."""
    kernel = [0.0] * len(q)
    for y, py in enumerate(p):
        if py > 0:
            f = rule.plain_prob(q, p, y, depth)
            kernel[y] += py * f
            if f < 1:
                after = after_rejection(residual, q, p, y, rule, depth)
                kernel = [k + py * (1 - f) * g for k, g in zip(kernel, after, strict=True)]
    return total_variation(q, kernel)


def total_variation(a: Iterable[float], b: Iterable[float]) -> float:
    """½ Σ |a − b| of two distributions."""
    return 0.5 * math.fsum(abs(x - y) for x, y in zip(a, b, strict=True))
