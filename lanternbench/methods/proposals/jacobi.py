"""Proposals without a drafter: nothing, or the target drafts for itself, as in SJD (arXiv
2410.01699) and plain Jacobi.

A window of W drafted tokens slides over the image.  After a step, a window position that was not
committed is redrawn from the target's new distribution there, which becomes its p.  Tokens that
enter the window come from ``init``: uniformly ``random``; or a committed neighbour (left in the
row, or above), copied (``repeat``, p one-hot) or redrawn from the neighbour's own distribution
(``sample``).  In the public code they count as certain, whatever drew them.

SCD (arXiv 2510.24211): ``maximal`` coupling redraws a window token only if it fails a test against
the new distribution, which is recorded for it in either case; the public code records the old one
for a token that was kept, which is not exact.  ``gumbel``: every image position is redrawn with
the same noise of its own in every step.

SJD++ (arXiv 2512.07503) keeps drafts after the first rejection where they are likely enough.  A
kept draft's law is the old distribution restricted to the tokens that pass, which no later test
corrects: no loss of its tests bounds it.

Coupling functions work on any leading shape [...].  B batch, L image tokens, W window positions, V
vocabulary.
"""

from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Choices, Prepared, option
from lanternbench.engine.plain import TreeSpec, WindowSpec
from lanternbench.engine.proposal import Proposal, TreePolicy
from lanternbench.engine.sampling import at, draw, rows_at
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft, StaticTree, chain
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.models.grids import neighbours
from lanternbench.models.target import Target
from lanternbench.registry import register

PUBLIC_EPSILON = 1e-9  # inside the logarithms of the public Gumbel draw


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
        if (choices.acceptance, choices.residual) != ("exact", "standard"):
            return "autoregressive decoding drafts nothing, so there is nothing to accept"
        return super().refuses(choices)

    def draft(self, state: DecodeState, proposer_state: Any, u: Tensor) -> Draft:
        return Draft(state.now.root[:, None], static=self.static)

    def plain(self, tree: TreePolicy) -> TreeSpec:
        return TreeSpec()


class Window(NamedTuple):
    """The drafts after the committed prefix; the first ``draft_count`` positions carry over from
    the last step.
    """

    drafts: Tensor  # [B, W]; or [B, W, K] siblings, first siblings first
    p: Tensor  # [B, W, V] the distribution that each was drawn from, siblings without replacement
    draft_count: Tensor  # [B]
    # [B, L, V] q at every committed position, where ``init`` samples from it; in place
    known: Tensor | None = None

    def canonical(self) -> Self:
        free = torch.arange(self.p.shape[1], device=self.p.device) >= self.draft_count[:, None]
        drafts = self.drafts.masked_fill(free.view(*free.shape, *[1] * (self.drafts.ndim - 2)), 0)
        return self._replace(drafts=drafts, p=self.p.masked_fill(free[..., None], 0.0))


