"""Emu3's image tokeniser, decoding half: a video VQGAN whose norms are modulated by the codes, used for one frame.

Source: Wang et al. 2024 (arXiv 2409.18869), section 2.2; key names of transformers' ``emu3``.  One latent frame becomes
four, of which an image is the first: layers over space see that one alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log2

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.models.chameleon.vqgan import EuclideanCodebook
from lanternbench.models.loading import State
from lanternbench.models.vq import Upsample


@dataclass(frozen=True)
class Emu3VQConfig:
    """Shape of the tokeniser; space is down-sampled by 2^(len(ch_mult) - 1), time by ``frames``."""

    ch: int = 256
    ch_mult: tuple[int, ...] = (1, 2, 2, 4)
    num_res_blocks: int = 2
    attention: tuple[int, ...] = (3,)  # levels with attention, 0 the finest
    z_channels: int = 4
    codebook_size: int = 32768
    codebook_dim: int = 4
    frames: int = 4


class CausalConv(nn.Module):
    """Convolution over time and space [B, c, T, H, W] that sees no later frame."""

    def __init__(self, c_in: int, c_out: int, kernel: tuple[int, int, int]):
        super().__init__()
        self.conv = nn.Conv3d(c_in, c_out, kernel)
        self.padding = (kernel[2] // 2, kernel[2] // 2, kernel[1] // 2, kernel[1] // 2, 2, 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, self.padding))


class TemporalBlock(nn.Module):
    def __init__(self, c: int):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm3d(c), CausalConv(c, c, (3, 3, 3))
        self.norm2, self.conv2 = nn.BatchNorm3d(c), CausalConv(c, c, (3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h)))


class TemporalUpsample(nn.Module):
    def __init__(self, c: int):
        super().__init__()
        self.conv = CausalConv(c, c, (3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.repeat_interleave(2, 2))


class CodeNorm(nn.Module):
    """GroupNorm(x) · y(code) + b(code), the codes enlarged to the size of x."""

    def __init__(self, c: int, codes: int):
        super().__init__()
        self.norm_layer = nn.GroupNorm(32, c, eps=1e-6)
        self.conv_y, self.conv_b = nn.Conv2d(codes, c, 1), nn.Conv2d(codes, c, 1)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        code = F.interpolate(code, size=x.shape[-2:], mode="nearest")
        return self.norm_layer(x) * self.conv_y(code) + self.conv_b(code)


class ResBlock(nn.Module):
    def __init__(self, c_in: int, c_out: int, codes: int):
        super().__init__()
        self.norm1, self.conv1 = CodeNorm(c_in, codes), nn.Conv2d(c_in, c_out, 3, padding=1)
        self.norm2, self.conv2 = CodeNorm(c_out, codes), nn.Conv2d(c_out, c_out, 3, padding=1)
        self.nin_shortcut = nn.Identity() if c_in == c_out else nn.Conv2d(c_in, c_out, 1)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x, code)))
        return self.nin_shortcut(x) + self.conv2(F.silu(self.norm2(h, code)))


class Attention(nn.Module):
    """Single-head attention over all places, scale c^-0.5: [B, c, h, w] -> [B, c, h, w]."""

    def __init__(self, c: int):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(c, c) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2).transpose(1, 2)[:, None]  # [B, 1, hw, c]
        h = F.scaled_dot_product_attention(self.q_proj(flat), self.k_proj(flat), self.v_proj(flat))
        return self.out_proj(h)[:, 0].transpose(1, 2).reshape_as(x)


class Middle(nn.Module):
    def __init__(self, c: int, codes: int):
        super().__init__()
        self.block_1, self.block_2 = ResBlock(c, c, codes), ResBlock(c, c, codes)
        self.attn_1, self.attn_norm = Attention(c), CodeNorm(c, codes)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        x = self.block_1(x, code)
        x = x + self.attn_1(self.attn_norm(x, code))
        return self.block_2(x, code)


class Level(nn.Module):
    """One resolution: residual blocks, each with attention behind it where there is any, then up-sampling."""

    def __init__(self, c_in: int, c_out: int, config: Emu3VQConfig, attention: bool, last: bool):
        super().__init__()
        blocks, codes = config.num_res_blocks + 1, config.codebook_dim
        self.block = nn.ModuleList(ResBlock(c_out if i else c_in, c_out, codes) for i in range(blocks))
        self.attn = nn.ModuleList(Attention(c_out) for _ in range(blocks if attention else 0))
        self.attn_norms = nn.ModuleList(CodeNorm(c_out, codes) for _ in self.attn)
        self.upsample = nn.Identity() if last else Upsample(c_out)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        for i, block in enumerate(self.block):
            x = block(x, code)
            if len(self.attn):
                x = x + self.attn[i](self.attn_norms[i](x, code))
        return self.upsample(x)


class Levels(nn.Module):
    """Coarse to fine; they are numbered from the finest."""

    def __init__(self, config: Emu3VQConfig):
        super().__init__()
        widths = [config.ch * m for m in config.ch_mult]
        above = [*widths[1:], widths[-1]]  # of the next coarser level
        self.up = nn.ModuleList(
            Level(above[i], width, config, i in config.attention, i == 0) for i, width in enumerate(widths)
        )

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        for level in reversed(self.up):
            x = level(x, code)
        return x


class Decoder(nn.Module):
    def __init__(self, config: Emu3VQConfig):
        super().__init__()
        z, codes = config.z_channels, config.codebook_dim
        self.time_res_stack = nn.ModuleList(TemporalBlock(z) for _ in range(config.num_res_blocks))
        self.time_conv = nn.ModuleList(TemporalUpsample(z) for _ in range(int(log2(config.frames))))
        coarse, fine = config.ch * config.ch_mult[-1], config.ch * config.ch_mult[0]
        self.conv_in = nn.Conv2d(z, coarse, 3, padding=1)
        self.middle_block, self.up_block = Middle(coarse, codes), Levels(config)
        self.norm_out, self.conv_out = CodeNorm(fine, codes), nn.Conv2d(fine, 3, 3, padding=1)

    def forward(self, z: Tensor, code: Tensor) -> Tensor:
        """z and code, both [B, 4, 1, h, w] -> the first frame [B, 3, H, W]."""
        both = torch.cat([z, code])
        for block in self.time_res_stack:
            both = block(both)
        for block in self.time_conv:
            both = F.silu(block(both))
        x, code = both[:, :, 0].chunk(2)
        x = self.up_block(self.middle_block(self.conv_in(x), code), code)
        return self.conv_out(F.silu(self.norm_out(x, code)))


class Emu3VQ(nn.Module):
    """Token grids [B, h, w] -> images."""

    def __init__(self, config: Emu3VQConfig):
        super().__init__()
        self.config = config
        self.quantize = EuclideanCodebook(config.codebook_size, config.codebook_dim)
        self.post_quant_conv = CausalConv(config.codebook_dim, config.z_channels, (3, 1, 1))
        self.decoder = Decoder(config)

    def decode(self, tokens: Tensor) -> Tensor:
        """[B, h, w] -> [B, 3, H, W], not clamped."""
        code = self.quantize.codes()[tokens].permute(0, 3, 1, 2)[:, :, None]
        return self.decoder(self.post_quant_conv(code), code)


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
