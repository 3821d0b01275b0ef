"""Quality metrics: per-image scorers, set scorers, and the registry of both.  Missing is reported, never scored."""

from __future__ import annotations

from lanternbench.metrics.images import read_image
from lanternbench.metrics.registry import Scorer, SetScorer, register, scorers_for

__all__ = ["Scorer", "SetScorer", "read_image", "register", "scorers_for"]
