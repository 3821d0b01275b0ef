"""q̃ = q (Leviathan et al. 2023): speculative sampling that keeps the target's distribution."""

from __future__ import annotations

from lanternbench.engine.verify import AcceptanceRule, ExactRule
from lanternbench.methods.component import Acceptance
from lanternbench.models.target import Target
from lanternbench.registry import register


@register("acceptance", "exact")
class Exact(Acceptance):
    """accept with min(1, q(x)/p(x))"""

    def build(self, target: Target, max_depth: int) -> AcceptanceRule:
        return ExactRule()
