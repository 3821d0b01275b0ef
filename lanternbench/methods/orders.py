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
from lanternbench.engine.chosen import lone_root
from lanternbench.engine.decode import Speculation, SpeculativeDecoder
from lanternbench.engine.draft import Draft, VerifyResult
from lanternbench.engine.plain import RowSpec, TreeSpec, WindowSpec
from lanternbench.engine.rows import Active, Decision, Order, RowDraft, RowState, RowStrategy
from lanternbench.engine.sampling import at, draw, normalised
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import chain
from lanternbench.engine.verify import ExactTest, Uniforms, standard
from lanternbench.models.target import Target
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
        speculation: Any = decoder.strategy
        strategy: RowStrategy
        if drafts == 0:
            seen_from = -1 if public else width - 1 if self.auxiliary == "seen" else None
            if target.row_width:
                seen_from = None
            strategy = ZipAR(speculation, target, self.lead, self.adaptive, seen_from)
        elif self.c >= width or height == 1:
            return decoder  # one row at a time: plain speculative Jacobi decoding
        else:
            reuse = REUSE if public else self.reuse
            strategy = RowWindows(speculation, target, (self.c, drafts), reuse, public)
        return replace(decoder, strategy=strategy)

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


class ZipAR(RowStrategy):
    """The first row is drawn alone, as by the public code; each other row is ``lead`` tokens ahead
    of the next.

    ``adaptive``: from ``lead`` tokens on, a row's first token is a candidate x.  With every
    further token of the row above it is predicted anew: kept with probability min(1,
    p_{k+1}(x)/p_k(x)), else redrawn from [p_{k+1} − p_k]₊, until it is kept or the row above is
    complete.
    """

    def __init__(
        self,
        speculation: Speculation,
        target: Target,
        lead: int,
        adaptive: bool,
        seen_from: int | None,
    ):
        super().__init__(speculation, target, lead, 0, 1 + adaptive, target.grid[1], seen_from)
        self.adaptive = adaptive
        self.exact = ExactTest()
        self.stored = int(adaptive)
        self.own_law = adaptive
        self.alone = chain(0).to(target.device)
        self.pair = chain(1).to(target.device)

    def judge(self, state: DecodeState, draft: RowDraft, q: Tensor, u: Tensor) -> Decision:
        active = draft.active
        in_step = active.in_step
        greedy = state.warp.greedy
        q = q.flatten(0, 1)  # [B · A, 1, V]
        root = torch.zeros_like(active.row)
        single = Draft(root.view(-1, 1), static=self.alone)
        drawn = lone_root(single, q, u[..., :1].flatten(0, 1), greedy).token.view_as(active.row)
        if not self.adaptive:
            untested = in_step[..., None] & False
            return Decision(drawn[..., None], in_step.long(), untested, in_step, draft.rows)
        return self._judge_candidates(draft, q, u, drawn, greedy)

    def _judge_candidates(
        self, draft: RowDraft, q: Tensor, u: Tensor, drawn: Tensor, greedy: bool
    ) -> Decision:
        """``judge`` with adaptive windows; ``drawn`` [B, A] from q [B · A, 1, V]."""
        active = draft.active
        rows = draft.rows
        empty = active.in_step & active.empty
        above_is_complete = active.filled_above == self.columns
        tested = empty & (rows.draft_count > 0)
        candidate = rows.drafts[..., 0]
        p = rows.p.flatten(0, 1)
        nodes = torch.stack([torch.zeros_like(candidate), candidate], -1).flatten(0, 1)
        uniforms = Uniforms(u.flatten(0, 1), u)
        pair = Draft(nodes, p, self.pair)
        result = self.exact.verify(pair, q.expand(-1, 2, -1), uniforms, standard, greedy)
        accepted = result.accepted.view_as(candidate) > 0
        after_test = torch.where(accepted, candidate, result.token.view_as(candidate))
        token = torch.where(tested, after_test, drawn)
        advance = active.in_step & (~empty | above_is_complete | (tested & accepted))
        q_rows = q.view_as(rows.p)
        residual = normalised((q - p).clamp(min=0), q).view_as(rows.p)
        after = rows._replace(
            drafts=token[..., None],
            p=q_rows,
            law=torch.where(tested[..., None, None], residual, q_rows),
            draft_count=(empty & ~advance).long(),
        )
        return Decision(
            token[..., None], advance.long(), tested[..., None], above_is_complete, after
        )


