"""Train the embedded VQ tokeniser: plain reconstruction, straight-through codes, dead codes
re-seeded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.training import loop
from tools.train_tiny import data

CONFIG = VQConfig(
    ch=32, ch_mult=(1, 1, 1), num_res_blocks=0, z_channels=32, codebook_size=1024, norm_groups=4
)
BATCH = 32


def to_float(images: np.ndarray) -> Tensor:
    """uint8 [B, H, W, 3] -> float [B, 3, H, W] in −1…1."""
    return torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


class _Trainer:
    def __init__(self, model: VQModel, images: np.ndarray, steps: int):
        self.model, self.images, self.steps = model, images, steps
        self.used = torch.zeros(model.config.codebook_size)

    def _batch(self, step: int) -> Tensor:
        """Crops of a quarter of the area for the first 70 % of the steps: four times the pace,
        same statistics.
        """
        rng = np.random.default_rng([7, step])
        full = step >= 0.7 * self.steps
        picked = self.images[
            np.sort(rng.integers(len(self.images), size=BATCH // 2 if full else BATCH))
        ]
        if not full:
            y, x = rng.integers(0, 33, 2)
            picked = picked[:, y : y + 32, x : x + 32]
        return to_float(picked)

    @torch.no_grad()
    def _reseed(self, z: Tensor, step: int) -> None:
        """Every 50 steps, move codes that nothing chose onto latents of this batch (first 60 % of
        the steps).
        """
        if step % 50 == 49 and step < 0.6 * self.steps:
            dead = (self.used == 0).nonzero()[:, 0]
            gen = torch.Generator().manual_seed(step)
            rows = torch.randint(len(z), (len(dead),), generator=gen)
            self.model.quantize.embedding.weight[dead] = z[rows] + 0.01 * torch.randn(
                len(dead), 8, generator=gen
            )
            self.used.zero_()

    def __call__(self, step: int) -> dict[str, Tensor]:
        x = self._batch(step)
        z = F.normalize(self.model.latents(x).permute(0, 2, 3, 1), dim=-1)
        self._reseed(z.detach().reshape(-1, z.shape[-1]), step)
        tokens = self.model.quantize.nearest(z)
        codes = self.model.quantize.codes()[tokens]
        self.used += torch.bincount(tokens.flatten(), minlength=len(self.used))
        quantised = z + (codes - z).detach()  # straight-through
        if step < 100:  # a plain autoencoder first, so that the codes start on meaningful latents
            quantised = z
        y = self.model.decode_latents(quantised.permute(0, 3, 1, 2))
        pixel = F.l1_loss(y, x) + F.mse_loss(y, x)
        edge = F.l1_loss(y.diff(dim=-1), x.diff(dim=-1)) + F.l1_loss(
            y.diff(dim=-2), x.diff(dim=-2)
        )
        commit = F.mse_loss(codes, z.detach()) + 0.25 * F.mse_loss(codes.detach(), z)
        return {
            "loss": pixel + 0.5 * edge + commit * z.shape[-1],
            "pixel": pixel.detach(),
            "commit": commit.detach(),
        }


def train(
    folder: Path, steps: int = 2500, count: int = 8000, log: Callable[[str], None] = print
) -> VQModel:
    """The tokeniser, trained on ``count`` scenes."""
    torch.manual_seed(1)
    model = VQModel(CONFIG).to(memory_format=torch.channels_last)
    trainer = _Trainer(model, data.images(folder, count), steps)
    loop.fit("vq", model, loop.optimizers(model, 2e-3), trainer, steps, folder, log=log)
    return model
