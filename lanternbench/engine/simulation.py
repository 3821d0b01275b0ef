"""Simulated acceptance: real steps whose accepted lengths are drawn to a given mean or to rates.

With random weights, whose drafts are never accepted, it shows what a method would gain on this
machine: the time of every step is real, the number of tokens that it commits is not.
"""

import torch
from torch import Tensor

from lanternbench.engine.tree import Draft, VerifyResult, numbers, path_to
from lanternbench.errors import UserError


def level_rates(tau: float, depth: int) -> Tensor:
    """Return the probability a of accepting one more level of a draft of depth D = 0 … ``depth``.

    Σ_{d=1…D} a^d = τ − 1, so that steps give τ tokens on average; 1 if the draft is too shallow.
    Returns [depth + 1].  Raises UserError for a τ that no draft of the method can have.
    """
    if not 1 <= tau <= depth + 1:
        raise UserError(
            f"an acceptance length of {tau:g} cannot be simulated with drafts {depth} deep: "
            f"give --simulate-acceptance between 1 and {depth + 1}, or a deeper draft"
        )
    return torch.tensor([_rate(tau, d) for d in range(depth + 1)])


def reach(acceptance: float | list[float], depth: int) -> Tensor:
    """Return P(a draft of depth D has d levels accepted): [depth + 1, depth].

    D = 0 … ``depth``, d = 1 … ``depth``.  acceptance: the accepted length τ; or P(level d is
    accepted | the levels before it were) for d = 1, 2, …, whose last holds for all deeper levels.
    """
    levels = torch.arange(1, depth + 1)
    if not isinstance(acceptance, list):
        return level_rates(acceptance, depth)[:, None] ** levels
    given = torch.tensor(acceptance, dtype=torch.float64)
    rates = given[levels.clamp(max=len(given)) - 1]
    reached = rates.cumprod(0).float()
    return reached.expand(depth + 1, -1)


def _rate(tau: float, depth: int) -> float:
    """Solve Σ_{d=1…depth} a^d = τ − 1 for a in 0 … 1 by bisection."""
    low = 0.0
    high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        drafted = sum(middle**d for d in range(1, depth + 1))
        if drafted < tau - 1:
            low = middle
        else:
            high = middle
    return high


def simulate(draft: Draft, result: VerifyResult, rates: Tensor, u: Tensor) -> VerifyResult:
    """Replace the accepted path by one to the first deepest node.

    Its length is random: P(length ≥ d) by ``reach``, u [B].
    """
    depth = draft.tree.depth.expand_as(draft.tokens)
    deepest = depth.amax(1)
    max_depth = result.path.shape[1] - 1
    passed = u[:, None] < rates[deepest, :max_depth]
    accepted = torch.minimum(passed.sum(1), deepest)
    path = path_to(draft.tree, depth.argmax(1))
    columns = numbers(max_depth + 1, u.device)
    kept = torch.minimum(columns, accepted[:, None])
    path = path.gather(1, kept)
    return result._replace(path=path, accepted=accepted)
