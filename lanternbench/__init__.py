"""lanternbench: benchmark speculative decoding for autoregressive image generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["load"]

if TYPE_CHECKING:
    from lanternbench.api import Model


def load(target: str = "tiny", device: str = "cpu") -> Model:
    """A target ready to generate: ``load("tiny").generate("a red circle", method="cool-sd", lam=2.0, seed=42)``."""
    from lanternbench.api import Model
    from lanternbench.models.catalogue import load_target

    return Model(load_target(target, device))
