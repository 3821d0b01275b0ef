"""Emu3's image tokeniser, decoding half: transformers' video VQGAN, used for one frame (arXiv 2409.18869, 2.2)."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Emu3VQVAE, Emu3VQVAEConfig

from lanternbench.models.chameleon.vqgan import EuclideanCodebook
from lanternbench.models.loading import State


class Emu3VQ(nn.Module):
    """Token grids [B, h, w] -> images."""

    def __init__(self, config: Emu3VQVAEConfig):
        super().__init__()
        whole = Emu3VQVAE(config)  # of which the encoder is dropped
        self.quantize = EuclideanCodebook(config.codebook_size, config.embed_dim)
        self.post_quant_conv, self.decoder = whole.post_quant_conv, whole.decoder

    def decode(self, tokens: Tensor) -> Tensor:
        """[B, h, w] -> [B, 3, H, W], not clamped.

        One latent frame becomes four, of which an image is the first: layers over space see that one alone.
        """
        code = self.quantize.codes()[tokens].permute(0, 3, 1, 2)[:, :, None]  # [B, 4, 1, h, w]
        net = self.decoder
        both = torch.cat([self.post_quant_conv(code), code])
        for block in net.time_res_stack:
            both = block(both)
        for block in net.time_conv:
            both = F.silu(block(both))
        x, code = both[:, :, 0].chunk(2)
        x = net.up_block(net.middle_block(net.conv_in(x), code), code)
        return net.conv_out(F.silu(net.norm_out(x, code)))


_RENAMED = (  # the original release's names -> transformers'
    (r"^decoder\.mid\.attn_1\.norm\.", "decoder.middle_block.attn_norm."),
    (r"^decoder\.mid\.", "decoder.middle_block."),
    (r"^decoder\.up\.(\d+)\.attn\.(\d+)\.norm\.", r"decoder.up_block.up.\1.attn_norms.\2."),
    (r"^decoder\.up\.", "decoder.up_block.up."),
    (r"(attn(?:_1|\.\d+))\.([qkv])\.", r"\1.\2_proj."),
    (r"(attn(?:_1|\.\d+))\.proj_out\.", r"\1.out_proj."),
)


def from_published(state: State) -> State:
    """Either release's key names -> ours; the encoder is left out.  Attention by 1 × 1 convolutions is linear."""
    found = {}
    for key, value in state.items():
        key = key.removeprefix("model.").removeprefix("vqmodel.")
        if not key.startswith(("decoder.", "quantize.", "post_quant_conv.")):
            continue
        for old, new in _RENAMED:
            key = re.sub(old, new, key)
        found[key] = value[..., 0, 0] if key.endswith("_proj.weight") and value.ndim == 4 else value
    return found
