"""Orders in which tokens are drawn: raster, or several rows at once.

Several rows without drafts are ZipAR (arXiv 2412.04062), with a Jacobi window in each PJD (arXiv
2606.05703).
"""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from lanternbench.component import Choices, option
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.plain import RowSpec, TreeSpec, WindowSpec
from lanternbench.engine.rows import Active, Decision, Order, RowProposer, RowState, step
from lanternbench.engine.sampling import draw
from lanternbench.engine.simulation import simulate
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import Draft, chain
from lanternbench.engine.verify import (
    AcceptanceRule,
    Uniforms,
    at,
    lone_root,
    normalised,
    standard,
)
from lanternbench.registry import component, register

# options with drafts, and without
DRAFTED, ALONE = {"c", "reuse"}, {"window", "s_min", "auxiliary"}
REUSE = 0.5  # of the public code


@register("order", "raster")
class Raster(Order):
    """row by row, each token after all before it"""


@register("order", "rows")
class Rows(Order):
    """several rows at once, each ahead of the one below"""

    lossless: ClassVar[bool] = False

    window: Annotated[int, Field(ge=1, le=256)] | Literal["adaptive"] | None = option(
        None, "tokens by which a row leads the next, or adaptive; by default the target's", symbol="s", also="adaptive",
        unset=8, target_key="row_window",
    )  # fmt: skip
    s_min: int = option(4, "least lead of adaptive windows", small=1, ge=1, le=256)
    auxiliary: Literal["hidden", "seen"] = option(
        "hidden", "may tokens see the stand-in for a row's last token that begins the next row?"
    )
    c: int = option(9, "tokens that a row has when the next begins", small=2, ge=1, le=256)
    reuse: float = option(
        1.0, "ratio above which a waiting draft stays; 1: all are redrawn", also=0.5, ge=0, le=1
    )

    def unread_beside(self, choices: Choices) -> set[str]:
        if choices.tree == "none":
            return DRAFTED | (set() if self.adaptive else {"s_min"})
        return ALONE | ({"reuse"} if self.variant == "reference" else set())

    def refuses(self, choices: Choices) -> str | None:
        proposal, rule = (
            component(kind, getattr(choices, kind)) for kind in ("proposal", "acceptance")
        )
        if not proposal.in_rows:
            return f"rows are drawn without drafts or from Jacobi windows, and the proposal is '{choices.proposal}'"
        if not rule.by_draft:
            return f"a row commits drafts one by one, and the rule '{choices.acceptance}' does not judge them so"
        if self.variant == "reference" and choices.acceptance != "exact":
            return "the public code accepts as the rule 'exact' does; leave --acceptance or --variant out"
        if self.variant == "reference" and self.adaptive:
            return (
                "the public code has no adaptive window; leave --window adaptive or --variant out"
            )
        return None

    def apply(self, decoder: SpeculativeDecoder) -> SpeculativeDecoder:
        target, public, drafts = (
            decoder.target,
            self.variant == "reference",
            decoder.proposer.max_depth,
        )
        height, width = target.grid
        proposer: Any
        if drafts == 0:
            seen_from = -1 if public else width - 1 if self.auxiliary == "seen" else None
            proposer = ZipAR(
                target, self.lead, self.adaptive, None if target.row_width else seen_from
            )
        elif self.c >= width or height == 1:
            return decoder  # one row at a time: plain speculative Jacobi decoding
        else:
            proposer = RowWindows(target, self.c, drafts, REUSE if public else self.reuse, public)
        return replace(decoder, proposer=proposer, step=step)

    @property
    def adaptive(self) -> bool:
        return self.window == "adaptive"

    @property
    def lead(self) -> int:
        """Tokens by which a row leads the next without drafts, at least."""
        return self.s_min if self.adaptive else int(self.window or 0)

    def plain(self, draft: TreeSpec | WindowSpec) -> RowSpec | None:
        if self.variant != "paper":
            return None
        if window := getattr(draft, "window", 0):
            return RowSpec(self.c, window, reuse=self.reuse)
        return RowSpec(self.lead, 0, self.adaptive, self.auxiliary == "seen")


