"""The table of residuals: the weights [..., V] of the next token after x was rejected.

q [..., V] target, p [..., V] drafter (None: the child was chosen, not sampled, so p is 1 at x), x
[...] the child's token, depth [...] or [] its depth 1 … L.  A row is a function, its plain form in
scalar Python, and its claim to be lossless.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lanternbench.engine.plain import PlainResidual, PlainRule, Probs, positive_part
from lanternbench.engine.relaxed import Residual, TokenTest, Weights
from lanternbench.engine.sampling import at
from lanternbench.engine.verify import standard
from lanternbench.registry import register


def residual(
    name: str,
    plain: PlainResidual | None = None,
    *,
    lossless: bool = False,
    of_token: bool = True,
    public: str | None = None,
) -> Callable[[Weights], Residual]:
    """Decorator: add a row to the table; see ``Residual`` for its columns."""

    def add(weights: Weights) -> Residual:
        return register("residual", name)(Residual(weights, plain, lossless, of_token, public))

    return add


register("residual", "standard")(standard)


def plain_lantern(q: Probs, p: Probs, x: int, depth: int, rule: PlainRule) -> Probs:
    """q_{k,δ} is 0 in the group except at x, where it is below p because x was rejected."""
    group = rule.group(q, x)
    return [0.0 if y in group else left for y, left in enumerate(positive_part(q, p))]


@residual("lantern", plain_lantern, lossless=True, public="lantern-reference")
def lantern(q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: TokenTest) -> Tensor:
    """∝ [q_{k,δ}(·|x) − p]₊ (LANTERN, eq. 7).

    q_{k,δ} has the group's probability at x, 0 at the rest of the group, q elsewhere.
    """
    relaxed = rule.relax(q, x, depth)
    moved = q if relaxed.group is None else relaxed.group.struck_from(q)
    if p is None:
        return moved.scatter(-1, x[..., None], 0.0)
    moved = moved.scatter(-1, x[..., None], relaxed.value[..., None])
    return (moved - p).clamp_(min=0)


def plain_optimal(q: Probs, p: Probs, x: int, depth: int, rule: PlainRule) -> Probs:
    accepted = [p_y * rule.probability(q, p, y, depth) for y, p_y in enumerate(p)]
    return positive_part(q, accepted)


@residual("optimal", plain_optimal, lossless=True, of_token=False)
def optimal(q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: TokenTest) -> Tensor:
    """∝ [q − p·f]₊, f = P(accept): it minimises the TV bound (Cool-SD, Theorem 2)."""
    if p is None:
        accepted = rule.relax(q, x, depth).value.clamp(max=1)
        left = (at(q, x) - accepted).clamp_(min=0)
        return q.scatter(-1, x[..., None], left[..., None])
    return (q - rule.accepted_prob(q, p, depth)).clamp_(min=0)


@residual("lantern-reference", lossless=True)
def lantern_reference(
    q: Tensor,
    p: Tensor | None,
    x: Tensor,
    depth: Tensor,
    rule: TokenTest,
) -> Tensor:
    """Return the law that LANTERN's public code samples from after a rejection.

    If A holds any neighbour, all ``barred`` tokens, whatever the bound, are 0 after a chosen
    child, and keep all of q after a sampled one; else it is the standard residual.  One that is 0
    everywhere becomes uniform.
    """
    weights = standard(q, p, x, depth, rule)
    group = rule.relax(q, x, depth).group
    if group is not None and group.barred is not None:
        barred = group.barred[..., 1:]
        has_neighbours = group.inside[..., 1:].any(-1, keepdim=True)
        left = q.new_zeros(()) if p is None else q.gather(-1, barred)
        changed = torch.where(has_neighbours, left, weights.gather(-1, barred))
        weights = weights.scatter(-1, barred, changed)
    any_left = weights.sum(-1, keepdim=True) > 0
    return torch.where(any_left, weights, 1.0)
