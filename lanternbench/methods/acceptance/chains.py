"""Rules that verify a chain as a whole, not token by token.  ``unchanged``: Jacobi's fixed point,
exact.

``block``: block verification (Sun et al. 2024, arXiv 2403.10444), exact.  ``sjd-sv``: segments
(arXiv 2609.13245, ICML 2026, as third parties describe it), not exact, and its tests bound
nothing.  A segment [b, e] is a maximal run of drafts whose q(x) does not fall.  Its tail from b_g
on holds the share α of Σ q(x): one uniform decides how much of the tail passes Π q(x)/p(x), and
what comes before b_g is accepted untested.
"""

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lanternbench.component import Choices, option
from lanternbench.engine.plain import Probs
from lanternbench.engine.sampling import at, draw, rows_at
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import (
    AcceptanceRule,
    Forms,
    Residual,
    Uniforms,
    VerifyResult,
    end_of_chain,
)
from lanternbench.registry import component, register


class Block(NamedTuple):
    """The quantities that decide on a chain x_1 … x_L."""

    # [B, L] h_1 … h_L: the probability that a chain of i tokens is accepted if no longer one is
    stop: Tensor
    residual: Tensor  # [B, L, V] unnormalised: what follows an accepted chain of 0 … L − 1 tokens


def block(q: Tensor, p: Tensor, x: Tensor) -> Block:
    """q [B, L + 1, V] after 0 … L tokens, p [B, L, V] that they were drawn from, x [B, L]
    (algorithm 2).
    """
    px = at(p, x)
    ratio = torch.where(px > 0, at(q[:, :-1], x) / px, 0.0)
    weights = [torch.ones_like(ratio[:, 0])]
    for r in ratio.unbind(1):
        weights.append((weights[-1] * r).clamp(max=1))  # w_i = min(1, w_{i−1}·q_i(x_i)/p_i(x_i))
    w = torch.stack(weights, 1)  # [B, L + 1]
    residual = (w[:, :-1, None] * q[:, :-1] - p).clamp_(min=0)
    left = residual.sum(-1)
    # h_i = Σ(w_i q − p)₊ / (Σ(w_i q − p)₊ + 1 − w_i)
    h = torch.where(left > 0, left / (left + 1 - w[:, :-1]), 0.0)
    return Block(torch.cat([h[:, 1:], w[:, -1:]], 1), residual)  # h_L = w_L


class ChainRule(AcceptanceRule):
    """Base of rules that judge a chain as a whole."""

    def refuses(self, choices: Choices) -> str | None:
        if choices.tree != "chain":
            return f"the rule '{choices.acceptance}' judges a chain, and the tree is '{choices.tree}'; use --tree chain"
        if choices.residual != "standard":
            return (
                f"the rule '{choices.acceptance}' has a residual of its own; leave --residual out"
            )
        return None


@register("acceptance", "block")
class BlockVerification(ChainRule):
    """accept the longest chain whose tokens pass together"""

    by_draft: ClassVar[bool] = False

    def refuses(self, choices: Choices) -> str | None:
        return super().refuses(choices) or component("proposal", choices.proposal).no_joint_sample

    def _verify_chain(
        self, draft: Draft, q: Tensor, u: Tensor, residual: Residual
    ) -> VerifyResult:
        """Keep the longest chain whose uniform is below its h_i; what follows comes from [w_i q −
        p]₊.

        Node 1's uniform decides on the whole chain, node L's on its first token: in the order in
        which they matter.
        """
        assert draft.p is not None
        chain, length = block(q, draft.p, draft.tokens[:, 1:]), draft.p.shape[1]
        lengths = torch.arange(1, length + 1, device=q.device)
        accepted = torch.where(u[:, 1:].flip(1) < chain.stop, lengths, 0).amax(1)
        weights = rows_at(chain.residual, accepted.clamp(max=length - 1))
        return end_of_chain(draft, rows_at(q, accepted), weights, accepted, u)

    forms: ClassVar[Forms] = AcceptanceRule.forms._replace(verify_sampled=_verify_chain)

    @staticmethod
    def plain_chain(
        qs: list[Probs], ps: list[Probs], xs: tuple[int, ...]
    ) -> list[tuple[float, int, Probs]]:
        """q_1 … q_{L+1} and p_1 … p_L along x_1 … x_L -> (probability, accepted length i, weights
        of the next token).

        Weights that are 0 everywhere stand for q_{i+1}.
        """
        length, w = len(xs), [1.0]
        for q, p, x in zip(qs, ps, xs, strict=False):
            w.append(min(1.0, w[-1] * q[x] / p[x]))
        residuals = [
            [max(0.0, w[i] * qy - py) for qy, py in zip(qs[i], ps[i], strict=True)]
            for i in range(length)
        ]
        left = [math.fsum(weights) for weights in residuals]
        h = [left[i] / (left[i] + 1 - w[i]) if left[i] > 0 else 0.0 for i in range(length)] + [
            w[length]
        ]
        outcomes, longer = [], 1.0
        for i in range(length, -1, -1):  # the longest i whose uniform is at most h_i
            stop = h[i] if i else 1.0
            outcomes.append((longer * stop, i, qs[length] if i == length else residuals[i]))
            longer *= 1 - stop
        return outcomes


