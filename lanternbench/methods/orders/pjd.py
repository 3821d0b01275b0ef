"""Parallel Jacobi decoding (PJD, arXiv 2606.05703): a Jacobi window in each of several rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.rows import Active, Decision, RowProposer, RowState
from lanternbench.engine.sampling import draw
from lanternbench.engine.simulation import simulate
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import Draft, chain
from lanternbench.engine.verify import Uniforms, at, normalised


class RowWindows(RowProposer):
    """A window of ``window`` drafts slides over each row, never past the row above.

    The top row is speculative Jacobi decoding.  The rows below commit accepted drafts only: a rejected draft and those
    after it wait, redrawn from the new predictions.  ``reuse``: a draft x after the first rejected one stays, with its
    old p, where min(1, q(x)/p(x)) is above this.  ``one_hot``: fresh drafts count as certain (the public code).

    Uniforms of a row: verification's, fresh drafts', redraws'.
    """

    def __init__(self, target: Any, lead: int, window: int, reuse: float, one_hot: bool, shown: int | None):
        super().__init__(target, lead, window, 3 * window + 2, shown=shown)
        self.reuse, self.one_hot, self.vocab = reuse, one_hot, target.vocab
        self.static = chain(window).to(target.device)

    def begin(self, state: DecodeState, stored: int | None = None, law: bool = False) -> RowState:
        return super().begin(state, self.drafts, self.one_hot or self.reuse < 1)

    def fill(self, state: DecodeState, own: RowState, now: Active, u: Tensor) -> RowState:
        v, uniform = self.vocab, torch.full_like(own.p, 1 / self.vocab)
        fresh = (u[..., self.inputs : self.inputs + self.drafts] * v).long().clamp(max=v - 1)
        p = F.one_hot(fresh, v).to(own.p.dtype) if self.one_hot else uniform
        carried = self.steps[:-1] < own.kept[..., None]
        law = None if own.law is None else torch.where(carried[..., None], own.law, uniform)
        drafts = torch.where(carried, own.drafts, fresh)
        return own._replace(drafts=drafts, p=torch.where(carried[..., None], own.p, p), law=law)

    def decide(self, decoder: SpeculativeDecoder, own: RowState, now: Active, q: Tensor, u: Tensor) -> Decision:
        (b, a), k, greedy = now.row.shape, self.inputs, decoder.warp.greedy
        last = torch.zeros_like(now.row)[..., None]
        draft = Draft(torch.cat([last, own.drafts], -1).flatten(0, 1), own.p.flatten(0, 1), self.static)
        uniforms = Uniforms(u[..., :k].flatten(0, 1), u[..., k:].flatten(0, 1))
        result = decoder.rule.verify(draft, q.flatten(0, 1), uniforms, decoder.residual, greedy)
        if decoder.rates is not None:
            result = simulate(draft, result, decoder.rates, uniforms.verify[:, -1])
        accepted = torch.minimum(result.accepted.view(b, a), now.room)
        top = now.row == now.top[:, None]
        ends = top & (now.filled + accepted < self.columns)  # elsewhere the place of a rejected draft waits
        advance = torch.where(now.on, accepted + ends, 0)
        tokens = torch.where(self.steps < accepted[..., None], F.pad(own.drafts, (0, 1)), result.token.view(b, a, 1))
        drafts = q.argmax(-1) if greedy else draw(q, u[..., k + self.drafts :])
        p = F.one_hot(drafts, self.vocab).to(q.dtype) if greedy else q
        new = own._replace(drafts=drafts, p=p, law=None if own.law is None else p)
        if self.reuse < 1:
            new = self._reused(own, new, now, q, accepted)
        source = (advance[..., None] + self.steps[:-1]).clamp(max=self.drafts)
        left = torch.minimum(now.room + 1, self.columns - now.filled).sub(advance).clamp(0, self.drafts)

        def shifted(x: Tensor, old: Tensor) -> Tensor:
            index = source.view(*source.shape, *[1] * (x.ndim - 3)).expand(*source.shape, *x.shape[3:])
            return torch.where(now.on.view(b, a, *[1] * (x.ndim - 2)), x.gather(2, index), old)

        law = None if new.law is None or own.law is None else shifted(new.law, own.law)
        kept = torch.where(now.on, left, own.kept)
        after = own._replace(drafts=shifted(new.drafts, own.drafts), p=shifted(new.p, own.p), kept=kept, law=law)
        return Decision(tokens, advance, self.steps < now.room[..., None], top, after)

    def _reused(self, own: RowState, new: RowState, now: Active, q: Tensor, accepted: Tensor) -> RowState:
        """``new`` drafts [B, A, K], where those that pass the threshold are the old ones."""
        assert own.law is not None
        assert new.law is not None
        old, law = F.pad(own.drafts, (0, 1)), F.pad(own.law, (0, 0, 0, 1))
        p = F.pad(own.p, (0, 0, 0, 1))
        passes = torch.where(p > 0, q > self.reuse * p, q > self.reuse)  # had y been drawn; a certain draft has p = 1
        stays = at(passes, old) & (self.steps > accepted[..., None]) & (self.steps < now.room[..., None])
        law = normalised(law * passes, law)
        return new._replace(
            drafts=torch.where(stays, old, new.drafts), p=torch.where(stays[..., None], p, new.p),
            law=torch.where(stays[..., None], law, new.law),
        )  # fmt: skip
