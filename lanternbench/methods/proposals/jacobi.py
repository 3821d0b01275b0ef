"""Proposals without a drafter: no draft at all, or drafts by the target itself, as in SJD (arXiv
2410.01699) and plain Jacobi.

A window of W drafted tokens slides over the image.  After a step, a window position that was not
committed is redrawn from the target's new distribution there, which becomes its p.  Tokens that
enter the window come from ``init``: uniformly ``random``; or a committed neighbour (left in the
row, or above), copied (``repeat``, p one-hot) or redrawn from the neighbour's own distribution
(``sample``).  In the public code they count as certain, whatever drew them.

A ``Filling`` gives the drafts that enter a window, a ``Redraw`` (see ``redraws``) replaces the others.
B batch, L image tokens, W window positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Choices, option
from lanternbench.engine.proposal import DraftSize, Proposal, Proposer, TreePolicy
from lanternbench.engine.relaxed import Residual
from lanternbench.engine.sampling import Warp, draw, rows_at
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft, StaticTree, chain, numbers
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.methods.proposals.lumina2 import PublicWarp
from lanternbench.methods.proposals.redraws import (
    PUBLIC_EPSILON,
    Redraw,
    couple,
    couple_by_gumbel,
    couple_with_old_law,
    fixed_noise,
    independent,
    keep_likely,
)
from lanternbench.models.grids import neighbours
from lanternbench.models.target import Target
from lanternbench.registry import register
from lanternbench.settings import Sampling

LUMINA_2 = "lumina-2"


@register("proposal", "none")
class NoDraft(Proposal):
    """nothing: plain autoregressive decoding"""

    tree_names = ("none",)
    tree_is_own = True
    in_rows = True

    def refuses(self, choices: Choices) -> str | None:
        if (choices.acceptance, choices.residual) != ("exact", "standard"):
            return "autoregressive decoding drafts nothing, so there is nothing to accept"
        return super().refuses(choices)

    def build(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> LoneRoots:
        return LoneRoots.of(target)


@dataclass(frozen=True, eq=False)
class LoneRoots(Proposer[None]):
    """Drafts nothing: a tree is its root."""

    size: DraftSize
    static: StaticTree

    @classmethod
    def of(cls, target: Target) -> LoneRoots:
        return cls(DraftSize(nodes=1, max_depth=0, width=0), chain(0).to(target.device))

    def draft(self, state: DecodeState, own: None, u: Tensor) -> Draft:
        return Draft(state.now.root[:, None], static=self.static)


class Window(NamedTuple):
    """The drafts after the committed prefix.

    The first ``draft_count`` positions carry over from the last step.
    """

    drafts: Tensor  # [B, W]; or [B, W, K] siblings, first siblings first
    p: Tensor  # [B, W, V] the distribution that each was drawn from, siblings without replacement
    draft_count: Tensor  # [B]
    # [B, L, V] q at every committed position, if drafts are drawn from it; in place
    known: Tensor | None = None


class WindowProposer(Proposer[Window]):
    """Base of what drafts a window."""

    def canonical(self, window: Window) -> Window:
        free = numbers(window.p.shape[1], window.p.device) >= window.draft_count[:, None]
        free_drafts = free if window.drafts.ndim == 2 else free[..., None]
        drafts = window.drafts.masked_fill(free_drafts, 0)
        return window._replace(drafts=drafts, p=window.p.masked_fill(free[..., None], 0.0))


# drafts as if every window position were new [B, W], and what each was drawn from [B, W, V], or
# each one's probability
Fresh = tuple[Tensor, Tensor | float]
# (state, window, uniforms [B, W]) -> the drafts that enter the window
Filling = Callable[[DecodeState, Window, Tensor], Fresh]


def uniform_tokens(u: Tensor, vocab: int) -> Tensor:
    return (u * vocab).long().clamp(max=vocab - 1)


def at_random(state: DecodeState, window: Window, u: Tensor) -> Fresh:
    """Draw uniform tokens."""
    vocab = window.p.shape[-1]
    return uniform_tokens(u, vocab), 1.0 / vocab


@dataclass(frozen=True, eq=False)
class FromNeighbours:
    """Takes the token of a committed neighbour, the nearest to the left in the row or the one
    above, or draws one from its distribution; uniform tokens if there is none.
    """

    row: Tensor  # [L + W] the number of each token's row
    above: Tensor | None  # [L + W] the token above each, or −1; None: the left neighbour is used

    def __call__(self, state: DecodeState, window: Window, u: Tensor) -> Fresh:
        end = state.now.length.device[:, None]
        position = end + numbers(u.shape[1], u.device)
        if self.above is None:
            source = torch.minimum(position, end) - 1
            exists = self.row[source] == self.row[position]
        else:
            source = self.above[position]
            exists = (source >= 0) & (source < end)
        source = source.clamp(0, state.limit - 1)
        vocab = window.p.shape[-1]
        if window.known is None:
            tokens = state.now.tokens.gather(1, source)
            p = F.one_hot(tokens, vocab).to(window.p.dtype)
        else:
            p = rows_at(window.known, source)
            tokens = draw(p, u)
        tokens = torch.where(exists, tokens, uniform_tokens(u, vocab))
        return tokens, torch.where(exists[..., None], p, 1.0 / vocab)


def certain(state: DecodeState, window: Window, u: Tensor, filling: Filling) -> Fresh:
    """Count the tokens of ``filling`` as certain, whatever drew them (the public code)."""
    tokens, _ = filling(state, window, u)
    return tokens, F.one_hot(tokens, window.p.shape[-1]).to(window.p.dtype)


class WindowProposal(Proposal):
    """A window that slides over the image."""

    tree_names = ("chain",)
    tree_is_own = True
    in_rows = True
    tuned: ClassVar[dict[str, tuple[int, ...]]] = {"window": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}

    init: Literal[
        "random", "horizontal-repeat", "vertical-repeat", "horizontal-sample", "vertical-sample"
    ] = option("random", "how new positions of the window are filled")
    window: int = option(16, "drafted positions per step", small=2, ge=1, le=256)

    def unread_beside(self, choices: Choices) -> set[str]:
        # windows of several rows are filled at random
        return {"init"} if choices.order != "raster" else set()

    def build(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> SlidingWindow:
        redraw: Redraw = independent
        if rule.by_position:
            redraw = fixed_noise
        return self.sliding(target, redraw, self.window + 1)

    def sliding(self, target: Target, redraw: Redraw, uniforms: int) -> SlidingWindow:
        """Return the runtime; ``uniforms``: how many ``redraw`` reads in a step."""
        w = self.window
        size = DraftSize(
            nodes=w + 1,
            max_depth=w,
            width=1,
            uniforms=w + uniforms,
            update_uniforms=uniforms,
        )
        return SlidingWindow(
            size=size,
            window=w,
            static=chain(w).to(target.device),
            filling=self.filling(target),
            redraw=redraw,
            keeps_laws=self.init.endswith("sample"),
        )

    def filling(self, target: Target) -> Filling:
        """Return what enters the window."""
        filling: Filling = at_random
        if self.init != "random":
            positions = neighbours(target.grids, target.length + self.window)
            row, above = torch.tensor(positions, device=target.device)
            filling = FromNeighbours(row, None)
            if self.init.startswith("vertical"):
                filling = FromNeighbours(row, above)
        if self.variant == "paper":
            return filling
        return partial(certain, filling=filling)


@register("proposal", "jacobi")
class Jacobi(WindowProposal):
    """the target itself: a window of tokens, redrawn in every step"""

    inexact = (LUMINA_2,)
    unbounded = (LUMINA_2,)

    variant: Literal["paper", "reference", "lumina-2"] = option(  # type: ignore[assignment]
        "paper", "paper, or reference: as the public code does (sjd: also lumina-2)"
    )

    def refuses(self, choices: Choices) -> str | None:
        rest = (choices.acceptance, choices.residual, choices.order)
        if self.variant == LUMINA_2 and rest != ("exact", "standard", "raster"):
            return (
                "the variant 'lumina-2' is a whole decoder; leave --acceptance, --residual and "
                "--order, or --variant, out"
            )
        return super().refuses(choices)

    def warp(self, sampling: Sampling) -> Warp:
        return PublicWarp(sampling) if self.variant == LUMINA_2 else super().warp(sampling)

    def residual(self, residual: Residual, sampling: Sampling) -> Residual:
        if self.variant == LUMINA_2:
            return PublicWarp(sampling).redraw()
        return super().residual(residual, sampling)


@dataclass(frozen=True, eq=False)
class SlidingWindow(WindowProposer):
    """A window of drafts that slides over the image."""

    size: DraftSize
    window: int
    static: StaticTree
    filling: Filling
    redraw: Redraw
    keeps_laws: bool  # whether drafts are drawn from q of committed positions

    def begin(self, state: DecodeState) -> Window:
        first = state.first
        vocab = first.shape[-1]
        known: Tensor | None = None
        if self.keeps_laws:
            known = state.table((state.batch, state.limit, vocab), first.dtype)
            known[:, 0] = first
        drafts = state.now.root.new_zeros(state.batch, self.window)
        p = first.new_full((*drafts.shape, vocab), 1.0 / vocab)
        return Window(drafts, p, torch.zeros_like(drafts[:, 0]), known)

    def draft(self, state: DecodeState, window: Window, u: Tensor) -> Draft:
        fresh, fresh_p = self.filling(state, window, u[:, : self.window])
        carried = numbers(self.window, u.device) < window.draft_count[:, None]
        drafts = torch.where(carried, window.drafts, fresh)
        p = torch.where(carried[..., None], window.p, fresh_p)
        nodes = torch.cat([state.now.root[:, None], drafts], 1)
        return Draft(nodes, p, self.static)

    def update(self, state: DecodeState, window: Window, result: StepResult) -> Window:
        """Shift the window past the accepted tokens; the rest is redrawn from q."""
        q = result.q
        accepted = result.verified.accepted
        if state.warp.greedy:
            tokens = result.drawn.argmax(-1)
            p = F.one_hot(tokens, q.shape[-1]).to(q.dtype)
        else:
            tokens, p = self.redraw(state, result, result.u.draft[:, self.window :])
        if window.known is not None:
            position = result.start[:, None] + numbers(self.window + 1, q.device)
            position = position.clamp(max=state.limit - 1)
            window.known.scatter_(1, position[..., None].expand_as(q), q)
        source = accepted[:, None] + 1 + numbers(self.window, q.device)
        source = source.clamp(max=self.window)
        return Window(
            drafts=tokens.gather(1, source),
            p=rows_at(p, source),
            draft_count=self.window - accepted,
            known=window.known,
        )


@register("proposal", "scd")
class Scd(WindowProposal):
    """the target itself: SJD's window with coupled redraws"""

    inexact = ("reference",)
    in_rows = False
    no_joint_sample = (
        "block verification needs drafts that are independent of what they are judged by, and "
        "coupled redraws are not"
    )

    coupling: Literal["maximal", "gumbel"] = option(
        "maximal", "what ties a redraw to the token before it"
    )

    @property
    def lasting_noise(self) -> bool:
        return self.coupling == "gumbel"

    def build(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> SlidingWindow:
        public = self.variant == "reference"
        if self.coupling == "gumbel":
            epsilon = PUBLIC_EPSILON if public else 0.0
            return self.sliding(target, partial(couple_by_gumbel, epsilon=epsilon), 0)
        redraw = couple_with_old_law if public else couple
        return self.sliding(target, redraw, 2 * self.window + 1)


@register("proposal", "sjd++")
class SjdPlus(WindowProposal):
    """the target itself: SJD's window, which keeps likely drafts after a rejection"""

    lossless = False
    bounded = False
    no_joint_sample = "kept drafts are no sample of the distribution recorded for them"

    theta: float = option(
        0.5,
        "keep a draft x if p_new(x)/p_old(x) > θ",
        symbol="θ",
        in_label=True,
        also=0.1,
        ge=0,
    )

    def build(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> SlidingWindow:
        redraw = partial(keep_likely, theta=self.theta)
        return self.sliding(target, redraw, self.window + 1)
