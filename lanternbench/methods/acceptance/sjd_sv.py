"""SJD-SV (arXiv 2609.13245, ICML 2026, as third parties describe it): segments of a chain are verified as a whole.

A segment [b, e] is a maximal run of drafts whose target probability q(x) does not fall.  Its tail from b_g on holds the
share α of Σ q(x): one uniform decides how much of the tail passes Π q(x)/p(x), and what comes before b_g is accepted
untested.  Not exact, and the tests of its tokens bound nothing; the exact counterpart of chains is ``block``.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from lanternbench.component import Choices, option
from lanternbench.engine.plain import Probs
from lanternbench.engine.sampling import draw
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule, Forms, Residual, VerifyResult, at, rows_at
from lanternbench.registry import register


def segments(q: Tensor, p: Tensor, u: Tensor, alpha: float) -> Tensor:
    """How many drafts of a chain are accepted: q(x), p(x) and uniforms [B, L] -> [B].

    The uniform of a segment is that of its first draft.
    """
    first = torch.cat([torch.ones_like(q[:, :1], dtype=torch.bool), q[:, 1:] < q[:, :-1]], 1)
    number = first.cumsum(1)
    same = number[:, :, None] == number[:, None]  # [B, L, L]
    later = torch.ones_like(same[0]).triu(1)  # [L, L] is j after i?
    share = (same * q[:, None]).sum(-1)  # Σ q(x) of the whole segment
    after = (same & later).mul(q[:, None]).sum(-1)
    tested = (after < alpha * share) | (share == 0)  # from b_g on: all but the positions whose successors hold α
    ratio = torch.where(p > 0, q / p, 0.0).log()
    passed = torch.where(tested, ratio, 0.0)[:, None].masked_fill(~same | later, 0.0).sum(-1).exp()  # Π over b_g … i
    begins = (same & first[:, None]).int().argmax(-1)
    accept = ~tested | (u.gather(1, begins) < passed)
    whole = accept | ~torch.cat([first[:, 1:], torch.ones_like(first[:, :1])], 1)  # false at the end of a broken one
    broken = ((~whole)[:, None] & (number[:, None] < number[..., None])).any(-1)  # in an earlier segment
    return torch.where(accept & ~broken, torch.arange(1, q.shape[1] + 1, device=q.device), 0).amax(1)


@register("acceptance", "sjd-sv")
class SegmentVerification(AcceptanceRule):
    """accept segments of rising target probability by the ratio of their tails"""

    lossless: ClassVar[bool] = False
    bounded: ClassVar[bool] = False

    alpha: float = option(
        0.8, "share of a segment's probability that is tested", symbol="α", in_label=True, also=0.5, gt=0, le=1
    )

    def refuses(self, choices: Choices) -> str | None:
        if choices.tree != "chain":
            return f"segments are those of a chain, and the tree is '{choices.tree}'; use --tree chain"
        return (
            "segments end in the residual 'standard'; leave --residual out" if choices.residual != "standard" else None
        )

    def _verify_chain(self, draft: Draft, q: Tensor, u: Tensor, residual: Residual) -> VerifyResult:
        assert draft.static is not None
        assert draft.p is not None
        x = draft.tokens[:, 1:]
        length = x.shape[1]
        accepted = segments(at(q[:, :-1], x), at(draft.p, x), u[:, 1:], self.alpha)
        q_stop = rows_at(q, accepted)
        rest = (q_stop - rows_at(draft.p, accepted.clamp(max=length - 1))).clamp_(min=0)
        whole = (accepted == length) | (rest.sum(-1) == 0)  # the bonus token; or nothing is left
        path = torch.minimum(draft.static.tree.depth, accepted[:, None])  # in a chain a node's id is its depth
        token = draw(torch.where(whole[:, None], q_stop, rest), u[:, 0])
        return VerifyResult(path, accepted, token, draft.static.sizes.expand_as(draft.tokens))

    forms: ClassVar[Forms] = AcceptanceRule.forms._replace(verify_sampled=_verify_chain)

    def plain_chain(self, qs: list[Probs], ps: list[Probs], xs: tuple[int, ...]) -> list[tuple[float, int, Probs]]:  # type: ignore[override]
        """As ``BlockVerification.plain_chain``."""
        length, outcomes, weight, b = len(xs), [], 1.0, 0
        qx, px = ([law[x] for law, x in zip(laws, xs, strict=False)] for laws in (qs, ps))
        while b < length:
            e = b
            while e + 1 < length and qx[e + 1] >= qx[e]:
                e += 1
            total = math.fsum(qx[b : e + 1])
            b_g = max(i for i in range(b, e + 1) if math.fsum(qx[i : e + 1]) >= self.alpha * total) if total else b
            pass_at = {i: min(1.0, math.prod(qx[k] / px[k] for k in range(b_g, i + 1))) for i in range(b_g, e + 1)}
            reached = pass_at[e]
            for i in range(e - 1, b_g - 2, -1):  # one uniform: i is the end where it passes i and nothing longer
                longer = max(reached, pass_at.get(i, 1.0))
                rest = [max(0.0, y - z) for y, z in zip(qs[i + 1], ps[i + 1], strict=True)]
                outcomes.append((weight * (longer - reached), i + 1, rest))
                reached = longer
            weight, b = weight * pass_at[e], e + 1
        return [*outcomes, (weight, length, qs[length])]
