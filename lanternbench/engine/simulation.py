"""Simulated acceptance: accepted lengths are drawn to a given mean, or to rates by position, in
otherwise real steps.

With random weights, whose drafts are never accepted, it shows what a method would gain on this
machine: the time of every step is real, the number of tokens that it commits is not.
"""

from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from lanternbench.engine.tree import Draft, VerifyResult, path_to
from lanternbench.errors import UserError


def level_rates(tau: float, depth: int) -> Tensor:
    """The probability a of accepting one more level of a draft of depth D, for D = 0 … ``depth``:
    [depth + 1].

    Σ_{d=1…D} a^d = τ − 1, so that steps give τ tokens on average; 1 where the draft is too shallow
    for that. Raises UserError for a τ that no draft of the method can have.
    """
    if not 1 <= tau <= depth + 1:
        raise UserError(
            f"an acceptance length of {tau:g} cannot be simulated with drafts {depth} deep: "
            f"give --simulate-acceptance between 1 and {depth + 1}, or a deeper draft"
        )
    return torch.tensor([_rate(tau, d) for d in range(depth + 1)])


def reach(acceptance: float | list[float], depth: int) -> Tensor:
    """P(a draft of depth D has d levels accepted), D = 0 … ``depth``, d = 1 … ``depth``: [depth +
    1, depth].

    acceptance: mean tokens a step τ, as ``level_rates``; or P(level d accepted | those before it
    were) for d = 1, 2, …, whose last holds for all deeper levels.
    """
    if not isinstance(acceptance, list):
        return level_rates(acceptance, depth)[:, None] ** torch.arange(1, depth + 1)
    rates = [*acceptance, *[acceptance[-1]] * (depth - len(acceptance))][:depth]
    return torch.tensor([*accumulate(rates, mul)], dtype=torch.float32).expand(depth + 1, -1)


def _rate(tau: float, depth: int) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if sum(middle**d for d in range(1, depth + 1)) < tau - 1
            else (low, middle)
        )
    return high


def simulate(draft: Draft, result: VerifyResult, rates: Tensor, u: Tensor) -> VerifyResult:
    """Replace the accepted path by one to the first deepest node, of random length: P(length ≥ d)
    by ``reach``.
    """
    depth = draft.tree.depth.expand_as(draft.tokens)
    deepest = depth.amax(1)
    passed = (u[:, None] < rates[deepest, : result.path.shape[1] - 1]).sum(1)
    accepted = torch.minimum(passed, deepest)
    path = path_to(draft.tree, depth.argmax(1))
    columns = torch.arange(path.shape[1], device=u.device)
    return result._replace(
        path=path.gather(1, torch.minimum(columns, accepted[:, None])), accepted=accepted
    )