class RowWindows(RowStrategy):
    """A window of drafts slides over each row, never past the row above; in the top row as in SJD.

    The rows below commit accepted drafts only: a rejected draft and those after it wait, redrawn
    from the new predictions.  ``reuse``: a draft x after the first rejected one stays, with its
    old p, if min(1, q(x)/p(x)) is above this.  ``one_hot``: fresh drafts count as certain (the
    public code).

    Uniforms of a row: verification's, fresh drafts', redraws'.
    """

    def __init__(
        self,
        speculation: Speculation,
        target: Target,
        sizes: tuple[int, int],
        reuse: float,
        one_hot: bool,
    ):
        """``sizes``: tokens by which a row leads the next, and drafts of a window."""
        lead, window = sizes
        super().__init__(speculation, target, lead, window, 3 * window + 2)
        self.reuse = reuse
        self.one_hot = one_hot
        self.vocab = target.vocab
        self.static = chain(window).to(target.device)
        self.own_law = one_hot or reuse < 1

    def fill(self, rows: RowState, u: Tensor) -> RowState:
        v = self.vocab
        uniform = torch.full_like(rows.p, 1 / v)
        u_fresh = u[..., self.inputs : self.inputs + self.drafts]
        fresh = (u_fresh * v).long().clamp(max=v - 1)
        p = F.one_hot(fresh, v).to(rows.p.dtype) if self.one_hot else uniform
        carried = self.steps[:-1] < rows.draft_count[..., None]
        law = None
        if rows.law is not None:
            law = torch.where(carried[..., None], rows.law, uniform)
        return rows._replace(
            drafts=torch.where(carried, rows.drafts, fresh),
            p=torch.where(carried[..., None], rows.p, p),
            law=law,
        )

    def judge(self, state: DecodeState, draft: RowDraft, q: Tensor, u: Tensor) -> Decision:
        active = draft.active
        rows = draft.rows
        greedy = state.warp.greedy
        verified = self.verify(draft, q, u, greedy)
        accepted = torch.minimum(verified.accepted.view_as(active.row), active.max_drafts)
        top = active.row == active.top[:, None]
        # elsewhere the place of a rejected draft waits
        ends = top & (active.filled + accepted < self.columns)
        advance = torch.where(active.in_step, accepted + ends, 0)
        is_accepted = self.steps < accepted[..., None]
        last = verified.token.view(*active.row.shape, 1)
        tokens = torch.where(is_accepted, F.pad(rows.drafts, (0, 1)), last)
        redrawn = self.redrawn(rows, q, u, greedy)
        if self.reuse < 1:
            redrawn = self._reused(rows, redrawn, active, q, accepted)
        after = self.shifted(rows, redrawn, active, advance)
        tested = self.steps < active.max_drafts[..., None]
        return Decision(tokens, advance, tested, top, after)

    def verify(self, draft: RowDraft, q: Tensor, u: Tensor, greedy: bool) -> VerifyResult:
        """Verify each row's window as a chain: [B · A] results."""
        root = torch.zeros_like(draft.active.row)[..., None]
        tokens = torch.cat([root, draft.rows.drafts], -1).flatten(0, 1)
        chains = Draft(tokens, draft.rows.p.flatten(0, 1), self.static)
        k = self.inputs
        uniforms = Uniforms(u[..., :k].flatten(0, 1), u[..., k:].flatten(0, 1))
        return self.speculation.verify(chains, q.flatten(0, 1), uniforms, greedy)

    def redrawn(self, rows: RowState, q: Tensor, u: Tensor, greedy: bool) -> RowState:
        """Drafts [B, A, K] drawn from q, one after each input."""
        if greedy:
            drafts = q.argmax(-1)
            p = F.one_hot(drafts, self.vocab).to(q.dtype)
        else:
            drafts = draw(q, u[..., self.inputs + self.drafts :])
            p = q
        return rows._replace(drafts=drafts, p=p, law=None if rows.law is None else p)

    def shifted(self, rows: RowState, new: RowState, active: Active, advance: Tensor) -> RowState:
        """Move the ``new`` drafts [B, A, K] to the places after the committed tokens; a row that
        is not in this step keeps its old ones.
        """
        source = (advance[..., None] + self.steps[:-1]).clamp(max=self.drafts)
        places = torch.minimum(active.max_drafts + 1, self.columns - active.filled)
        left = places.sub(advance).clamp(0, self.drafts)

        def moved(x: Tensor, old: Tensor) -> Tensor:
            further = x.shape[3:]
            index = source.view(*source.shape, *[1] * len(further)).expand(*source.shape, *further)
            in_step = active.in_step.view(*active.in_step.shape, *[1] * (x.ndim - 2))
            return torch.where(in_step, x.gather(2, index), old)

        law = None
        if new.law is not None and rows.law is not None:
            law = moved(new.law, rows.law)
        return rows._replace(
            drafts=moved(new.drafts, rows.drafts),
            p=moved(new.p, rows.p),
            draft_count=torch.where(active.in_step, left, rows.draft_count),
            law=law,
        )

    def _reused(
        self, rows: RowState, new: RowState, active: Active, q: Tensor, accepted: Tensor
    ) -> RowState:
        """``new`` drafts [B, A, K], but the old ones if they pass the threshold."""
        assert rows.law is not None
        assert new.law is not None
        old = F.pad(rows.drafts, (0, 1))
        law = F.pad(rows.law, (0, 0, 0, 1))
        p = F.pad(rows.p, (0, 0, 0, 1))
        # had y been drawn; a certain draft has p = 1
        passes = torch.where(p > 0, q > self.reuse * p, q > self.reuse)
        after_rejection = self.steps > accepted[..., None]
        drafted = self.steps < active.max_drafts[..., None]
        stays = at(passes, old) & after_rejection & drafted
        law = normalised(law * passes, law)
        return new._replace(
            drafts=torch.where(stays, old, new.drafts),
            p=torch.where(stays[..., None], p, new.p),
            law=torch.where(stays[..., None], law, new.law),
        )
