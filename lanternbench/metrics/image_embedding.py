"""Unit embeddings of images by an open_clip model, as a feature net."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lanternbench.metrics.clip import MEAN, STD


class ImageEmbedding(nn.Module):
    """uint8 [B, 3, H, W] -> unit embeddings [B, D] of an open_clip model."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None])
        self.register_buffer("std", torch.tensor(STD)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        return normalize(self.model.encode_image((images / 255 - self.mean) / self.std), dim=-1)
