"""Top-k acceptance: a token that is among the target's likeliest is accepted for sure."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule, RelaxedProb, at
from lanternbench.methods.component import Acceptance, option
from lanternbench.models.target import Target
from lanternbench.registry import register


class TopKRule(AcceptanceRule):
    """q̃ = ∞ where x is one of the k likeliest tokens of q, of equal ones the lower id, and q(x) ≥ ρ·max q; else 0."""

    def __init__(self, k: int, rho: float):
        self.k, self.rho = k, rho

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        qx, ids = at(q, x)[..., None], torch.arange(q.shape[-1], device=q.device)
        rank = ((q > qx) | (q == qx) & (ids < x[..., None])).sum(-1)
        return RelaxedProb(self._infinite(rank, qx[..., 0], q.amax(-1)))

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        rank = q.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
        return self._infinite(rank, q, q.amax(-1, keepdim=True))

    def _infinite(self, rank: Tensor, q: Tensor, most: Tensor) -> Tensor:
        return torch.where((rank < self.k) & (q >= self.rho * most), torch.inf, 0.0).to(q.dtype)

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor:
        return draft.tokens == best.gather(1, parent)


@register("acceptance", "top-k")
class TopK(Acceptance):
    """accept the target's k likeliest tokens with q(x) ≥ ρ·max q"""

    lossless: ClassVar[bool] = False
    k: int = option(10, "how many of the target's likeliest tokens are accepted", small=2, ge=1, le=1 << 20)
    rho: float = option(0.1, "least q(x) / max q", symbol="ρ", in_label=True, ge=0, le=1)

    def build(self, target: Target, max_depth: int) -> AcceptanceRule:
        return TopKRule(self.k, self.rho)
