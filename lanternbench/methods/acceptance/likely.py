"""Rules that accept a token if the target finds it likely: q̃ is ∞ there, else 0.  For T > 0."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lanternbench.component import option
from lanternbench.engine.relaxed import RelaxedProb
from lanternbench.engine.sampling import at
from lanternbench.engine.verify import AcceptanceRule, OrderedTest
from lanternbench.models.target import Target
from lanternbench.registry import register


def infinite(accepted: Tensor, q: Tensor) -> Tensor:
    """Return q̃ of the accepted tokens, in the type of q."""
    return torch.where(accepted, torch.inf, 0.0).to(q.dtype)


@register("acceptance", "typical")
class Typical(AcceptanceRule):
    """accept where q(x) > min(ε, √ε·exp(−H(q)))"""

    lossless = False
    epsilon: float = option(0.09, "threshold ε", symbol="ε", gt=0, lt=1)

    def build(self, target: Target, depth: int) -> "TypicalTest":
        return TypicalTest(self.epsilon)


@dataclass(frozen=True, eq=False)
class TypicalTest(OrderedTest):
    """Medusa, arXiv 2401.10774, section 2.3.1."""

    epsilon: float

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return RelaxedProb(infinite(at(q, x) > self.threshold(q)[..., 0], q))

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return infinite(q > self.threshold(q), q)

    def threshold(self, q: Tensor) -> Tensor:
        """q [..., V] -> [..., 1]."""
        entropy = torch.special.entr(q).sum(-1, keepdim=True)  # H(q), nats
        threshold: Tensor = self.epsilon**0.5 * torch.exp(-entropy)
        return threshold.clamp(max=self.epsilon)


@register("acceptance", "top-k")
class TopK(AcceptanceRule):
    """accept the target's k likeliest tokens with q(x) ≥ ρ·max q"""

    lossless = False
    k: int = option(
        10, "how many of the target's likeliest tokens are accepted", small=2, ge=1, le=1 << 20
    )
    rho: float = option(0.1, "least q(x) / max q", symbol="ρ", in_label=True, ge=0, le=1)

    def build(self, target: Target, depth: int) -> "TopKTest":
        return TopKTest(self.k, self.rho)


@dataclass(frozen=True, eq=False)
class TopKTest(OrderedTest):
    """Of equally likely tokens the one of lower id comes first."""

    k: int
    rho: float

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        ids = torch.arange(q.shape[-1], device=q.device)
        x = x[..., None]
        q_x = q.gather(-1, x)
        comes_before = (q > q_x) | (q == q_x) & (ids < x)
        among_first = comes_before.sum(-1) < self.k
        is_likely = q_x[..., 0] >= self.rho * q.amax(-1)
        return RelaxedProb(infinite(among_first & is_likely, q))

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        order = q.sort(dim=-1, descending=True, stable=True).indices
        rank = order.argsort(-1)
        is_likely = q >= self.rho * q.amax(-1, keepdim=True)
        return infinite((rank < self.k) & is_likely, q)
