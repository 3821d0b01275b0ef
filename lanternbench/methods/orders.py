"""Orders in which tokens are drawn: raster, or several rows at once.

Several rows without drafts are ZipAR (arXiv 2412.04062), with a Jacobi window in each PJD (arXiv
2606.05703).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from lanternbench.component import Choices, option
from lanternbench.engine.decode import AnyStrategy, Speculation
from lanternbench.engine.diagonals import Diagonals, DiagonalStrategy
from lanternbench.engine.rows import (
    Active,
    Decision,
    Order,
    RowDraft,
    RowGeometry,
    RowState,
    RowStrategy,
)
from lanternbench.engine.sampling import Warp, at, normalised
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import Draft, StaticTree, VerifyResult, chain
from lanternbench.engine.verify import Uniforms
from lanternbench.errors import UserError
from lanternbench.methods.proposals.drafting import BranchedRoots
from lanternbench.methods.proposals.jacobi import uniform_tokens
from lanternbench.methods.proposals.redraws import Coupled, maximal
from lanternbench.models.target import Target
from lanternbench.registry import component, register

DRAFTED = {"c", "reuse"}  # options with drafts
ALONE = {"window", "s_min", "auxiliary"}  # options without drafts
REUSE = 0.5  # of the public code


@register("order", "raster")
class Raster(Order):
    """row by row, each token after all before it"""

    def build(self, target: Target, speculation: Speculation) -> AnyStrategy:
        return speculation


@register("order", "rows")
class Rows(Order):
    """several rows at once, each ahead of the one below"""

    lossless = False

    window: Annotated[int, Field(ge=1, le=256)] | Literal["adaptive"] | None = option(
        None, "tokens by which a row leads the next, or adaptive (default: the target's)", symbol="s", also="adaptive",
        unset=8, target_key="row_window",
    )  # fmt: skip
    s_min: int = option(4, "least lead of adaptive windows", small=1, ge=1, le=256)
    auxiliary: Literal["hidden", "seen"] = option(
        "hidden", "whether tokens see the stand-in that begins a row"
    )
    c: int = option(9, "tokens that a row has when the next begins", small=2, ge=1, le=256)
    reuse: float = option(
        1.0, "ratio above which a waiting draft stays; 1: all are redrawn", also=0.5, ge=0, le=1
    )

    def unread_beside(self, choices: Choices) -> set[str]:
        if choices.tree == "none":
            return DRAFTED if self.adaptive else DRAFTED | {"s_min"}
        return ALONE | {"reuse"} if self.variant == "reference" else ALONE

    def refuses(self, choices: Choices) -> str | None:
        if not component("proposal", choices.proposal).in_rows:
            return (
                "rows are drawn without drafts or from Jacobi windows, and the proposal is "
                f"'{choices.proposal}'"
            )
        if not component("acceptance", choices.acceptance).by_draft:
            return (
                "a row commits drafts one by one, and the rule "
                f"'{choices.acceptance}' does not judge them one by one"
            )
        if self.variant == "paper":
            return None
        if choices.acceptance != "exact":
            return (
                "the public code accepts as the rule 'exact' does; leave --acceptance or "
                "--variant out"
            )
        if self.adaptive:
            return (
                "the public code has no adaptive window; leave --window adaptive or --variant out"
            )
        return None

    def build(self, target: Target, speculation: Speculation) -> AnyStrategy:
        height, width = target.grid
        public = self.variant == "reference"
        drafts = speculation.size.max_depth
        if drafts == 0:
            return self._alone(target, speculation)
        if self.c >= width or height == 1:
            return speculation  # one row at a time: plain speculative Jacobi decoding
        return RowWindows(
            speculation=speculation,
            rows=RowGeometry.of(target, self.c, drafts),
            vocab=target.vocab,
            static=chain(drafts).to(target.device),
            reuse=REUSE if public else self.reuse,
            one_hot=public,
        )

    def _alone(self, target: Target, speculation: Speculation) -> AnyStrategy:
        """Return what decodes without drafts."""
        width = target.grid[1]
        seen_from: int | None = None
        if not target.row_width:
            if self.variant == "reference":
                seen_from = -1
            elif self.auxiliary == "seen":
                seen_from = width - 1
        rows = RowGeometry.of(target, self.lead, 0, seen_from)
        rows.need[1:2].fill_(width)  # the first row is drawn alone
        if self.adaptive:
            return AdaptiveZipAR(speculation, rows)
        return ZipAR(speculation, rows)

    @property
    def adaptive(self) -> bool:
        return self.window == "adaptive"

    @property
    def lead(self) -> int:
        """Tokens by which a row leads the next without drafts, at least."""
        return self.s_min if self.adaptive else int(self.window or 0)


@register("order", "diagonal")
class DiagonalOrder(Order):
    """whole anti-diagonals at once, by FlashAR's vertical branch"""

    lossless = False

    mask: Literal["published", "raster"] = option(
        "published",
        "published, or raster: a token sees only tokens that are earlier in raster order",
    )

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """Published, a token also depends on tokens that are later in raster order."""
        return self.mask == "raster"

    def refuses(self, choices: Choices) -> str | None:
        if choices.proposal == "flashar":
            return None
        return (
            "a diagonal is drawn from a vertical branch, and the proposal is "
            f"'{choices.proposal}': give --proposal flashar"
        )

    def build(self, target: Target, speculation: Speculation) -> AnyStrategy:
        """Raises UserError for a target that draws several grids."""
        if len(target.grids) > 1:
            raise UserError(
                f"target '{target.name}' draws a smaller image first, which has no diagonals of "
                "its own: choose another order"
            )
        grid = Diagonals.of(target.grid, self.mask == "raster", target.device)
        gap = self.variant == "reference"
        branch = cast(BranchedRoots, speculation.proposer)  # see ``refuses``
        return DiagonalStrategy(speculation, branch.net, grid, target.model, gap)


