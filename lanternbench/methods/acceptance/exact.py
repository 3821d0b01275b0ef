"""q̃ = ω_i·q at draft position i: exact, or relaxed speculative decoding and Cool-SD (arXiv
2601.09212).
"""

import math
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from lanternbench.component import Prepared, option
from lanternbench.engine.plain import Probs
from lanternbench.engine.verify import AcceptanceRule, Forms, RelaxedProb, at, is_argmax
from lanternbench.models.target import Target
from lanternbench.registry import register


@register("acceptance", "exact")
class Exact(AcceptanceRule):
    """accept with min(1, q(x)/p(x))"""


def schedule(kind: str, lam: float, length: int, nu: float) -> list[float]:
    """ω_1 … ω_L with Σω_i = L·λ (Cool-SD, section 4).

    ``uniform``: ω_i = λ.  ``exp``: ω_i = λ·L·ν^(i−1) / Σ_j ν^(j−1).  ``linear``: equal falls from
    2λ·L/(L+1) to 2λ/(L+1), the steepest line of mean λ that stays positive.
    """
    falls = {
        "uniform": lambda i: 1.0,
        "exp": lambda i: nu**i,
        "linear": lambda i: float(length - i),
    }
    raw = [falls[kind](i) for i in range(length)]
    return [lam * length * w / sum(raw) for w in raw]


@register("acceptance", "annealed")
class Annealed(AcceptanceRule):
    """accept with min(1, ω_i·q(x)/p(x)) at draft position i"""

    lossless: ClassVar[bool] = False
    usual_residual: ClassVar[str] = "optimal"
    by_depth: ClassVar[bool] = True

    lam: float = option(
        2.0, "relaxation budget λ", symbol="λ", in_label=True, alias="lambda", also=1.0, ge=1, le=1000,
        allow_inf_nan=False,
    )  # fmt: skip
    schedule: Literal["exp", "linear", "uniform"] = option("exp", "how ω falls with depth")
    nu: float = option(0.7, "decay ν of the exp schedule", symbol="ν", gt=0, le=1)

    length = Prepared[int]()  # L, the deepest draft position
    omega = Prepared[Tensor]()  # [L + 1] ω_0 … ω_L, of which ω_0 is never asked for

    def prepare(self, target: Target, max_depth: int) -> Self:
        length = max(max_depth, 1)
        omega = [math.nan, *schedule(self.schedule, self.lam, length, self.nu)]
        return self.ready(length=length, omega=torch.tensor(omega, device=target.device))

    def unread(self) -> set[str]:
        return set() if self.schedule == "exp" else {"nu"}

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return RelaxedProb(self.omega.take(depth) * at(q, x))

    def _everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return self.omega.take(depth).unsqueeze(-1) * q

    # ω scales all alike
    forms: ClassVar[Forms] = Forms(relax, everywhere=_everywhere, accept_greedily=is_argmax)

    def plain(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        """ω_i·q(x)/p(x) (Cool-SD, eq. 6)."""
        lam, length, nu, i = self.lam, self.length, self.nu, depth
        if self.schedule == "uniform":
            omega = lam
        elif self.schedule == "exp":  # λ·L·ν^(i−1) / Σ_j ν^(j−1)
            omega = lam * length * nu ** (i - 1) / sum(nu ** (j - 1) for j in range(1, length + 1))
        else:  # the steepest line of mean λ that stays positive: ω_i ∝ L + 1 − i
            omega = 2 * lam * (length + 1 - i) / (length + 1)
        return omega * q[x] / p[x]
