"""Proposals without a drafter: no draft at all, or drafts by the target itself, as in SJD (arXiv
2410.01699) and plain Jacobi.

A window of W drafted tokens slides over the image.  After a step, a window position that was not
committed is redrawn from the target's new distribution there, which becomes its p.  Tokens that
enter the window come from ``init``: uniformly ``random``; or a committed neighbour (left in the
row, or above), copied (``repeat``, p one-hot) or redrawn from the neighbour's own distribution
(``sample``).  In the public code they count as certain, whatever drew them.

A ``Filling`` gives the drafts that enter a window, a ``Redraw`` replaces the others; ``redraws``
has those of SCD and SJD++.  B batch, L image tokens, W window positions, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Choices, option
from lanternbench.engine.proposal import DraftSize, Proposal, Proposer, TreePolicy
from lanternbench.engine.sampling import Warp, draw, rows_at
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft, StaticTree, chain, numbers
from lanternbench.engine.verify import AcceptanceRule, Residual
from lanternbench.methods.proposals.lumina2 import PublicWarp
from lanternbench.methods.proposals.redraws import (
    PUBLIC_EPSILON,
    FixedNoiseRedraw,
    GumbelRedraw,
    IndependentRedraw,
    LikelyRedraw,
    MaximalRedraw,
    OldLawRedraw,
    Redraw,
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

    def begin(self, state: DecodeState) -> None:
        return None

    def draft(self, state: DecodeState, own: None, u: Tensor) -> Draft:
        return Draft(state.now.root[:, None], static=self.static)


class Window(NamedTuple):
    """The drafts after the committed prefix.

    The first ``draft_count`` positions carry over from the last step.
    """

    drafts: Tensor  # [B, W]; or [B, W, K] siblings, first siblings first
    p: Tensor  # [B, W, V] the distribution that each was drawn from, siblings without replacement
    draft_count: Tensor  # [B]
    # [B, L, V] q at every committed position, if ``init`` samples from it; in place
    known: Tensor | None = None

    def canonical(self) -> Window:
        free = torch.arange(self.p.shape[1], device=self.p.device) >= self.draft_count[:, None]
        free_drafts = free if self.drafts.ndim == 2 else free[..., None]
        drafts = self.drafts.masked_fill(free_drafts, 0)
        return self._replace(drafts=drafts, p=self.p.masked_fill(free[..., None], 0.0))


class Fresh(NamedTuple):
    """Drafts as if every window position were new."""

    tokens: Tensor  # [B, W]
    p: Tensor | float  # [B, W, V] what each was drawn from; or each token's probability


class Filling(ABC):
    """The drafts that enter a window."""

    samples: ClassVar[bool] = False  # whether it draws from q of committed positions

    @abstractmethod
    def fresh(self, state: DecodeState, window: Window, u: Tensor) -> Fresh:
        """u [B, W]."""


@dataclass(frozen=True, eq=False)
class RandomFilling(Filling):
    """Uniform tokens."""

    vocab: int

    def fresh(self, state: DecodeState, window: Window, u: Tensor) -> Fresh:
        return Fresh(uniform_tokens(u, self.vocab), 1.0 / self.vocab)


def uniform_tokens(u: Tensor, vocab: int) -> Tensor:
    return (u * vocab).long().clamp(max=vocab - 1)


@dataclass(frozen=True, eq=False)
class NeighbourFilling(Filling):
    """Copies of a committed neighbour's token: the nearest to the left in the row, or the one above.

    Uniform tokens if there is none.
    """

    vocab: int
    columns: Tensor  # [W] 0 … W − 1
    row: Tensor  # [L + W] the number of each token's row
    above: Tensor | None  # [L + W] the token above each, or −1; None: the left neighbour is used

    def fresh(self, state: DecodeState, window: Window, u: Tensor) -> Fresh:
        end = state.now.length.device[:, None]
        position = end + self.columns
        if self.above is None:
            source = torch.minimum(position, end) - 1
            exists = self.row[source] == self.row[position]
        else:
            source = self.above[position]
            exists = (source >= 0) & (source < end)
        tokens, p = self.taken(state, window, source.clamp(0, state.limit - 1), u)
        return Fresh(
            tokens=torch.where(exists, tokens, uniform_tokens(u, self.vocab)),
            p=torch.where(exists[..., None], p, 1.0 / self.vocab),
        )

    def taken(
        self,
        state: DecodeState,
        window: Window,
        source: Tensor,
        u: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return tokens [B, W] and p [B, W, V] from the positions ``source`` [B, W]."""
        tokens = state.now.tokens.gather(1, source)
        return tokens, F.one_hot(tokens, self.vocab).to(window.p.dtype)


@dataclass(frozen=True, eq=False)
class SampledFilling(NeighbourFilling):
    """Tokens drawn from a committed neighbour's distribution."""

    samples = True

    def taken(
        self,
        state: DecodeState,
        window: Window,
        source: Tensor,
        u: Tensor,
    ) -> tuple[Tensor, Tensor]:
        if window.known is None:
            raise TypeError("the window keeps no distributions of committed positions")
        p = rows_at(window.known, source)
        return draw(p, u), p