def segments(q: Tensor, p: Tensor, u: Tensor, alpha: float) -> Tensor:
    """How many drafts are accepted: q(x), p(x) and uniforms [B, L], a segment's that of its first
    draft, -> [B].
    """
    first = torch.cat([torch.ones_like(q[:, :1], dtype=torch.bool), q[:, 1:] < q[:, :-1]], 1)
    number = first.cumsum(1)
    same = number[:, :, None] == number[:, None]  # [B, L, L]
    later = torch.ones_like(same[0]).triu(1)  # [L, L] is j after i?
    share = (same * q[:, None]).sum(-1)  # Σ q(x) of the whole segment
    after = (same & later).mul(q[:, None]).sum(-1)
    # from b_g on: all but the positions whose successors hold α
    tested = (after < alpha * share) | (share == 0)
    ratio = torch.where(p > 0, q / p, 0.0).log()
    # Π over b_g … i
    passed = torch.where(tested, ratio, 0.0)[:, None].masked_fill(~same | later, 0.0).sum(-1).exp()
    begins = (same & first[:, None]).int().argmax(-1)
    accept = ~tested | (u.gather(1, begins) < passed)
    # false at the end of a broken one
    whole = accept | ~torch.cat([first[:, 1:], torch.ones_like(first[:, :1])], 1)
    # in an earlier segment
    broken = ((~whole)[:, None] & (number[:, None] < number[..., None])).any(-1)
    return torch.where(accept & ~broken, torch.arange(1, q.shape[1] + 1, device=q.device), 0).amax(
        1
    )


@register("acceptance", "sjd-sv")
class SegmentVerification(ChainRule):
    """accept segments of rising target probability by the ratio of their tails"""

    lossless: ClassVar[bool] = False
    bounded: ClassVar[bool] = False

    alpha: float = option(
        0.8,
        "share of a segment's probability that is tested",
        symbol="α",
        in_label=True,
        also=0.5,
        gt=0,
        le=1,
    )

    def _verify_chain(
        self, draft: Draft, q: Tensor, u: Tensor, residual: Residual
    ) -> VerifyResult:
        assert draft.p is not None
        x = draft.tokens[:, 1:]
        accepted = segments(at(q[:, :-1], x), at(draft.p, x), u[:, 1:], self.alpha)
        q_stop = rows_at(q, accepted)
        weights = (q_stop - rows_at(draft.p, accepted.clamp(max=x.shape[1] - 1))).clamp_(min=0)
        return end_of_chain(draft, q_stop, weights, accepted, u)

    forms: ClassVar[Forms] = AcceptanceRule.forms._replace(verify_sampled=_verify_chain)

    def plain_chain(
        self, qs: list[Probs], ps: list[Probs], xs: tuple[int, ...]
    ) -> list[tuple[float, int, Probs]]:  # type: ignore[override]
        """As ``BlockVerification.plain_chain``."""
        length, outcomes, weight, b = len(xs), [], 1.0, 0
        qx, px = ([law[x] for law, x in zip(laws, xs, strict=False)] for laws in (qs, ps))
        while b < length:
            e = b
            while e + 1 < length and qx[e + 1] >= qx[e]:
                e += 1
            total = math.fsum(qx[b : e + 1])
            b_g = (
                max(i for i in range(b, e + 1) if math.fsum(qx[i : e + 1]) >= self.alpha * total)
                if total
                else b
            )
            pass_at = {
                i: min(1.0, math.prod(qx[k] / px[k] for k in range(b_g, i + 1)))
                for i in range(b_g, e + 1)
            }
            reached = pass_at[e]
            # one uniform: i is the end where it passes i and nothing longer
            for i in range(e - 1, b_g - 2, -1):
                longer = max(reached, pass_at.get(i, 1.0))
                residual = [max(0.0, y - z) for y, z in zip(qs[i + 1], ps[i + 1], strict=True)]
                outcomes.append((weight * (longer - reached), i + 1, residual))
                reached = longer
            weight, b = weight * pass_at[e], e + 1
        return [*outcomes, (weight, length, qs[length])]


@register("acceptance", "unchanged")
class Unchanged(AcceptanceRule):
    """accept while the redraw leaves the token unchanged"""

    by_position: ClassVar[bool] = True
    by_draft: ClassVar[bool] = False

    def refuses(self, choices: Choices) -> str | None:
        if choices.proposal == "jacobi":
            return None
        return "the rule 'unchanged' compares a Jacobi window with its redraw; use it with --method jacobi"

    def verify(
        self, draft: Draft, q: Tensor, u: Uniforms, residual: Residual, greedy: bool
    ) -> VerifyResult:
        """Plain Jacobi decoding (Song et al. 2021): every image token is redrawn with a uniform of
        its own, so that the output is the autoregressive one for these."""
        assert u.position is not None
        again = q.argmax(-1) if greedy else draw(q, u.position)
        accepted = (again[:, :-1] == draft.tokens[:, 1:]).cumprod(1).sum(1)
        path = torch.minimum(torch.arange(draft.tree.nodes, device=q.device), accepted[:, None])
        token = again.gather(1, accepted[:, None])[:, 0]
        return VerifyResult(path, accepted, token, torch.ones_like(draft.tokens))
