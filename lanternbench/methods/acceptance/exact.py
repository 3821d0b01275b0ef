"""q̃ = ω_i·q at draft position i: exact, or relaxed speculative decoding and Cool-SD (arXiv
2601.09212).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lanternbench.component import option
from lanternbench.engine.relaxed import RelaxedProb
from lanternbench.engine.sampling import at
from lanternbench.engine.verify import AcceptanceRule, ExactTest, OrderedTest
from lanternbench.models.target import Target
from lanternbench.registry import register


@register("acceptance", "exact")
class Exact(AcceptanceRule):
    """accept with min(1, q(x)/p(x))"""

    def build(self, target: Target, depth: int) -> ExactTest:
        return ExactTest()


def schedule(kind: str, lam: float, length: int, nu: float) -> list[float]:
    """ω_1 … ω_L with Σω_i = L·λ (Cool-SD, section 4).

    ``uniform``: ω_i = λ.  ``exp``: ω_i = λ·L·ν^(i−1) / Σ_j ν^(j−1).  ``linear``: equal falls from
    2λ·L/(L+1) to 2λ/(L+1), the steepest line of mean λ that stays positive.
    """
    raw = [1.0] * length
    if kind == "exp":
        raw = [nu**i for i in range(length)]
    elif kind == "linear":
        raw = [float(length - i) for i in range(length)]
    total = sum(raw)
    return [lam * length * w / total for w in raw]


@register("acceptance", "annealed")
class Annealed(AcceptanceRule):
    """accept with min(1, ω_i·q(x)/p(x)) at draft position i"""

    lossless = False
    usual_residual = "optimal"

    lam: float = option(
        2.0, "relaxation λ; 1 is none", symbol="λ", in_label=True, alias="lambda", also=1.0, ge=1, le=1000,
        allow_inf_nan=False,
    )  # fmt: skip
    schedule: Literal["exp", "linear", "uniform"] = option("exp", "how ω falls with depth")
    nu: float = option(0.7, "decay ν of the exp schedule", symbol="ν", gt=0, le=1)

    def unread(self) -> set[str]:
        return set() if self.schedule == "exp" else {"nu"}

    def build(self, target: Target, depth: int) -> "ScaledTest":
        omega = schedule(self.schedule, self.lam, max(depth, 1), self.nu)
        return ScaledTest.of(omega, target.device)


@dataclass(frozen=True, eq=False)
class ScaledTest(OrderedTest):
    """q̃ = ω_i·q at depth i, which keeps the order of tokens."""

    omega: Tensor  # [L + 1, 1] ω_0 … ω_L, of which ω_0 is never read

    @classmethod
    def of(cls, omega: Sequence[float], device: torch.device) -> "ScaledTest":
        """omega: ω_1 … ω_L."""
        return cls(torch.tensor([math.nan, *omega], device=device).unsqueeze(1))

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return RelaxedProb(self.omega.take(depth) * at(q, x))

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return self.omega[depth] * q
