"""Rules that verify a chain as a whole, not token by token.

``unchanged``: Jacobi's fixed point, exact.  ``block``: block verification (Sun et al. 2024, arXiv
2403.10444), exact.  ``sjd-sv``: segments (arXiv 2609.13245, ICML 2026, as third parties describe
it), not exact, and its tests bound nothing.  A segment [b, e] is a maximal run of drafts whose
q(x) does not fall.  Its tail from b_g on holds the share α of Σ q(x): one uniform decides how much of
the tail passes Π q(x)/p(x); the drafts before b_g are accepted untested.

Read literally, that accepts drafts with q(x) = 0, which the target never draws.  Here a segment
that begins with one is tested whole; ``excluded="accepted"`` is the literal reading.  The text
also leaves open what becomes of a segment with Σ q(x) = 0 (here: it is tested whole) and whether a
segment reaches past the end of the image (here: it does, as the window does).
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Choices, option
from lanternbench.engine.relaxed import Residual
from lanternbench.engine.sampling import at, draw, rows_at
from lanternbench.engine.tree import Draft, VerifyResult, numbers
from lanternbench.engine.verify import (
    AcceptanceRule,
    ExactTest,
    SampledDraft,
    Uniforms,
    end_of_chain,
)
from lanternbench.models.target import Target
from lanternbench.registry import component, register


class ChainRule(AcceptanceRule):
    """Base of rules that judge a chain as a whole."""

    def refuses(self, choices: Choices) -> str | None:
        if choices.tree != "chain":
            return (
                f"the rule '{choices.acceptance}' judges a chain, and the tree is "
                f"'{choices.tree}'; use --tree chain"
            )
        if choices.residual != "standard":
            return (
                f"the rule '{choices.acceptance}' has a residual of its own; leave --residual out"
            )
        return None


def block(q: Tensor, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what decides on a chain x_1 … x_L (algorithm 2).

    h_1 … h_L [B, L], the probability that a chain of i tokens is accepted if no longer one is; and
    what follows an accepted chain of 0 … L − 1 tokens, unnormalised [B, L, V].  q [B, L + 1, V]
    after 0 … L tokens x [B, L], drawn from p [B, L, V]
    """
    q_before_last = q[:, :-1]
    p_x = at(p, x)
    ratio = torch.where(p_x > 0, at(q_before_last, x) / p_x, 0.0)
    weights = [torch.ones_like(ratio[:, 0])]
    for r in ratio.unbind(1):
        weights.append((weights[-1] * r).clamp(max=1))  # w_i = min(1, w_{i−1}·q_i(x_i)/p_i(x_i))
    w = torch.stack(weights, 1)  # [B, L + 1]
    w_before_last = w[:, :-1]
    residual = (w_before_last[..., None] * q_before_last - p).clamp_(min=0)
    left = residual.sum(-1)
    # h_i = Σ(w_i q − p)₊ / (Σ(w_i q − p)₊ + 1 − w_i)
    h = torch.where(left > 0, left / (left + 1 - w_before_last), 0.0)
    stop = torch.cat([h[:, 1:], w[:, -1:]], 1)  # h_L = w_L
    return stop, residual


@register("acceptance", "block")
class BlockVerification(ChainRule):
    """accept the longest chain whose tokens pass together"""

    by_draft = False

    def refuses(self, choices: Choices) -> str | None:
        return super().refuses(choices) or component("proposal", choices.proposal).no_joint_sample

    def build(self, target: Target, depth: int) -> "BlockTest":
        return BlockTest()


@dataclass(frozen=True, eq=False)
class BlockTest(ExactTest):
    """Keep the longest chain whose uniform is below its h_i; the next token is of [w_i q − p]₊.

    Node 1's uniform decides on the whole chain, node L's on its first token: in the order in which
    they matter.
    """

    def verify_sampled(
        self,
        draft: SampledDraft,
        q: Tensor,
        u: Tensor,
        residual: Residual,
    ) -> VerifyResult:
        stop, left = block(q, draft.p, draft.tokens[:, 1:])
        length = draft.p.shape[1]
        lengths = torch.arange(1, length + 1, device=q.device)
        passed = u[:, 1:].flip(1) < stop
        accepted = torch.where(passed, lengths, 0).amax(1)
        q_stop = rows_at(q, accepted)
        weights = rows_at(left, accepted.clamp(max=length - 1))
        return end_of_chain(draft, q_stop, weights, any_left(weights), accepted, u)


def any_left(weights: Tensor) -> Tensor:
    """Return whether anything is left: [B, V] -> [B, 1]."""
    return weights.sum(-1, keepdim=True) > 0


