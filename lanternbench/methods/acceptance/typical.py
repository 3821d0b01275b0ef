"""Typical acceptance (Medusa, arXiv 2401.10774, section 2.3.1): a token that is likely enough is accepted for sure."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from lanternbench.component import option
from lanternbench.engine.plain import Probs
from lanternbench.engine.verify import AcceptanceRule, Forms, RelaxedProb, at, is_argmax
from lanternbench.registry import register


@register("acceptance", "typical")
class Typical(AcceptanceRule):
    """accept where q(x) > min(ε, √ε·exp(−H(q)))"""

    lossless: ClassVar[bool] = False
    epsilon: float = option(0.09, "threshold ε", symbol="ε", gt=0, lt=1)

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return RelaxedProb(self._infinite(at(q, x), q))

    def _everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return self._infinite(q, q[..., None, :])

    def _infinite(self, qx: Tensor, q: Tensor) -> Tensor:
        """q̃: ∞ where x is accepted, else 0."""
        entropy = torch.special.entr(q).sum(-1)  # H(q), nats
        threshold = (self.epsilon**0.5 * torch.exp(-entropy)).clamp(max=self.epsilon)
        return torch.where(qx > threshold, torch.inf, 0.0).to(q.dtype)

    forms: ClassVar[Forms] = Forms(relax, everywhere=_everywhere, accept_greedily=is_argmax)  # meant for T > 0

    def plain(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        entropy = -math.fsum(y * math.log(y) for y in q if y > 0)
        return float(q[x] > min(self.epsilon, math.sqrt(self.epsilon) * math.exp(-entropy)))
