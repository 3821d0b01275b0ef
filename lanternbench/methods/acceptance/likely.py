"""Rules that accept a token for sure where the target finds it likely: q̃ is ∞ there, else 0.
Meant for T > 0.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from lanternbench.component import option
from lanternbench.engine.plain import Probs
from lanternbench.engine.verify import AcceptanceRule, Forms, RelaxedProb, at, is_argmax
from lanternbench.registry import register


def infinite(accepted: Tensor, q: Tensor) -> Tensor:
    """q̃ of the accepted tokens, in the type of q."""
    return torch.where(accepted, torch.inf, 0.0).to(q.dtype)


@register("acceptance", "typical")
class Typical(AcceptanceRule):
    """accept where q(x) > min(ε, √ε·exp(−H(q)))"""

    lossless: ClassVar[bool] = False
    epsilon: float = option(0.09, "threshold ε", symbol="ε", gt=0, lt=1)

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        """Medusa, arXiv 2401.10774, section 2.3.1."""
        return RelaxedProb(infinite(at(q, x) > self._threshold(q)[..., 0], q))

    def _everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return infinite(q > self._threshold(q), q)

    def _threshold(self, q: Tensor) -> Tensor:
        entropy = torch.special.entr(q).sum(-1, keepdim=True)  # H(q), nats
        return (self.epsilon**0.5 * torch.exp(-entropy)).clamp(max=self.epsilon)

    forms: ClassVar[Forms] = Forms(relax, everywhere=_everywhere, accept_greedily=is_argmax)

    def plain(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        entropy = -math.fsum(y * math.log(y) for y in q if y > 0)
        return float(q[x] > min(self.epsilon, math.sqrt(self.epsilon) * math.exp(-entropy)))


@register("acceptance", "top-k")
class TopK(AcceptanceRule):
    """accept the target's k likeliest tokens with q(x) ≥ ρ·max q"""

    lossless: ClassVar[bool] = False
    k: int = option(
        10, "how many of the target's likeliest tokens are accepted", small=2, ge=1, le=1 << 20
    )
    rho: float = option(0.1, "least q(x) / max q", symbol="ρ", in_label=True, ge=0, le=1)

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        """Of equally likely tokens the one of lower id comes first."""
        qx, ids = at(q, x)[..., None], torch.arange(q.shape[-1], device=q.device)
        rank = ((q > qx) | (q == qx) & (ids < x[..., None])).sum(-1)
        return RelaxedProb(infinite((rank < self.k) & (qx[..., 0] >= self.rho * q.amax(-1)), q))

    def _everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        rank = q.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
        return infinite((rank < self.k) & (q >= self.rho * q.amax(-1, keepdim=True)), q)

    forms: ClassVar[Forms] = Forms(relax, everywhere=_everywhere, accept_greedily=is_argmax)

    def plain(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        rank = sum(qy > q[x] or (qy == q[x] and y < x) for y, qy in enumerate(q))
        return float(rank < self.k and q[x] >= self.rho * max(q))
