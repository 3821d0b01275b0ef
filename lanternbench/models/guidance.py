"""Classifier-free guidance."""

from __future__ import annotations

import torch
from torch import Tensor


def guide(logits: Tensor, scale: float) -> Tensor:
    """Rows [2B, …] (conditional first) -> [B, …]; uncond + scale · (cond − uncond)."""
    if scale == 1.0:
        return logits
    cond, uncond = logits.chunk(2)
    return torch.lerp(uncond, cond, scale)
