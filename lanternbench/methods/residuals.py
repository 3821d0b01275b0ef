"""Residuals: what is sampled after x was rejected, unnormalised [..., V]; one short function each.

q [..., V] target, p [..., V] drafter (None: the child was chosen, not sampled, so p is 1 at x), x
[...] the child's token, depth [...] or [] its depth 1 … L.
"""

from typing import Any

import torch
from torch import Tensor

from lanternbench.engine.plain import PlainRule, Probs
from lanternbench.engine.verify import AcceptanceRule, at, standard
from lanternbench.registry import register

register("residual", "standard")(standard)


@register("residual", "lantern")
def lantern(q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: AcceptanceRule) -> Tensor:
    """∝ [q_{k,δ}(·|x) − p]₊ (LANTERN, eq. 7): the group's probability on x, 0 on the rest of the
    group, q elsewhere.
    """
    relaxed = rule.relax(q, x, depth)
    moved = q
    # a token outside A writes back its own q
    if relaxed.group is not None and relaxed.taken is not None:
        left = torch.where(relaxed.taken, 0.0, q.gather(-1, relaxed.group))
        moved = q.scatter(-1, relaxed.group, left)
    moved = moved.scatter(-1, x[..., None], 0.0 if p is None else relaxed.value[..., None])
    return moved if p is None else (moved - p).clamp_(min=0)


@register("residual", "optimal")
def optimal(q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: AcceptanceRule) -> Tensor:
    """∝ [q − p·f]₊, f the probability of acceptance: the residual that minimises the TV bound
    (Cool-SD, Theorem 2).
    """
    if p is None:
        left = (at(q, x) - rule.relax(q, x, depth).value.clamp(max=1)).clamp_(min=0)
        return q.scatter(-1, x[..., None], left[..., None])
    return (q - rule.accepted_prob(q, p, depth)).clamp_(min=0)


@register("residual", "lantern-reference")
def lantern_reference(
    q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: AcceptanceRule
) -> Tensor:
    """What LANTERN's public code samples after a rejection.

    If A holds any neighbour, all ``barred`` tokens, whatever the bound, are 0 after a chosen
    child, and keep all of q after a sampled one; else it is the standard residual.  One that is 0
    everywhere becomes uniform.
    """
    weights = standard(q, p, x, depth, rule)
    relaxed = rule.relax(q, x, depth)
    if relaxed.barred is not None and relaxed.taken is not None:
        some = relaxed.taken[..., 1:].any(-1, keepdim=True)
        near = relaxed.barred[..., 1:]
        left = torch.zeros((), dtype=q.dtype, device=q.device) if p is None else q.gather(-1, near)
        weights = weights.scatter(-1, near, torch.where(some, left, weights.gather(-1, near)))
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1.0)


# under a rule with q̃ = q
LOSSLESS = frozenset({"standard", "lantern", "optimal", "lantern-reference"})
# sampled children: the residual does not depend on which x was rejected
SAME_FOR_ALL_TOKENS = (standard, optimal)


def plain_standard(q: Probs, p: Probs, x: int, depth: int, rule: PlainRule) -> Probs:
    return positive_part(q, p)


def plain_lantern(q: Probs, p: Probs, x: int, depth: int, rule: PlainRule) -> Probs:
    """q_{k,δ} is 0 in the group but for x, and below p at x, as x was rejected."""
    group = rule.plain_group(q, x)
    return [0.0 if y in group else left for y, left in enumerate(positive_part(q, p))]


def plain_optimal(q: Probs, p: Probs, x: int, depth: int, rule: PlainRule) -> Probs:
    return positive_part(q, [py * rule.plain_prob(q, p, y, depth) for y, py in enumerate(p)])


def positive_part(q: Probs, p: Probs) -> Probs:
    """[q − p]₊, differences below 1e-15 counted as the rounding that they are."""
    return [d if (d := qx - px) > 1e-15 else 0.0 for qx, px in zip(q, p, strict=True)]


# Residuals in scalar Python, by name; p is 1 at x where the child was chosen
PLAIN: dict[str, Any] = {
    "standard": plain_standard,
    "lantern": plain_lantern,
    "optimal": plain_optimal,
}
