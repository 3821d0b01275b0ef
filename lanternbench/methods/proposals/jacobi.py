"""Speculative Jacobi decoding (SJD, arXiv 2410.01699) and plain Jacobi: the target drafts for itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.sampling import draw
from lanternbench.engine.state import Session
from lanternbench.engine.tree import static_tree
from lanternbench.engine.verify import Draft, Verdict, rows_at

INITS = ("random", "horizontal-repeat", "vertical-repeat", "horizontal-sample", "vertical-sample")


class Jacobi:
    """A window of W drafted tokens slides over the image.

    After a step, every window position that was not committed is redrawn from what the target just said about it and
    keeps that distribution as its p.  Tokens that enter the window come from ``init``: uniformly ``random``; or a
    committed neighbour (left in the row, or above), copied (``repeat``, p one-hot) or redrawn from the neighbour's own
    distribution (``sample``).

    ``fixed_point`` is plain Jacobi decoding: position i is always redrawn with the same uniform, and a draft is
    accepted while the redraw leaves it unchanged, so the output is the autoregressive one for these uniforms.
    ``one_hot``: tokens that enter the window count as certain whatever ``init`` drew them from (the reference code).
    """

    width, fixed = 1, False

    def __init__(self, window: int, init: str, fixed_point: bool = False, one_hot: bool = False):
        self.window, self.init, self.fixed_point, self.one_hot = window, init, fixed_point, one_hot
        self.static = static_tree(f"chain-{window}")
        self.nodes = self.reach = window + 1
        self.uniforms = 2 * window + 1

    def begin(self, session: Session, hidden: Tensor) -> None:
        b, v, w = session.batch, session.target.vocab, self.window
        self.static = self.static.to(session.device)
        self.columns = torch.arange(w, device=session.device)
        self.drafts = torch.zeros(b, w, dtype=torch.long, device=session.device)
        self.p = torch.full((b, w, v), 1.0 / v, device=session.device)
        self.kept = torch.zeros(b, dtype=torch.long, device=session.device)  # window positions that carry over
        if self.init.endswith("sample"):
            self.known = torch.zeros(b, session.limit, v, device=session.device)  # q at every committed position
            self.known[:, 0] = session.first

    def keep(self, rows: Tensor, prompts: list[int]) -> None:
        for name in ("drafts", "p", "kept", *(("known",) if self.init.endswith("sample") else ())):
            setattr(self, name, getattr(self, name)[prompts])

    def draft(self, session: Session, u: Tensor) -> Draft:
        fresh, p_fresh = self._fresh(session, u[:, : self.window])
        if self.one_hot:
            p_fresh = F.one_hot(fresh, p_fresh.shape[-1]).float()
        carried = self.columns < self.kept[:, None]
        self.drafts = torch.where(carried, self.drafts, fresh)
        self.p = torch.where(carried[..., None], self.p, p_fresh)
        return Draft(torch.cat([session.root[:, None], self.drafts], 1), self.static.tree, self.p, self.static)

    def _fresh(self, session: Session, u: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, W] and their p [B, W, V], as if every window position were new."""
        v, width = session.target.vocab, session.target.grid[1]
        random, uniform = (u * v).long().clamp(max=v - 1), torch.full_like(self.p, 1.0 / v)
        if self.init == "random":
            return random, uniform
        at, end = session.length[:, None] + self.columns, session.length[:, None]
        if self.init.startswith("horizontal"):
            source = torch.minimum(at, end) - 1  # the nearest committed token to the left
            inside = source // width == at // width
        else:
            source = at - width
            inside = (source >= 0) & (source < end)
        source = source.clamp(0, session.limit - 1)
        if self.init.endswith("repeat"):
            tokens = session.tokens.gather(1, source)
            p = F.one_hot(tokens, v).float()
        else:
            p = rows_at(self.known, source)
            tokens = draw(p, u)
        return torch.where(inside, tokens, random), torch.where(inside[..., None], p, uniform)

    def redraw(self, session: Session, q: Tensor, u: Tensor) -> Tensor:
        """A token from each q [B, W + 1, V]; plain Jacobi draws a position always with the same uniform."""
        if session.warp.greedy:
            return q.argmax(-1)
        if not self.fixed_point:
            return draw(q, u[:, self.window :])
        at = session.length[:, None] + torch.arange(self.nodes, device=q.device)
        return draw(q, session.uniforms[..., 0].gather(1, at.clamp(max=session.limit)))

    def unchanged(self, session: Session, draft: Draft, q: Tensor, u: Tensor) -> Verdict:
        """Plain Jacobi's verdict: accept the drafts that the redraw repeats, then take its next token."""
        again = self.redraw(session, q, u)
        accepted = (again[:, :-1] == draft.tokens[:, 1:]).cumprod(1).sum(1)
        path = torch.minimum(torch.arange(self.nodes, device=q.device), accepted[:, None])
        return Verdict(path, accepted, again.gather(1, accepted[:, None])[:, 0], torch.ones_like(draft.tokens))

    def learn(self, session: Session, draft: Draft, verdict: Verdict, q: Tensor, u: Tensor) -> None:
        """Before the commit: shift the window past what it accepts; the rest is redrawn from q."""
        tokens = self.redraw(session, q, u)
        p = F.one_hot(tokens, q.shape[-1]).float() if session.warp.greedy else q
        source = (verdict.accepted[:, None] + 1 + self.columns).clamp(max=self.window)
        self.drafts = tokens.gather(1, source)
        self.p = rows_at(p, source)
        self.kept = self.window - verdict.accepted
        if self.init.endswith("sample"):
            at = (session.length[:, None] + torch.arange(self.nodes, device=q.device)).clamp(max=session.limit - 1)
            self.known.scatter_(1, at[..., None].expand(-1, -1, q.shape[-1]), q)
