"""Rotary tables as complex numbers: a row per position, a column per pair of head dimensions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rope_1d(positions: int, head_dim: int, base: float = 10000.0, rotary_width: int = 0) -> Tensor:
    """complex64 [positions, head_dim / 2].  ``rotary_width``: of the part of a head that turns; the rest has ones."""
    width = rotary_width or head_dim
    freqs = F.pad(base ** (-torch.arange(0, width, 2).float() / width), (0, (head_dim - width) // 2))
    return torch.polar(torch.ones(()), torch.arange(positions).float()[:, None] * freqs)


def rope_2d(height: int, width: int, head_dim: int, prefix: int) -> Tensor:
    """LlamaGen's table: zeros for the ``prefix`` conditioning positions, then the grid in raster order.

    Half of a head's pairs turn with the row, half with the column.  The zeros make prefix queries and keys vanish,
    so every position attends to the conditioning uniformly.  complex64 [prefix + height · width, head_dim / 2].
    """
    half = head_dim // 2
    freqs = 10000.0 ** (-torch.arange(0, half, 2).float() / half)  # [head_dim / 4]
    rows = (torch.arange(height).float()[:, None] * freqs)[:, None].expand(-1, width, -1)
    cols = (torch.arange(width).float()[:, None] * freqs)[None].expand(height, -1, -1)
    grid = torch.polar(torch.ones(()), torch.cat([rows, cols], dim=-1).reshape(height * width, half))
    return torch.cat([torch.zeros(prefix, half, dtype=grid.dtype), grid])