@dataclass(frozen=True, eq=False)
class CertainFilling(Filling):
    """Another filling's tokens, counted as certain whatever drew them (the public code)."""

    filling: Filling
    vocab: int

    def fresh(self, state: DecodeState, window: Window, u: Tensor) -> Fresh:
        tokens = self.filling.fresh(state, window, u).tokens
        return Fresh(tokens, F.one_hot(tokens, self.vocab).to(window.p.dtype))


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
        redraw: Redraw = IndependentRedraw(self.window)
        if rule.by_position:
            redraw = FixedNoiseRedraw()
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
            vocab=target.vocab,
            static=chain(w).to(target.device),
            columns=numbers(w + 1, target.device),
            filling=self.filling(target),
            redraw=redraw,
        )

    def filling(self, target: Target) -> Filling:
        """Return what enters the window."""
        filling = self.exact_filling(target)
        if self.variant == "paper":
            return filling
        return CertainFilling(filling, target.vocab)

    def exact_filling(self, target: Target) -> Filling:
        if self.init == "random":
            return RandomFilling(target.vocab)
        positions = neighbours(target.grids, target.length + self.window)
        row, above = torch.tensor(positions, device=target.device)
        kind = SampledFilling if self.init.endswith("sample") else NeighbourFilling
        return kind(
            vocab=target.vocab,
            columns=numbers(self.window, target.device),
            row=row,
            above=above if self.init.startswith("vertical") else None,
        )


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
class SlidingWindow(Proposer[Window]):
    """A window of drafts that slides over the image."""

    size: DraftSize
    window: int
    vocab: int
    static: StaticTree
    columns: Tensor  # [W + 1] 0 … W
    filling: Filling
    redraw: Redraw

    def begin(self, state: DecodeState) -> Window:
        first = state.first
        known: Tensor | None = None
        if self.filling.samples:
            known = state.table((state.batch, state.limit, self.vocab), first.dtype)
            known[:, 0] = first
        drafts = state.now.root.new_zeros(state.batch, self.window)
        p = first.new_full((*drafts.shape, self.vocab), 1.0 / self.vocab)
        return Window(drafts, p, torch.zeros_like(drafts[:, 0]), known)

    def draft(self, state: DecodeState, window: Window, u: Tensor) -> Draft:
        fresh = self.filling.fresh(state, window, u[:, : self.window])
        carried = self.columns[:-1] < window.draft_count[:, None]
        drafts = torch.where(carried, window.drafts, fresh.tokens)
        p = torch.where(carried[..., None], window.p, fresh.p)
        nodes = torch.cat([state.now.root[:, None], drafts], 1)
        return Draft(nodes, p, self.static)

    def update(self, state: DecodeState, window: Window, result: StepResult) -> Window:
        """Shift the window past the accepted tokens; the rest is redrawn from q."""
        q = result.q
        accepted = result.verified.accepted
        if state.warp.greedy:
            tokens = result.drawn.argmax(-1)
            p = F.one_hot(tokens, self.vocab).to(q.dtype)
        else:
            tokens, p = self.redraw(state, result)
        if window.known is not None:
            position = result.start[:, None] + self.columns
            position = position.clamp(max=state.limit - 1)
            window.known.scatter_(1, position[..., None].expand(-1, -1, self.vocab), q)
        source = accepted[:, None] + 1 + self.columns[:-1]
        source = source.clamp(max=self.window)
        return Window(
            drafts=tokens.gather(1, source),
            p=rows_at(p, source),
            draft_count=self.window - accepted,
            known=window.known,
        )

    def canonical(self, window: Window) -> Window:
        return window.canonical()


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
        w = self.window
        public = self.variant == "reference"
        if self.coupling == "gumbel":
            epsilon = PUBLIC_EPSILON if public else 0.0
            return self.sliding(target, GumbelRedraw(numbers(w + 1, target.device), epsilon), 0)
        redraw = OldLawRedraw(w) if public else MaximalRedraw(w)
        return self.sliding(target, redraw, 2 * w + 1)  # W to keep drafts, W + 1 to draw them


@register("proposal", "sjd++")
class SjdPlus(WindowProposal):
    """the target itself: SJD's window, which keeps likely drafts after a rejection"""

    lossless = False
    bounded = False
    no_joint_sample = (
        "kept drafts are no sample of the distribution recorded for them"
    )

    theta: float = option(
        0.5,
        "keep a draft x if p_new(x)/p_old(x) > θ",
        symbol="θ",
        in_label=True,
        also=0.1,
        ge=0,
    )

    def build(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> SlidingWindow:
        redraw = LikelyRedraw(self.window, self.theta)
        return self.sliding(target, redraw, self.window + 1)
