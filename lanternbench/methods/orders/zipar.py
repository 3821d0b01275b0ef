"""ZipAR (arXiv 2412.04062): one token of each of several rows a step, drawn and committed at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.rows import Active, Decision, RowProposer, RowState
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import Draft, chain
from lanternbench.engine.verify import AcceptanceRule, Uniforms, lone_root, normalised, standard


class ZipAR(RowProposer):
    """The first row is drawn alone, as by the public code; each other row is ``lead`` tokens ahead of the next.

    ``adaptive``: from ``lead`` tokens on, a row's first token is only a candidate x, predicted anew with every further
    token of the row above: it is kept with probability min(1, p_{k+1}(x)/p_k(x)), else redrawn from [p_{k+1} − p_k]₊,
    until it is kept or the row above is complete.
    """

    def __init__(self, target: Any, lead: int, adaptive: bool, shown: int | None):
        super().__init__(target, lead, 0, 1 + adaptive, target.grid[1], shown)
        self.adaptive, self.exact = adaptive, AcceptanceRule()
        self.alone, self.pair = (chain(n).to(target.device) for n in (0, 1))

    def begin(self, state: DecodeState, stored: int | None = None, law: bool = False) -> RowState:
        return super().begin(state, int(self.adaptive), self.adaptive)

    def decide(self, decoder: SpeculativeDecoder, own: RowState, now: Active, q: Tensor, u: Tensor) -> Decision:
        greedy, q, none = decoder.warp.greedy, q.flatten(0, 1), torch.zeros_like(now.row)
        drawn = lone_root(Draft(none.view(-1, 1), static=self.alone), q, u[..., :1].flatten(0, 1), greedy)
        token = drawn.token.view_as(now.row)
        if not self.adaptive:
            return Decision(token[..., None], now.on.long(), now.on[..., None] & False, now.on, own)
        assert own.law is not None
        p, opening, whole = own.p.flatten(0, 1), now.on & now.opening, now.above == self.columns
        tested, candidate = opening & (own.kept > 0), own.drafts[..., 0]
        draft = Draft(torch.stack([none, candidate], -1).flatten(0, 1), p, self.pair)
        result = self.exact.verify(draft, q.expand(-1, 2, -1), Uniforms(u.flatten(0, 1), u), standard, greedy)
        kept = result.accepted.view_as(now.row) > 0
        token = torch.where(tested, torch.where(kept, candidate, result.token.view_as(token)), token)
        settled = now.on & (~opening | whole | (tested & kept))
        rest = normalised((q - p).clamp(min=0), q).view_as(own.p)
        law = torch.where(tested[..., None, None], rest, q.view_as(own.p))
        after = own._replace(
            drafts=token[..., None], p=q.view_as(own.p), law=law, kept=(opening & ~settled).long()
        )  # fmt: skip
        return Decision(token[..., None], settled.long(), tested[..., None], whole, after)