@dataclass(frozen=True, eq=False)
class ZipAR(RowStrategy):
    """Draws one token in each row; a row is ``lead`` tokens ahead of the next.

    The first row is drawn alone, as the public code does.
    """

    speculation: Speculation
    rows: RowGeometry

    per_row = 1
    stored = 0
    laws = 1

    def judge(self, state: DecodeState, draft: RowDraft, q: Tensor, u: Tensor) -> Decision:
        in_step = draft.active.in_step
        tokens = state.warp.draw(q, u)
        untested = torch.zeros_like(tokens, dtype=torch.bool)
        return Decision(tokens, in_step.long(), untested, in_step, draft.rows)


@dataclass(frozen=True, eq=False)
class AdaptiveZipAR(ZipAR):
    """Draws a row's first token as a candidate x once the row above has ``lead`` tokens.

    With every further token of the row above, x is predicted anew: it is kept with probability
    min(1, p_{k+1}(x)/p_k(x)), else redrawn from [p_{k+1} − p_k]₊, until it is kept or the row above
    is complete.
    """

    per_row = 2  # one that draws, one that keeps
    stored = 1
    laws = 2

    def judge(self, state: DecodeState, draft: RowDraft, q: Tensor, u: Tensor) -> Decision:
        active = draft.active
        rows = draft.rows
        drawn = state.warp.draw(q, u[..., :1])
        coupled = self.coupled(rows, q, u, state.warp.greedy)
        empty = active.in_step & active.empty
        above_is_complete = active.filled_above == self.rows.width
        tested = empty & (rows.draft_count > 0)
        was_tested = tested[..., None]
        token = torch.where(was_tested, coupled.tokens, drawn)
        is_kept = (was_tested & coupled.accepted)[..., 0]
        advance = active.in_step & (~empty | above_is_complete | is_kept)
        law = torch.where(was_tested[..., None], normalised(coupled.residual, q), q)
        after = rows._replace(
            drafts=token,
            laws=torch.stack([q, law], 3),
            draft_count=(empty & ~advance).long(),
        )
        return Decision(token, advance.long(), was_tested, above_is_complete, after)

    def coupled(self, rows: RowState, q: Tensor, u: Tensor, greedy: bool) -> Coupled:
        """Keep each row's candidate, or redraw it from q [B, A, 1, V]."""
        if greedy:
            best = q.argmax(-1)
            return Coupled(best, rows.drafts == best, q)
        return maximal(rows.drafts, rows.p, q, u[..., 1:], u[..., :1])


