"""Several rows of the image at once: ZipAR without drafts, parallel Jacobi decoding with a Jacobi window."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lanternbench.component import Choices, option
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.order import Order
from lanternbench.engine.plain import RowSpec, TreeSpec, WindowSpec
from lanternbench.engine.rows import step
from lanternbench.methods.orders.pjd import RowWindows
from lanternbench.methods.orders.zipar import ZipAR
from lanternbench.registry import component, register

DRAFTED, ALONE = {"c", "reuse"}, {"window", "s_min", "auxiliary"}  # options with drafts, and without
REUSE = 0.5  # of the public code


@register("order", "rows")
class Rows(Order):
    """several rows at once, each ahead of the one below"""

    lossless: ClassVar[bool] = False

    window: Annotated[int, Field(ge=1, le=256)] | Literal["adaptive"] | None = option(
        None,
        "tokens by which a row leads the next, or adaptive; by default the target's",
        symbol="s",
        also="adaptive",
        unset=8,
        target_key="row_window",
    )
    s_min: int = option(4, "least lead of adaptive windows", small=1, ge=1, le=256)
    auxiliary: Literal["hidden", "seen"] = option(
        "hidden", "may tokens see the stand-in for a row's last token that begins the next row?"
    )
    c: int = option(9, "tokens that a row has when the next begins", small=2, ge=1, le=256)
    reuse: float = option(1.0, "ratio above which a waiting draft stays; 1: all are redrawn", also=0.5, ge=0, le=1)

    def unread_beside(self, choices: Choices) -> set[str]:
        if choices.tree == "none":
            return DRAFTED | (set() if self.window == "adaptive" else {"s_min"})
        return ALONE | ({"reuse"} if self.variant == "reference" else set())

    def refuses(self, choices: Choices) -> str | None:
        proposal, rule = (component(kind, getattr(choices, kind)) for kind in ("proposal", "acceptance"))
        if not proposal.in_rows:
            return f"rows are drawn without drafts or from Jacobi windows, and the proposal is '{choices.proposal}'"
        if not rule.by_draft:
            return f"a row commits drafts one by one, and the rule '{choices.acceptance}' does not judge them so"
        if self.variant == "reference" and choices.acceptance != "exact":
            return "the public code accepts as the rule 'exact' does; leave --acceptance or --variant out"
        if self.variant == "reference" and self.window == "adaptive":
            return "the public code has no adaptive window; leave --window adaptive or --variant out"
        return None

    def apply(self, decoder: SpeculativeDecoder) -> SpeculativeDecoder:
        target, public, drafts = decoder.target, self.variant == "reference", decoder.proposer.max_depth
        height, width = target.grid
        rows: Any
        if drafts == 0:
            lead = self.s_min if self.window == "adaptive" else int(self.window or 0)
            shown = width - 1 if self.auxiliary == "seen" and not target.row_width else None
            rows = ZipAR(target, lead, self.window == "adaptive", -1 if public and not target.row_width else shown)
        else:
            if self.c >= width or height == 1:
                return decoder  # one row at a time: plain speculative Jacobi decoding
            rows = RowWindows(target, self.c, drafts, REUSE if public else self.reuse, public, None)
        return replace(decoder, proposer=rows, step=step)

    def plain(self, draft: TreeSpec | WindowSpec) -> RowSpec | None:
        if self.variant != "paper":
            return None
        if window := getattr(draft, "window", 0):
            return RowSpec(self.c, window, reuse=self.reuse)
        adaptive = self.window == "adaptive"
        return RowSpec(self.s_min if adaptive else int(self.window or 0), 0, adaptive, self.auxiliary == "seen")