@register("proposal", "jacobi")
class Jacobi(Proposal):
    """the target itself: a window of tokens, redrawn in every step"""

    tree_names: ClassVar[tuple[str, ...] | None] = ("chain",)
    tree_is_own: ClassVar[bool] = True
    in_rows: ClassVar[bool] = True
    tuned: ClassVar[dict[str, tuple[int, ...]]] = {"window": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}

    init: Literal[
        "random", "horizontal-repeat", "vertical-repeat", "horizontal-sample", "vertical-sample"
    ] = option("random", "what enters SJD's window")
    window: int = option(16, "drafted tokens per step", small=2, ge=1, le=256)

    # is a position always redrawn with the same uniform (plain Jacobi decoding)?
    by_position = Prepared(False)
    vocab = Prepared[int]()
    row = Prepared[Tensor]()  # [L + W] the number of each token's row
    above = Prepared[Tensor]()  # [L + W] the token above each, or -1
    static = Prepared[StaticTree]()
    columns = Prepared[Tensor]()  # [W + 1] 0 … W

    def unread_beside(self, choices: Choices) -> set[str]:
        # windows of several rows are filled at random
        return {"init"} if choices.order != "raster" else set()

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> Self:
        w = self.window
        row, above = torch.tensor(
            neighbours(target.grids, target.length + w), device=target.device
        )
        return self.ready(
            by_position=rule.by_position, vocab=target.vocab, row=row, above=above,
            static=chain(w).to(target.device), columns=torch.arange(w + 1, device=target.device),
            nodes=w + 1, max_step_slots=w + 1, max_depth=w, width=1, uniforms=2 * w + 1, update_uniforms=w + 1,
        )  # fmt: skip

    def plain(self, tree: TreePolicy) -> WindowSpec | None:
        return WindowSpec(self.window, self.init, one_hot=self.variant == "reference")

    def begin(self, state: DecodeState) -> Window:
        first, v = state.first, self.vocab
        known: Tensor | None = None
        if self.init.endswith("sample"):
            known = state.table((state.batch, state.limit, v), first.dtype)
            known[:, 0] = first
        drafts = torch.zeros(state.batch, self.window, dtype=torch.long, device=state.device)
        return Window(
            drafts,
            first.new_full((*drafts.shape, v), 1.0 / v),
            torch.zeros_like(drafts[:, 0]),
            known,
        )

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
        return window.canonical()

    def redraw(
        self, state: DecodeState, window: Window, result: StepResult
    ) -> tuple[Tensor, Tensor]:
        """A token for each q [B, W + 1, V], and the distribution that it comes from."""
        q = result.q
        if state.warp.greedy:
            tokens = q.argmax(-1)
            return tokens, F.one_hot(tokens, q.shape[-1]).to(q.dtype)
        if self.by_position:
            assert result.u.position is not None
            return draw(q, result.u.position), q
        return draw(q, result.u.draft[:, self.window :]), q


class Coupled(NamedTuple):
    """A coupled redraw."""

    tokens: Tensor  # [...]
    accepted: Tensor  # [...] bool: is it the old token?
    residual: Tensor  # [..., V] unnormalised: what a token that is not accepted is drawn from


def maximal(x: Tensor, p_old: Tensor, p_new: Tensor, u_keep: Tensor, u_draw: Tensor) -> Coupled:
    """Maximal coupling: keep x ~ p_old with min(1, p_new(x)/p_old(x)), else draw from [p_new −
    p_old]₊.

    x, u_keep, u_draw [...]; p_old, p_new [..., V].  The token's law is p_new, and it is x with the
    largest probability that a coupling allows, 1 − TV(p_old, p_new).  A token that p_old excludes
    is not kept.
    """
    old, new = at(p_old, x), at(p_new, x)
    accepted = (u_keep * old < new) & (old > 0)
    residual = (p_new - p_old).clamp(min=0)
    # all 0: equal but for rounding
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p_new)
    return Coupled(torch.where(accepted, x, draw(residual, u_draw)), accepted, residual)


def gumbel(p: Tensor, u: Tensor, epsilon: float = 0.0) -> Tensor:
    """Gumbel coupling: argmax(log p + g), g = −log(−log u), with uniforms u [..., V] that belong
    to the position.

    p [..., V] -> tokens [...].  ``epsilon`` is added inside both logarithms by the public code
    (1e-9).
    """
    # in float32 a uniform near 1 rounds to it and wins for sure
    tiny = torch.finfo(torch.float64).tiny
    g = -((-(u.double() + epsilon).clamp(min=tiny).log() + epsilon).clamp(min=tiny).log())
    return (p.double().log() + g).argmax(-1)


def position_noise(key: Tensor, position: Tensor, vocab: int) -> Tensor:
    """Uniforms of every token, the same in every step: key [B, 2] in 0 … 1, position [B, n] -> [B,
    n, V] float64.

    A hash (SplitMix64) of key, position and token.
    """
    bits = (key.double() * 2**24).long()
    state = ((bits[:, :1] << 24) + bits[:, 1:])[..., None] + position[..., None] * (
        0x9E3779B97F4A7C15 - 2**64
    )
    token = torch.arange(vocab, device=key.device)
    hashed = _mixed(_mixed(state) + (token + 1) * (0xD1B54A32D192ED03 - 2**64))
    return (((hashed >> 12) & (1 << 52) - 1).double() + 0.5) / 2**52


