"""Chameleon's image tokeniser (Anole, Lumina-mGPT): a VQGAN whose nearest code is Euclidean, and its pixels.

Source: Gafni et al. 2022 (Make-A-Scene), Chameleon Team 2024, section 2.1.  Blocks are those of ``vq``.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.vq import Codebook, VQConfig, VQModel, from_vqgan


class EuclideanCodebook(Codebook):
    """Nearest code by squared distance; nothing is normalised."""

    def codes(self) -> Tensor:
        return self.embedding.weight  # [V, d]

    def nearest(self, z: Tensor) -> Tensor:
        """z [..., d] -> indices [...], the first of equally near ones."""
        codes = self.codes()
        return (codes.square().sum(-1) - 2 * z @ codes.T).argmin(-1)  # ‖z‖² is the same for all


def chameleon_vqgan(cfg: VQConfig) -> VQModel:
    """Images [B, 3, H, W] in −1…1 ↔ codebook indices [B, h, w], any height and width."""
    model = VQModel(cfg)
    model.quantize = EuclideanCodebook(cfg.codebook_size, cfg.codebook_dim)
    return model


def config_from_official(config: dict[str, Any], default: VQConfig | None = None) -> VQConfig:
    """``params`` of the official vqgan.yaml, or ``vq_config`` of a Hugging Face config.json -> ours.

    ``default`` gives what the file leaves out.  Raises UserError for what neither has, and for attention inside the
    levels or a double latent, which no Chameleon uses.
    """
    shape = config.get("ddconfig", config)

    def entry(ours: str, *names: str) -> Any:
        for name in names:
            if name in shape or name in config:
                return shape.get(name, config.get(name))
        if default is not None:
            return getattr(default, ours)
        raise UserError(f"the image tokeniser's configuration has no '{names[0]}': use the one published with it")

    if shape.get("attn_resolutions") or shape.get("double_z") or shape.get("double_latent"):
        raise UserError(
            "the image tokeniser's configuration asks for attention in its levels or a double latent, which no "
            "Chameleon tokeniser has: use the one published with the model"
        )
    return VQConfig(
        ch=entry("ch", "ch", "base_channels"),
        ch_mult=tuple(entry("ch_mult", "ch_mult", "channel_multiplier")),
        num_res_blocks=entry("num_res_blocks", "num_res_blocks"),
        z_channels=entry("z_channels", "z_channels", "latent_channels"),
        codebook_size=entry("codebook_size", "n_embed", "num_embeddings"),
        codebook_dim=entry("codebook_dim", "embed_dim"),
        attention=False,
    )


def from_official(state: dict[str, Tensor], cfg: VQConfig) -> dict[str, Tensor]:
    """Official key names, or transformers' (with or without ``model.vqmodel.``) -> ours; the loss net is left out."""
    last = len(cfg.ch_mult) - 1
    found = {}
    for key, value in state.items():
        key = key.removeprefix("model.vqmodel.").removeprefix("vqmodel.")
        if not key.startswith(("encoder.", "decoder.", "quantize.", "quant_conv.", "post_quant_conv.")):
            continue
        coarse_first = re.sub(r"^decoder\.up\.(\d+)\.", lambda m: f"decoder.up.{last - int(m[1])}.", key)
        found[from_vqgan(coarse_first)] = value
    return found


def to_pixels(images: Tensor) -> Tensor:
    """Decoded images [B, 3, H, W] -> uint8 [B, H, W, 3], truncated as the official code does, not rounded."""
    return (((images.clamp(-1, 1) + 1) / 2) * 255).to(torch.uint8).permute(0, 2, 3, 1)
