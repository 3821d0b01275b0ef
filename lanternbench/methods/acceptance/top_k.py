"""Top-k acceptance: a token that is among the target's likeliest is accepted for sure."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lanternbench.component import option
from lanternbench.engine.plain import Probs
from lanternbench.engine.verify import AcceptanceRule, Forms, RelaxedProb, at, is_argmax
from lanternbench.registry import register


@register("acceptance", "top-k")
class TopK(AcceptanceRule):
    """accept the target's k likeliest tokens with q(x) ≥ ρ·max q"""

    lossless: ClassVar[bool] = False
    k: int = option(10, "how many of the target's likeliest tokens are accepted", small=2, ge=1, le=1 << 20)
    rho: float = option(0.1, "least q(x) / max q", symbol="ρ", in_label=True, ge=0, le=1)

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        """Of equally likely tokens the one of lower id comes first."""
        qx, ids = at(q, x)[..., None], torch.arange(q.shape[-1], device=q.device)
        rank = ((q > qx) | (q == qx) & (ids < x[..., None])).sum(-1)
        return RelaxedProb(self._infinite(rank, qx[..., 0], q.amax(-1)))

    def _everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        rank = q.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
        return self._infinite(rank, q, q.amax(-1, keepdim=True))

    def _infinite(self, rank: Tensor, q: Tensor, most: Tensor) -> Tensor:
        """q̃: ∞ where a token is accepted, else 0."""
        return torch.where((rank < self.k) & (q >= self.rho * most), torch.inf, 0.0).to(q.dtype)

    forms: ClassVar[Forms] = Forms(relax, everywhere=_everywhere, accept_greedily=is_argmax)

    def plain(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        rank = sum(qy > q[x] or (qy == q[x] and y < x) for y, qy in enumerate(q))
        return float(rank < self.k and q[x] >= self.rho * max(q))
