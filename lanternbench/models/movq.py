"""Image decoders of MoVQ's kind, whose norms read the codes again (Zheng et al. 2022, MoVQ, arXiv
2209.09002): MoVQGAN's and Emu3's, of transformers' layers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Emu3VQVAE, Emu3VQVAEConfig

from lanternbench.models.loading import State
from lanternbench.models.vq import Codebook

if TYPE_CHECKING:
    from transformers.models.emu3.modeling_emu3 import Emu3VQVAEDecoder

_RENAMED = (  # names of the original releases -> transformers'
    (r"^decoder\.mid\.attn_1\.norm\.", "decoder.middle_block.attn_norm."),
    (r"^decoder\.mid\.", "decoder.middle_block."),
    (r"^decoder\.up\.(\d+)\.attn\.(\d+)\.norm\.", r"decoder.up_block.up.\1.attn_norms.\2."),
    (r"^decoder\.up\.", "decoder.up_block.up."),
    (r"(attn(?:_1|\.\d+))\.([qkv])\.", r"\1.\2_proj."),
    (r"(attn(?:_1|\.\d+))\.proj_out\.", r"\1.out_proj."),
)


class VideoMoVQ(nn.Module):
    """Token grids [B, h, w] -> images: the decoder of Emu3's video VQGAN (2409.18869, section 2.2)
    for one frame.
    """

    post_quant_conv: nn.Module

    def __init__(self, config: Emu3VQVAEConfig):
        super().__init__()
        whole = Emu3VQVAE(config)  # its encoder is dropped
        self.quantize = Codebook(config.codebook_size, config.embed_dim, comparison="distance")
        self.post_quant_conv = whole.post_quant_conv
        self.decoder = whole.decoder

    def decode(self, tokens: Tensor) -> Tensor:
        """[B, h, w] -> [B, 3, H, W], not clamped: the first of the four frames of one latent
        frame.
        """
        codes = self.quantize.codes()[tokens].permute(0, 3, 1, 2)[:, :, None]  # [B, 4, 1, h, w]
        both = torch.cat([self.post_quant_conv(codes), codes])
        for block in self.decoder.time_res_stack:
            both = block(both)
        for block in self.decoder.time_conv:
            both = F.silu(block(both))
        latents, codes = both[:, :, 0].chunk(2)
        return drawn(self.decoder, latents, codes)


class MoVQ(VideoMoVQ):
    """Token grids [B, h, w] -> images: MoVQGAN's decoder, which has no layers for time."""

    def __init__(self, config: Emu3VQVAEConfig):
        super().__init__(config)
        self.decoder.time_res_stack = nn.ModuleList()
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.latent_channels, 1)

    def decode(self, tokens: Tensor) -> Tensor:
        """[B, h, w] -> [B, 3, H, W], not clamped."""
        codes = self.quantize.codes()[tokens].permute(0, 3, 1, 2)
        return drawn(self.decoder, self.post_quant_conv(codes), codes)


def drawn(decoder: Emu3VQVAEDecoder, latents: Tensor, codes: Tensor) -> Tensor:
    """Return the images [B, 3, H, W] of latents and codes [B, d, h, w]."""
    x = decoder.middle_block(decoder.conv_in(latents), codes)
    x = decoder.up_block(x, codes)
    return decoder.conv_out(F.silu(decoder.norm_out(x, codes)))


def from_movq(state: State) -> State:
    """Return the tensors that decode images, under transformers' names, from its own or the
    original releases'; attention by 1 × 1 convolutions becomes linear.
    """
    result = {}
    for key, value in state.items():
        key = key.removeprefix("model.").removeprefix("vqmodel.")
        if not key.startswith(("decoder.", "quantize.embedding.", "post_quant_conv.")):
            continue
        for old, new in _RENAMED:
            key = re.sub(old, new, key)
        if key.endswith("_proj.weight") and value.ndim == 4:
            value = value[..., 0, 0]
        result[key] = value
    return result