@dataclass(frozen=True, eq=False)
class RowWindows(RowStrategy):
    """Slides a window of drafts over each row, never past the row above; over the top row as SJD.

    The rows below commit only accepted drafts: a rejected draft and those after it wait, redrawn
    from the new predictions.  A row's uniforms: for verification, for fresh drafts, for redraws.
    """

    speculation: Speculation
    rows: RowGeometry
    vocab: int
    static: StaticTree
    # a draft x after the first rejected one keeps its old p if min(1, q(x)/p(x)) exceeds this
    reuse: float
    one_hot: bool  # whether fresh drafts count as certain (the public code)

    @property
    def per_row(self) -> int:  # type: ignore[override]
        return 3 * self.rows.drafts + 2

    @property
    def stored(self) -> int:  # type: ignore[override]
        return self.rows.drafts

    @property
    def laws(self) -> int:  # type: ignore[override]
        if self.one_hot or self.reuse < 1:
            return 2
        return 1

    def fill(self, rows: RowState, u: Tensor) -> RowState:
        k = self.rows.inputs
        fresh = uniform_tokens(u[..., k : k + self.rows.drafts], self.vocab)
        laws = torch.full_like(rows.laws, 1 / self.vocab)
        if self.one_hot:
            laws[..., 0, :] = F.one_hot(fresh, self.vocab)
        carried = self.rows.steps[:-1] < rows.draft_count[..., None]
        return rows._replace(
            drafts=torch.where(carried, rows.drafts, fresh),
            laws=torch.where(carried[..., None, None], rows.laws, laws),
        )

    def judge(self, state: DecodeState, draft: RowDraft, q: Tensor, u: Tensor) -> Decision:
        active = draft.active
        rows = draft.rows
        steps = self.rows.steps
        verified = self.verify(draft, q, u, state.warp.greedy)
        accepted = torch.minimum(verified.accepted.view_as(active.row), active.max_drafts)
        top = active.row == active.top[:, None]
        # in other rows the place of a rejected draft waits
        ends = top & (active.filled + accepted < self.rows.width)
        advance = torch.where(active.in_step, accepted + ends, 0)
        last = verified.token.view(*active.row.shape, 1)
        drafted = F.pad(rows.drafts, (0, 1))
        tokens = torch.where(steps < accepted[..., None], drafted, last)
        redrawn = self.redrawn(rows, q, u, state.warp)
        if self.reuse < 1:
            redrawn = self._reused(rows, redrawn, active, q, accepted)
        after = self.shifted(rows, redrawn, active, advance)
        tested = steps < active.max_drafts[..., None]
        return Decision(tokens, advance, tested, top, after)

    def verify(self, draft: RowDraft, q: Tensor, u: Tensor, greedy: bool) -> VerifyResult:
        """Verify each row's window as a chain: [B · A] results."""
        k = self.rows.inputs
        root = torch.zeros_like(draft.active.row)[..., None]
        tokens = torch.cat([root, draft.rows.drafts], -1).flatten(0, 1)
        chains = Draft(tokens, draft.rows.p.flatten(0, 1), self.static)
        uniforms = Uniforms(u[..., :k].flatten(0, 1), u[..., k:].flatten(0, 1))
        return self.speculation.verify(chains, q.flatten(0, 1), uniforms, greedy)

    def redrawn(self, rows: RowState, q: Tensor, u: Tensor, warp: Warp) -> RowState:
        """Draw drafts [B, A, K] from q, one after each input."""
        drafts = warp.draw(q, u[..., self.rows.inputs + self.rows.drafts :])
        p = q
        if warp.greedy:
            p = F.one_hot(drafts, self.vocab).to(q.dtype)
        laws = p.unsqueeze(3).expand(-1, -1, -1, self.laws, -1)
        return rows._replace(drafts=drafts, laws=laws)

    def shifted(self, rows: RowState, new: RowState, active: Active, advance: Tensor) -> RowState:
        """Move the ``new`` drafts [B, A, K] to the places after the committed tokens.

        A row that is not in this step keeps its old ones.
        """
        drafts = self.rows.drafts
        source = advance[..., None] + self.rows.steps[:-1]
        source = source.clamp(max=drafts)
        law_source = source[..., None, None].expand_as(rows.laws)
        free = self.rows.width - active.filled
        places = torch.minimum(active.max_drafts + 1, free)
        left = places.sub(advance).clamp(0, drafts)
        in_step = active.in_step[..., None]
        moved_laws = new.laws.gather(2, law_source)
        return rows._replace(
            drafts=torch.where(in_step, new.drafts.gather(2, source), rows.drafts),
            laws=torch.where(in_step[..., None, None], moved_laws, rows.laws),
            draft_count=torch.where(active.in_step, left, rows.draft_count),
        )

    def _reused(
        self,
        rows: RowState,
        new: RowState,
        active: Active,
        q: Tensor,
        accepted: Tensor,
    ) -> RowState:
        """Return the ``new`` drafts [B, A, K], or the old ones that pass the threshold."""
        steps = self.rows.steps
        old = F.pad(rows.drafts, (0, 1))
        p, law = F.pad(rows.laws, (0, 0, 0, 0, 0, 1)).unbind(3)
        # whether each token would pass if it were the draft; a certain draft has p = 1
        passes = torch.where(p > 0, q > self.reuse * p, q > self.reuse)
        after_rejection = steps > accepted[..., None]
        drafted = steps < active.max_drafts[..., None]
        stays = at(passes, old) & after_rejection & drafted
        law = normalised(law * passes, law)
        laws = torch.stack([p, law], 3)
        return new._replace(
            drafts=torch.where(stays, old, new.drafts),
            laws=torch.where(stays[..., None, None], laws, new.laws),
        )
