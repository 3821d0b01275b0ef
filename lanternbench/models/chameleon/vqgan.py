"""Chameleon's image tokeniser (Anole, Lumina-mGPT): a VQGAN whose nearest code is Euclidean, and its pixels.

Source: Gafni et al. 2022 (Make-A-Scene), Chameleon Team 2024, section 2.1.  Blocks are those of ``vq``.
"""

import re
from typing import Any

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.loading import State
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


_NAMES = {  # ours -> those of the official vqgan.yaml and of a Hugging Face config.json
    "ch": ("ch", "base_channels"),
    "ch_mult": ("ch_mult", "channel_multiplier"),
    "num_res_blocks": ("num_res_blocks",),
    "z_channels": ("z_channels", "latent_channels"),
    "codebook_size": ("n_embed", "num_embeddings"),
    "codebook_dim": ("embed_dim",),
}


def config_from_official(config: dict[str, Any], default: VQConfig | None = None) -> VQConfig:
    """``params`` of the official vqgan.yaml, or ``vq_config`` of a Hugging Face config.json -> ours.

    ``default`` gives what the file leaves out.  Raises UserError for what neither has, and for attention inside the
    levels or a double latent, which no Chameleon uses.
    """
    shape = config | config.get("ddconfig", {})
    if shape.get("attn_resolutions") or shape.get("double_z") or shape.get("double_latent"):
        raise UserError(
            "the image tokeniser's configuration asks for attention in its levels or a double latent, which no "
            "Chameleon tokeniser has: use the one published with the model"
        )
    fields: dict[str, Any] = {} if default is None else {name: getattr(default, name) for name in _NAMES}
    fields |= {ours: shape[name] for ours, names in _NAMES.items() for name in names if name in shape}
    if absent := [names[0] for ours, names in _NAMES.items() if ours not in fields]:
        raise UserError(f"the image tokeniser's configuration has no '{absent[0]}': use the one published with it")
    return VQConfig(**fields | {"ch_mult": tuple(fields["ch_mult"])}, attention=False)


def from_official(state: State, cfg: VQConfig) -> State:
    """Official key names, or transformers' (with or without ``model.vqmodel.``) -> ours; the loss net is left out."""
    last, result = len(cfg.ch_mult) - 1, {}
    for key, value in state.items():
        key = key.removeprefix("model.vqmodel.").removeprefix("vqmodel.")
        if key.startswith(("encoder.", "decoder.", "quantize.", "quant_conv.", "post_quant_conv.")):
            coarse_first = re.sub(r"^decoder\.up\.(\d+)\.", lambda m: f"decoder.up.{last - int(m[1])}.", key)
            result[from_vqgan(coarse_first)] = value
    return result


def to_pixels(images: Tensor) -> Tensor:
    """Decoded images [B, 3, H, W] -> uint8 [B, H, W, 3], truncated as the official code does, not rounded."""
    return (((images.clamp(-1, 1) + 1) / 2) * 255).to(torch.uint8).permute(0, 2, 3, 1)