class ZipAR(RowProposer):
    """The first row is drawn alone, as by the public code; each other row is ``lead`` tokens ahead
    of the next.

    ``adaptive``: from ``lead`` tokens on, a row's first token is a candidate x.  With every
    further token of the row above it is predicted anew: kept with probability min(1,
    p_{k+1}(x)/p_k(x)), else redrawn from [p_{k+1} − p_k]₊, until it is kept or the row above is
    complete.
    """

    def __init__(self, target: Any, lead: int, adaptive: bool, seen_from: int | None):
        super().__init__(target, lead, 0, 1 + adaptive, target.grid[1], seen_from)
        self.adaptive, self.exact, self.stored, self.own_law = (
            adaptive,
            AcceptanceRule(),
            int(adaptive),
            adaptive,
        )
        self.alone, self.pair = (chain(n).to(target.device) for n in (0, 1))

    def decide(
        self, decoder: SpeculativeDecoder, rows: RowState, active: Active, q: Tensor, u: Tensor
    ) -> Decision:
        greedy, on, q, root = (
            decoder.warp.greedy,
            active.in_step,
            q.flatten(0, 1),
            torch.zeros_like(active.row),
        )
        drawn = lone_root(
            Draft(root.view(-1, 1), static=self.alone), q, u[..., :1].flatten(0, 1), greedy
        )
        token = drawn.token.view_as(active.row)
        if not self.adaptive:
            return Decision(token[..., None], on.long(), on[..., None] & False, on, rows)
        assert rows.law is not None
        p, empty, whole = (
            rows.p.flatten(0, 1),
            on & active.empty,
            active.filled_above == self.columns,
        )
        tested, candidate = empty & (rows.draft_count > 0), rows.drafts[..., 0]
        draft = Draft(torch.stack([root, candidate], -1).flatten(0, 1), p, self.pair)
        result = self.exact.verify(
            draft, q.expand(-1, 2, -1), Uniforms(u.flatten(0, 1), u), standard, greedy
        )
        accepted = result.accepted.view_as(active.row) > 0
        token = torch.where(
            tested, torch.where(accepted, candidate, result.token.view_as(token)), token
        )
        advance = on & (~empty | whole | (tested & accepted))
        residual = normalised((q - p).clamp(min=0), q).view_as(rows.p)
        law = torch.where(tested[..., None, None], residual, q.view_as(rows.p))
        count = (empty & ~advance).long()
        after = rows._replace(
            drafts=token[..., None], p=q.view_as(rows.p), law=law, draft_count=count
        )
        return Decision(token[..., None], advance.long(), tested[..., None], whole, after)


