"""q̃ = q (Leviathan et al. 2023): speculative sampling that keeps the target's distribution."""

from __future__ import annotations

from lanternbench.engine.verify import AcceptanceRule
from lanternbench.registry import register


@register("acceptance", "exact")
class Exact(AcceptanceRule):
    """accept with min(1, q(x)/p(x))"""