def segments(q: Tensor, p: Tensor, u: Tensor, alpha: float, test_excluded: bool = True) -> Tensor:
    """Return how many drafts are accepted: [B]; q(x), p(x) and uniforms u [B, L].

    The uniform of a segment's first draft decides on it.  ``test_excluded``: a segment that begins
    with q(x) = 0 is tested whole.
    """
    falls = q[:, 1:] < q[:, :-1]
    first = F.pad(falls, (1, 0), value=True)
    number = first.cumsum(1)
    same = number[:, :, None] == number[:, None]  # [B, L, L]
    later = torch.ones_like(same[0]).triu(1)  # [L, L]: j is after i
    begins_same = same & first[:, None]
    begins = begins_same.int().argmax(-1)
    tested = in_tail(q, same, later, alpha)
    if test_excluded:
        tested |= q.gather(1, begins) == 0
    ratio = tail_ratio(q, p, tested, ~same | later)
    accept = ~tested | (u.gather(1, begins) < ratio)
    is_last = F.pad(first[:, 1:], (0, 1), value=True)
    breaks = is_last & ~accept  # at the end of a segment that is not accepted whole
    in_earlier_segment = number[:, None] < number[..., None]
    broken = (breaks[:, None] & in_earlier_segment).any(-1)
    lengths = torch.arange(1, q.shape[1] + 1, device=q.device)
    return torch.where(accept & ~broken, lengths, 0).amax(1)


def tail_ratio(q: Tensor, p: Tensor, tested: Tensor, outside: Tensor) -> Tensor:
    """Return Π q/p over b_g … i: [B, L]; ``outside`` [B, L, L]: drafts that i does not count."""
    log_ratio = torch.where(p > 0, q / p, 0.0).log()
    of_tail = torch.where(tested, log_ratio, 0.0)[:, None]
    return of_tail.masked_fill(outside, 0.0).sum(-1).exp()


def in_tail(q: Tensor, same: Tensor, later: Tensor, alpha: float) -> Tensor:
    """Return the drafts in the tail of their segment: all but those whose successors hold share α.

    same [B, L, L]: i and j share a segment -> bool [B, L]
    """
    total = (same * q[:, None]).sum(-1)
    after = (same & later).mul(q[:, None]).sum(-1)
    return (after < alpha * total) | (total == 0)


@register("acceptance", "sjd-sv")
class SegmentVerification(ChainRule):
    """accept segments of rising target probability by the ratio of their tails"""

    lossless = False
    bounded = False

    alpha: float = option(
        0.8,
        "share of a segment's probability that is tested",
        symbol="α",
        in_label=True,
        also=0.5,
        gt=0,
        le=1,
    )

    excluded: Literal["tested", "accepted"] = option(
        "tested",
        "whether drafts with q(x) = 0 before the tail of a segment are tested, or accepted (the literal reading)",
    )

    def build(self, target: Target, depth: int) -> "SegmentTest":
        return SegmentTest(self.alpha, self.excluded == "tested")


@dataclass(frozen=True, eq=False)
class SegmentTest(ExactTest):
    """Accept segments, see above; the next token is of [q − p]₊."""

    alpha: float
    test_excluded: bool

    def verify_sampled(
        self,
        draft: SampledDraft,
        q: Tensor,
        u: Tensor,
        residual: Residual,
    ) -> VerifyResult:
        x = draft.tokens[:, 1:]
        q_x = at(q[:, :-1], x)
        p_x = at(draft.p, x)
        accepted = segments(q_x, p_x, u[:, 1:], self.alpha, self.test_excluded)
        q_stop = rows_at(q, accepted)
        p_stop = rows_at(draft.p, accepted.clamp(max=x.shape[1] - 1))
        weights = (q_stop - p_stop).clamp_(min=0)
        return end_of_chain(draft, q_stop, weights, any_left(weights), accepted, u)


@register("acceptance", "unchanged")
class Unchanged(AcceptanceRule):
    """accept while the redraw leaves the token unchanged"""

    by_position = True
    by_draft = False

    def refuses(self, choices: Choices) -> str | None:
        if choices.proposal == "jacobi":
            return None
        return (
            "the rule 'unchanged' compares a Jacobi window with its redraw; use it with "
            "--method jacobi"
        )

    def build(self, target: Target, depth: int) -> "FixedPoint":
        return FixedPoint()


@dataclass(frozen=True, eq=False)
class FixedPoint(ExactTest):
    """Plain Jacobi decoding (Song et al. 2021).

    Every image token is redrawn with a uniform of its own, so that the output is the
    autoregressive one for these uniforms.
    """

    by_position = True

    def verify(
        self,
        draft: Draft,
        q: Tensor,
        u: Uniforms,
        residual: Residual,
        greedy: bool,
    ) -> VerifyResult:
        again = q.argmax(-1) if greedy else draw(q, u.of_positions)
        unchanged = again[:, :-1] == draft.tokens[:, 1:]
        accepted = unchanged.cumprod(1).sum(1)
        last = accepted[:, None]
        path = torch.minimum(numbers(draft.tree.nodes, q.device), last)
        token = again.gather(1, last)[:, 0]
        return VerifyResult(path, accepted, token, torch.ones_like(draft.tokens))
