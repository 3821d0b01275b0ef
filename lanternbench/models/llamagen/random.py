"""LlamaGen with random weights, without a text encoder and trained drafters: for counting
operators and measuring speed.
"""

from dataclasses import dataclass, replace
from typing import cast
from zlib import crc32

import torch
from torch import Tensor

from lanternbench.models.drafters.dflash import Medusa
from lanternbench.models.entries import Entry
from lanternbench.models.llamagen.checkpoint import LlamaGenConfig, LlamaGenFamily
from lanternbench.models.loading import random_net
from lanternbench.models.target import Target
from lanternbench.models.token_decoder import words

HEADS = 5  # of Medusa: one for each level of its default tree
DRAFTER = {"dim": 768, "n_layer": 12, "n_head": 12}  # an independent drafter of 111 M weights
SMALL_VQ = {
    "ch": 32,
    "ch_mult": [1, 2],
    "num_res_blocks": 1,
    "z_channels": 16,
    "codebook_size": 64,
    "codebook_dim": 8,
}
SMALL = {
    "dim": 32,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": 64,
    "grid": 16,
    "caption_dim": 8,
    "cls_token_num": 16,
    "vq": SMALL_VQ,
}
SMALL_DRAFTER = {"dim": 16, "n_layer": 1, "n_head": 2}


@dataclass(frozen=True)
class SyntheticFeatures:
    """Random features in place of a text encoder's; a caption always has the same."""

    length: int  # positions
    width: int
    device: str
    dtype: torch.dtype

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Return features [B, length, width] and mask [B, length], right-padded."""
        features = torch.stack([self._features(caption) for caption in captions])
        counts = torch.tensor([len(words(caption)) + 1 for caption in captions])
        mask = torch.arange(self.length) < counts.clamp(max=self.length)[:, None]
        features = features * mask[..., None]
        return features.to(self.device, self.dtype), mask.long().to(self.device)

    def _features(self, caption: str) -> Tensor:
        generator = torch.Generator().manual_seed(crc32(caption.encode()))
        return torch.randn(self.length, self.width, generator=generator)


def without_encoder(target: Target) -> Target:
    """Return a text-to-image LlamaGen with synthetic features."""
    config = cast(LlamaGenConfig, target.model.config)
    device = str(target.device)
    text = SyntheticFeatures(config.cls_token_num, config.caption_dim, device, target.dtype)
    return replace(target, text=text)


def with_all_drafters(target: Target, drafter: dict[str, int] = DRAFTER) -> Target:
    """Return a random LlamaGen with Medusa heads and an independent drafter of the shape
    ``drafter`` as well.
    """
    config = target.model.config
    device = str(target.device)
    smaller = Entry(
        name=target.name, family="llamagen", about="", shape={**vars(config), **drafter}
    )
    independent = LlamaGenFamily().decoder(smaller, None, device, target.dtype)
    heads = random_net(lambda: Medusa(config.dim, HEADS), device, target.dtype)
    return replace(target, drafters=target.drafters | {"model": independent, "medusa": heads})


def small_target(
    device: str = "cpu", dtype: torch.dtype = torch.float32, layers: int = 2
) -> Target:
    """Return a LlamaGen that any CPU decodes at once, with a drafter of every kind."""
    row = Entry(
        name="small",
        family="llamagen",
        about="",
        shape=SMALL | {"n_layer": layers},
        top_k=32,
    )
    target = without_encoder(LlamaGenFamily().random_target(row, device, dtype))
    return with_all_drafters(target, SMALL_DRAFTER)