class RowWindows(RowProposer):
    """A window of ``window`` drafts slides over each row, never past the row above; in the top row
    as in SJD.

    The rows below commit accepted drafts only: a rejected draft and those after it wait, redrawn
    from the new predictions.  ``reuse``: a draft x after the first rejected one stays, with its
    old p, where min(1, q(x)/p(x)) is above this.  ``one_hot``: fresh drafts count as certain (the
    public code).

    Uniforms of a row: verification's, fresh drafts', redraws'.
    """

    def __init__(self, target: Any, lead: int, window: int, reuse: float, one_hot: bool):
        super().__init__(target, lead, window, 3 * window + 2)
        self.reuse, self.one_hot, self.vocab = reuse, one_hot, target.vocab
        self.static, self.own_law = chain(window).to(target.device), one_hot or reuse < 1

    def fill(self, state: DecodeState, rows: RowState, active: Active, u: Tensor) -> RowState:
        v, uniform = self.vocab, torch.full_like(rows.p, 1 / self.vocab)
        fresh = (u[..., self.inputs : self.inputs + self.drafts] * v).long().clamp(max=v - 1)
        p = F.one_hot(fresh, v).to(rows.p.dtype) if self.one_hot else uniform
        carried = self.steps[:-1] < rows.draft_count[..., None]
        law = None if rows.law is None else torch.where(carried[..., None], rows.law, uniform)
        drafts = torch.where(carried, rows.drafts, fresh)
        return rows._replace(drafts=drafts, p=torch.where(carried[..., None], rows.p, p), law=law)

    def decide(
        self, decoder: SpeculativeDecoder, rows: RowState, active: Active, q: Tensor, u: Tensor
    ) -> Decision:
        (b, a), k, greedy = active.row.shape, self.inputs, decoder.warp.greedy
        root = torch.zeros_like(active.row)[..., None]
        draft = Draft(
            torch.cat([root, rows.drafts], -1).flatten(0, 1), rows.p.flatten(0, 1), self.static
        )
        uniforms = Uniforms(u[..., :k].flatten(0, 1), u[..., k:].flatten(0, 1))
        result = decoder.rule.verify(draft, q.flatten(0, 1), uniforms, decoder.residual, greedy)
        if decoder.rates is not None:
            result = simulate(draft, result, decoder.rates, uniforms.verify[:, -1])
        accepted = torch.minimum(result.accepted.view(b, a), active.max_drafts)
        top = active.row == active.top[:, None]
        # elsewhere the place of a rejected draft waits
        ends = top & (active.filled + accepted < self.columns)
        advance = torch.where(active.in_step, accepted + ends, 0)
        tokens = torch.where(
            self.steps < accepted[..., None],
            F.pad(rows.drafts, (0, 1)),
            result.token.view(b, a, 1),
        )
        drafts = q.argmax(-1) if greedy else draw(q, u[..., k + self.drafts :])
        p = F.one_hot(drafts, self.vocab).to(q.dtype) if greedy else q
        new = rows._replace(drafts=drafts, p=p, law=None if rows.law is None else p)
        if self.reuse < 1:
            new = self._reused(rows, new, active, q, accepted)
        source = (advance[..., None] + self.steps[:-1]).clamp(max=self.drafts)
        left = (
            torch.minimum(active.max_drafts + 1, self.columns - active.filled)
            .sub(advance)
            .clamp(0, self.drafts)
        )

        def shifted(x: Tensor, old: Tensor) -> Tensor:
            index = source.view(*source.shape, *[1] * (x.ndim - 3)).expand(
                *source.shape, *x.shape[3:]
            )
            return torch.where(
                active.in_step.view(b, a, *[1] * (x.ndim - 2)), x.gather(2, index), old
            )

        law = None if new.law is None or rows.law is None else shifted(new.law, rows.law)
        count = torch.where(active.in_step, left, rows.draft_count)
        drafts, p = shifted(new.drafts, rows.drafts), shifted(new.p, rows.p)
        after = rows._replace(drafts=drafts, p=p, draft_count=count, law=law)
        return Decision(tokens, advance, self.steps < active.max_drafts[..., None], top, after)

    def _reused(
        self, rows: RowState, new: RowState, active: Active, q: Tensor, accepted: Tensor
    ) -> RowState:
        """``new`` drafts [B, A, K], where those that pass the threshold are the old ones."""
        assert rows.law is not None
        assert new.law is not None
        old, law, p = (
            F.pad(rows.drafts, (0, 1)),
            F.pad(rows.law, (0, 0, 0, 1)),
            F.pad(rows.p, (0, 0, 0, 1)),
        )
        # had y been drawn; a certain draft has p = 1
        passes = torch.where(p > 0, q > self.reuse * p, q > self.reuse)
        stays = (
            at(passes, old)
            & (self.steps > accepted[..., None])
            & (self.steps < active.max_drafts[..., None])
        )
        law = normalised(law * passes, law)
        p, law = (torch.where(stays[..., None], x, y) for x, y in ((p, new.p), (law, new.law)))
        return new._replace(drafts=torch.where(stays, old, new.drafts), p=p, law=law)
