"""Typical acceptance (Medusa, arXiv 2401.10774, section 2.3.1): a token that is likely enough is accepted for sure."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule, RelaxedProb, at
from lanternbench.methods.component import Acceptance, option
from lanternbench.models.target import Target
from lanternbench.registry import register


class TypicalRule(AcceptanceRule):
    """q̃ = ∞ where q(x) > min(ε, √ε·exp(−H(q))), else 0."""

    def __init__(self, epsilon: float):
        self.epsilon = epsilon

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return RelaxedProb(self._infinite(at(q, x), q))

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return self._infinite(q, q[..., None, :])

    def _infinite(self, qx: Tensor, q: Tensor) -> Tensor:
        entropy = torch.special.entr(q).sum(-1)  # H(q), nats
        threshold = (self.epsilon**0.5 * torch.exp(-entropy)).clamp(max=self.epsilon)
        return torch.where(qx > threshold, torch.inf, 0.0).to(q.dtype)

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor:
        return draft.tokens == best.gather(1, parent)  # the paper's rule is for temperatures above 0


@register("acceptance", "typical")
class Typical(Acceptance):
    """accept where q(x) > min(ε, √ε·exp(−H(q)))"""

    lossless: ClassVar[bool] = False
    epsilon: float = option(0.09, "threshold ε", symbol="ε", gt=0, lt=1)

    def build(self, target: Target, max_depth: int) -> AcceptanceRule:
        return TypicalRule(self.epsilon)
