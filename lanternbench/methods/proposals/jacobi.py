"""Proposals without a drafter: nothing, or the target drafts for itself, as in SJD (arXiv 2410.01699) and plain Jacobi.

A window of W drafted tokens slides over the image.  After a step, every window position that was not committed is
redrawn from the target's new distribution there and keeps it as its p.  Tokens that enter the window come from
``init``: uniformly ``random``; or a committed neighbour (left in the row, or above), copied (``repeat``, p one-hot) or
redrawn from the neighbour's own distribution (``sample``).  In the public code tokens that enter the window count as
certain, whatever they were drawn from.
"""

from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Choices, Prepared, option
from lanternbench.engine.plain import TreeSpec, WindowSpec
from lanternbench.engine.proposal import Proposal, TreePolicy
from lanternbench.engine.sampling import draw
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft, StaticTree, chain
from lanternbench.engine.verify import AcceptanceRule, rows_at
from lanternbench.models.grids import neighbours
from lanternbench.models.target import Target
from lanternbench.registry import register


@register("proposal", "none")
class NoDraft(Proposal):
    """nothing: plain autoregressive decoding"""

    tree_names: ClassVar[tuple[str, ...] | None] = ("none",)
    tree_is_own: ClassVar[bool] = True
    in_rows: ClassVar[bool] = True

    static = Prepared[StaticTree]()

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> Self:
        return self.ready(static=chain(0).to(target.device))

    def refuses(self, choices: Choices) -> str | None:
        if choices.acceptance != "exact" or choices.residual != "standard":
            return "autoregressive decoding drafts nothing, so there is nothing to accept"
        return super().refuses(choices)

    def draft(self, state: DecodeState, proposer_state: Any, u: Tensor) -> Draft:
        return Draft(state.now.root[:, None], static=self.static)

    def plain(self, tree: TreePolicy) -> TreeSpec:
        return TreeSpec()


class Window(NamedTuple):
    """The drafted tokens after the committed prefix; the first ``draft_count`` carry over from the last step."""

    drafts: Tensor  # [B, W]
    p: Tensor  # [B, W, V] the distribution that each was drawn from
    draft_count: Tensor  # [B]
    known: Tensor | None  # [B, L, V] q at every committed position, where ``init`` samples from it; written in place


@register("proposal", "jacobi")
class Jacobi(Proposal):
    """the target itself: a window of tokens, redrawn in every step"""

    tree_names: ClassVar[tuple[str, ...] | None] = ("chain",)
    tree_is_own: ClassVar[bool] = True
    in_rows: ClassVar[bool] = True
    tuned: ClassVar[dict[str, tuple[int, ...]]] = {"window": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}

    init: Literal["random", "horizontal-repeat", "vertical-repeat", "horizontal-sample", "vertical-sample"] = option(
        "random", "what enters SJD's window"
    )
    window: int = option(16, "drafted tokens per step", small=2, ge=1, le=256)

    by_position = Prepared(False)  # is a position always redrawn with the same uniform (plain Jacobi decoding)?
    vocab = Prepared[int]()
    row = Prepared[Tensor]()  # [L + W] the number of each token's row
    above = Prepared[Tensor]()  # [L + W] the token above each, or -1
    static = Prepared[StaticTree]()
    columns = Prepared[Tensor]()  # [W + 1] 0 … W

    def unread_beside(self, choices: Choices) -> set[str]:
        return {"init"} if choices.order != "raster" else set()  # windows of several rows are filled at random

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> Self:
        w = self.window
        row, above = torch.tensor(neighbours(target.grids, target.length + w), device=target.device)
        return self.ready(
            by_position=rule.by_position, vocab=target.vocab, row=row, above=above,
            static=chain(w).to(target.device), columns=torch.arange(w + 1, device=target.device),
            nodes=w + 1, max_step_slots=w + 1, max_depth=w, width=1, uniforms=2 * w + 1, update_uniforms=w + 1,
        )  # fmt: skip

    def plain(self, tree: TreePolicy) -> WindowSpec | None:
        return WindowSpec(self.window, self.init, one_hot=self.variant == "reference")

    def begin(self, state: DecodeState) -> Window:
        b, v, w = state.batch, self.vocab, self.window
        known = None
        if self.init.endswith("sample"):
            known = torch.zeros(b, state.limit, v, device=state.device, dtype=state.first.dtype)
            known[:, 0] = state.first
        zero = torch.zeros(b, dtype=torch.long, device=state.device)
        p = torch.full((b, w, v), 1.0 / v, device=state.device, dtype=state.first.dtype)
        return Window(torch.zeros(b, w, dtype=torch.long, device=state.device), p, zero, known)

    def draft(self, state: DecodeState, window: Window, u: Tensor) -> Draft:
        fresh, p_fresh = self._fresh(state, window, u[:, : self.window])
        if self.variant == "reference":
            p_fresh = F.one_hot(fresh, p_fresh.shape[-1]).to(window.p.dtype)
        carried = self.columns[:-1] < window.draft_count[:, None]
        drafts = torch.where(carried, window.drafts, fresh)
        p = torch.where(carried[..., None], window.p, p_fresh)
        return Draft(torch.cat([state.now.root[:, None], drafts], 1), p, self.static)

    def _fresh(self, state: DecodeState, window: Window, u: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, W] and their p [B, W, V], as if every window position were new."""
        v = self.vocab
        random, uniform = (u * v).long().clamp(max=v - 1), torch.full_like(window.p, 1.0 / v)
        if self.init == "random":
            return random, uniform
        end = state.now.length.device[:, None]
        at = end + self.columns[:-1]
        if self.init.startswith("horizontal"):
            source = torch.minimum(at, end) - 1  # the nearest committed token to the left
            inside = self.row[source] == self.row[at]
        else:
            source = self.above[at]
            inside = (source >= 0) & (source < end)
        source = source.clamp(0, state.limit - 1)
        if window.known is None:
            tokens = state.now.tokens.gather(1, source)
            p = F.one_hot(tokens, v).to(window.p.dtype)
        else:
            p = rows_at(window.known, source)
            tokens = draw(p, u)
        return torch.where(inside, tokens, random), torch.where(inside[..., None], p, uniform)

    def update(self, state: DecodeState, window: Window, result: StepResult) -> Window:
        """Shift the window past the accepted tokens; the rest is redrawn from q."""
        q, accepted = result.q, result.verified.accepted
        tokens, p = self.redraw(state, window, result)
        source = (accepted[:, None] + 1 + self.columns[:-1]).clamp(max=self.window)
        known = window.known
        if known is not None:
            at = (result.start[:, None] + self.columns).clamp(max=state.limit - 1)
            known.scatter_(1, at[..., None].expand(-1, -1, q.shape[-1]), q)
        return Window(tokens.gather(1, source), rows_at(p, source), self.window - accepted, known)

    def canonical(self, window: Window) -> Window:
        free = self.columns[:-1] >= window.draft_count[:, None]
        return window._replace(drafts=window.drafts.masked_fill(free, 0), p=window.p.masked_fill(free[..., None], 0.0))

    def redraw(self, state: DecodeState, window: Window, result: StepResult) -> tuple[Tensor, Tensor]:
        """A token for each q [B, W + 1, V], and the distribution that it comes from."""
        q = result.q
        if state.warp.greedy:
            tokens = q.argmax(-1)
            return tokens, F.one_hot(tokens, q.shape[-1]).to(q.dtype)
        if self.by_position:
            assert result.u.position is not None
            return draw(q, result.u.position), q
        return draw(q, result.u.draft[:, self.window :]), q