def _mixed(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, on 64-bit integers that wrap around, its constants as signed ones."""
    z = (z ^ (z >> 30) & (1 << 34) - 1) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ (z >> 27) & (1 << 37) - 1) * (0x94D049BB133111EB - 2**64)
    return z ^ (z >> 31) & (1 << 33) - 1


@register("proposal", "scd")
class Scd(Jacobi):
    """the target itself: SJD's window with coupled redraws"""

    reference_lossless: ClassVar[bool] = False
    in_rows: ClassVar[bool] = False
    no_joint_sample: ClassVar[str | None] = (
        "block verification needs drafts that are independent of what they are judged by, and coupled redraws are not"
    )

    coupling: Literal["maximal", "gumbel"] = option(
        "maximal", "what ties a redraw to the token before it"
    )

    @property
    def lasting_noise(self) -> bool:
        return self.coupling == "gumbel"

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> Self:
        w, plain = self.window, super().prepare(target, tree, rule)
        if self.coupling == "gumbel":
            return plain.ready(uniforms=w, update_uniforms=0)
        # fresh W; keep W, draw W + 1
        return plain.ready(uniforms=3 * w + 1, update_uniforms=2 * w + 1)

    def plain(self, tree: TreePolicy) -> WindowSpec | None:
        if self.coupling == "gumbel":
            return None
        public = self.variant == "reference"
        return WindowSpec(self.window, self.init, "kept-law" if public else "maximal", public)

    def redraw(
        self, state: DecodeState, window: Window, result: StepResult
    ) -> tuple[Tensor, Tensor]:
        if state.warp.greedy:
            return super().redraw(state, window, result)
        (draft, q, *_), w, public = result, self.window, self.variant == "reference"
        if self.coupling == "gumbel":
            noise = self.noise(state, result.start[:, None] + self.columns)
            return gumbel(q, noise, PUBLIC_EPSILON * public), q
        assert draft.p is not None
        keep, redraw = result.u.draft[:, w : 2 * w], result.u.draft[:, 2 * w :]
        coupled = maximal(draft.tokens[:, 1:], draft.p, q[:, :-1], keep, redraw[:, :-1])
        tokens = torch.cat([coupled.tokens, draw(q[:, -1:], redraw[:, -1:])], 1)
        if public:
            q = torch.cat(
                [torch.where(coupled.accepted[..., None], draft.p, q[:, :-1]), q[:, -1:]], 1
            )
        return tokens, q

    def noise(self, state: DecodeState, position: Tensor) -> Tensor:
        """Uniforms [B, n, V] of image positions [B, n]; the image's key is two uniforms that no
        step reads.
        """
        return position_noise(state.uniforms[:, -1, 1:3], position, self.vocab)


@register("proposal", "sjd++")
class SjdPlus(Jacobi):
    """the target itself: SJD's window, which keeps likely drafts after a rejection"""

    lossless: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    no_joint_sample: ClassVar[str | None] = (
        "kept drafts are no sample of the distribution recorded for them"
    )

    theta: float = option(
        0.5,
        "keep a draft x where p_new(x)/p_old(x) > θ",
        symbol="θ",
        in_label=True,
        also=0.1,
        ge=0,
    )

    def plain(self, tree: TreePolicy) -> WindowSpec | None:
        return (
            None
            if self.variant == "reference"
            else WindowSpec(self.window, self.init, "keep", theta=self.theta)
        )

    def redraw(
        self, state: DecodeState, window: Window, result: StepResult
    ) -> tuple[Tensor, Tensor]:
        tokens, p = super().redraw(state, window, result)
        if state.warp.greedy:
            return tokens, p
        old, p_old = result.draft.tokens[:, 1:], result.draft.p
        assert p_old is not None
        keep = at(result.q[:, :-1], old) > self.theta * at(p_old, old)
        tokens = torch.cat([torch.where(keep, old, tokens[:, :-1]), tokens[:, -1:]], 1)
        return tokens, torch.cat([torch.where(keep[..., None], p_old, p[:, :-1]), p[:, -1:]], 1)
