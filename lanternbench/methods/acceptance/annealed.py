"""q̃ = ω_i·q at draft position i: relaxed speculative decoding and Cool-SD (arXiv 2601.09212)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule, RelaxedProb, at
from lanternbench.methods.component import Acceptance, option
from lanternbench.models.target import Target
from lanternbench.registry import register


def schedule(kind: str, lam: float, length: int, nu: float) -> list[float]:
    """ω_1 … ω_L with Σω_i = L·λ (Cool-SD, section 4).

    ``uniform``: ω_i = λ.  ``exp``: ω_i = λ·L·ν^(i−1) / Σ_j ν^(j−1).  ``linear``: equal falls from 2λ·L/(L+1) to
    2λ/(L+1), the steepest line of mean λ that stays positive.
    """
    if kind == "uniform":
        raw = [1.0] * length
    elif kind == "exp":
        raw = [nu**i for i in range(length)]
    else:
        raw = [float(length - i) for i in range(length)]
    return [lam * length * w / sum(raw) for w in raw]


class AnnealedRule(AcceptanceRule):
    def __init__(self, omega: list[float], device: torch.device | str = "cpu"):
        self.omega = torch.tensor([math.nan, *omega], device=device)  # ω_0 is never asked for

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return RelaxedProb(self.omega[depth] * at(q, x))

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return self.omega[depth][..., None] * q

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor:
        return draft.tokens == best.gather(1, parent)  # ω scales all tokens alike


@register("acceptance", "annealed")
class Annealed(Acceptance):
    """accept with min(1, ω_i·q(x)/p(x)) at draft position i"""

    lossless: ClassVar[bool] = False
    usual_residual: ClassVar[str] = "optimal"
    by_depth: ClassVar[bool] = True

    lam: float = option(
        2.0,
        "relaxation budget λ",
        symbol="λ",
        in_label=True,
        alias="lambda",
        also=1.0,
        ge=1,
        le=1000,
        allow_inf_nan=False,
    )
    schedule: Literal["exp", "linear", "uniform"] = option("exp", "how ω falls with depth")
    nu: float = option(0.7, "decay ν of the exp schedule", symbol="ν", gt=0, le=1)

    def build(self, target: Target, max_depth: int) -> AcceptanceRule:
        return AnnealedRule(schedule(self.schedule, self.lam, max(max_depth, 1), self.nu), target.device)

    def unread(self) -> set[str]:
        return set() if self.schedule == "exp" else {"nu"}
