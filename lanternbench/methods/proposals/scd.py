"""Jacobi windows whose redraws keep drafts: SCD (arXiv 2510.24211), exact, and SJD++ (arXiv 2512.07503), which is not.

SCD's ``maximal`` coupling tests every window token against the new distribution, and redraws it only if it fails.  Its
recorded distribution is then the new one, kept or not; the public code records the old one for a token that was kept,
which is not exact.  ``gumbel``: every image position has noise of its own, with which it is redrawn in every step.

SJD++ keeps drafts after the first rejection where they are likely enough.  A kept draft's law is the old distribution
restricted to the tokens that pass, which no later test corrects: no fidelity loss that its tests show bounds it.

Coupling functions work on any leading shape [...].  B batch, W window positions, V vocabulary.
"""

from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from lanternbench.component import option
from lanternbench.engine.plain import WindowSpec
from lanternbench.engine.proposal import TreePolicy
from lanternbench.engine.sampling import draw
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.verify import AcceptanceRule, at
from lanternbench.methods.proposals.jacobi import Jacobi, Window
from lanternbench.models.target import Target
from lanternbench.registry import register

PUBLIC_EPSILON = 1e-9  # inside the logarithms of the public Gumbel draw


class Coupled(NamedTuple):
    """A coupled redraw."""

    tokens: Tensor  # [...]
    accepted: Tensor  # [...] bool: is it the old token?
    residual: Tensor  # [..., V] unnormalised: what a token that is not accepted is drawn from


def maximal(x: Tensor, p_old: Tensor, p_new: Tensor, u_keep: Tensor, u_draw: Tensor) -> Coupled:
    """Maximal coupling: keep x ~ p_old with min(1, p_new(x)/p_old(x)), else draw from [p_new − p_old]₊.

    x, u_keep, u_draw [...]; p_old, p_new [..., V].  The token's law is p_new, and it is x as often as any coupling
    allows: 1 − TV(p_old, p_new).  A token that p_old excludes is not kept.
    """
    old, new = at(p_old, x), at(p_new, x)
    accepted = (u_keep * old < new) & (old > 0)
    residual = (p_new - p_old).clamp(min=0)
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p_new)  # all 0: equal but for rounding
    return Coupled(torch.where(accepted, x, draw(residual, u_draw)), accepted, residual)


def gumbel(p: Tensor, u: Tensor, epsilon: float = 0.0) -> Tensor:
    """Gumbel coupling: argmax(log p + g), g = −log(−log u), with uniforms u [..., V] that belong to the position.

    p [..., V] -> tokens [...].  Two draws with the same u agree unless p changed enough to move the maximum.
    ``epsilon`` is added inside both logarithms by the public code (1e-9).
    """
    tiny = torch.finfo(torch.float64).tiny  # in float32 a uniform near 1 rounds to it and wins for sure
    g = -((-(u.double() + epsilon).clamp(min=tiny).log() + epsilon).clamp(min=tiny).log())
    return (p.double().log() + g).argmax(-1)


def position_noise(key: Tensor, position: Tensor, vocab: int) -> Tensor:
    """Uniforms in 0 … 1 of every token at image positions: key [B, 2] in 0 … 1, position [B, n] -> [B, n, V] float64.

    A hash (SplitMix64) of key, position and token, so that a position has the same noise in every step and none of it
    is stored.
    """
    bits = (key.double() * 2**24).long()
    state = ((bits[:, :1] << 24) + bits[:, 1:])[..., None] + position[..., None] * _signed(0x9E3779B97F4A7C15)
    token = torch.arange(vocab, device=key.device)
    hashed = _mixed(_mixed(state) + (token + 1) * _signed(0xD1B54A32D192ED03))
    return (((hashed >> 12) & (1 << 52) - 1).double() + 0.5) / 2**52


def _mixed(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, on 64-bit integers that wrap around."""
    z = (z ^ (z >> 30) & (1 << 34) - 1) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> 27) & (1 << 37) - 1) * _signed(0x94D049BB133111EB)
    return z ^ (z >> 31) & (1 << 33) - 1


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


@register("proposal", "scd")
class Scd(Jacobi):
    """the target itself: SJD's window with coupled redraws"""

    reference_lossless: ClassVar[bool] = False
    in_rows: ClassVar[bool] = False
    no_joint_sample: ClassVar[str | None] = (
        "block verification needs drafts that are independent of what they are judged by, and coupled redraws are not"
    )

    coupling: Literal["maximal", "gumbel"] = option("maximal", "what ties a redraw to the token before it")

    @property
    def lasting_noise(self) -> bool:
        return self.coupling == "gumbel"

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> Self:
        w, plain = self.window, super().prepare(target, tree, rule)
        if self.coupling == "gumbel":
            return plain.ready(uniforms=w, update_uniforms=0)
        return plain.ready(uniforms=3 * w + 1, update_uniforms=2 * w + 1)  # fresh W; keep W, draw W + 1

    def plain(self, tree: TreePolicy) -> WindowSpec | None:
        if self.coupling == "gumbel":
            return None
        public = self.variant == "reference"
        return WindowSpec(self.window, self.init, "kept-law" if public else "maximal", public)

    def redraw(self, state: DecodeState, window: Window, result: StepResult) -> tuple[Tensor, Tensor]:
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
            q = torch.cat([torch.where(coupled.accepted[..., None], draft.p, q[:, :-1]), q[:, -1:]], 1)
        return tokens, q

    def noise(self, state: DecodeState, position: Tensor) -> Tensor:
        """Uniforms [B, n, V] of image positions [B, n]; the image's key is two uniforms that no step reads."""
        return position_noise(state.uniforms[:, -1, 1:3], position, self.vocab)


@register("proposal", "sjd++")
class SjdPlus(Jacobi):
    """the target itself: SJD's window, which keeps likely drafts after a rejection"""

    lossless: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    no_joint_sample: ClassVar[str | None] = "kept drafts are no sample of the distribution recorded for them"

    theta: float = option(0.5, "keep a draft x where p_new(x)/p_old(x) > θ", symbol="θ", in_label=True, also=0.1, ge=0)

    def plain(self, tree: TreePolicy) -> WindowSpec | None:
        return None if self.variant == "reference" else WindowSpec(self.window, self.init, "keep", theta=self.theta)

    def redraw(self, state: DecodeState, window: Window, result: StepResult) -> tuple[Tensor, Tensor]:
        tokens, p = super().redraw(state, window, result)
        if state.warp.greedy:
            return tokens, p
        old, p_old = result.draft.tokens[:, 1:], result.draft.p
        assert p_old is not None
        keep = at(result.q[:, :-1], old) > self.theta * at(p_old, old)
        tokens = torch.cat([torch.where(keep, old, tokens[:, :-1]), tokens[:, -1:]], 1)
        return tokens, torch.cat([torch.where(keep[..., None], p_old, p[:, :-1]), p[:, -1:]], 1)
