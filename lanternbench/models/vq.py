"""LlamaGen's VQ image tokeniser (VQ-16 and the embedded VQ-4), under its official parameter names.

Source: Sun et al. 2024, LlamaGen, section 2.1; encoder and decoder follow VQGAN (Esser et al. 2021).
"""

import re
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class VQConfig:
    """Shape of the tokeniser; the down-sampling factor is 2^(len(ch_mult) - 1)."""

    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    num_res_blocks: int = 2
    z_channels: int = 256
    codebook_size: int = 16384
    codebook_dim: int = 8
    norm_groups: int = 32
    attention: bool = True  # at the coarsest level; in the middle there always is

    @property
    def factor(self) -> int:
        return 2 ** (len(self.ch_mult) - 1)


def _norm(channels: int, groups: int) -> nn.GroupNorm:
    return nn.GroupNorm(groups, channels, eps=1e-6)


class ResBlock(nn.Module):
    def __init__(self, c_in: int, c_out: int, groups: int):
        super().__init__()
        self.norm1, self.conv1 = _norm(c_in, groups), nn.Conv2d(c_in, c_out, 3, padding=1)
        self.norm2, self.conv2 = _norm(c_out, groups), nn.Conv2d(c_out, c_out, 3, padding=1)
        if c_in != c_out:
            self.nin_shortcut = nn.Conv2d(c_in, c_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x) + h


class AttnBlock(nn.Module):
    """Single-head attention over all positions, scale c^-0.5."""

    def __init__(self, c: int, groups: int):
        super().__init__()
        self.norm = _norm(c, groups)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(c, c, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        q, k, v = (f(n).flatten(2).transpose(1, 2) for f in (self.q, self.k, self.v))  # [B, hw, c]
        h = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.proj_out(h.transpose(1, 2).reshape_as(x))


class Resample(nn.Module):
    """Twice the resolution, or with ``down`` half of it."""

    def __init__(self, c: int, down: bool):
        super().__init__()
        self.down, self.conv = down, nn.Conv2d(c, c, 3, stride=2 if down else 1, padding=0 if down else 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)) if self.down else F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """One resolution: residual blocks, attention at the coarsest, then a change of resolution."""

    def __init__(self, c_in: int, c_out: int, blocks: int, attention: bool, groups: int):
        super().__init__()
        self.res = nn.ModuleList(ResBlock(c_in if i == 0 else c_out, c_out, groups) for i in range(blocks))
        self.attn = nn.ModuleList(AttnBlock(c_out, groups) for _ in range(blocks if attention else 0))

    def forward(self, x: Tensor) -> Tensor:
        for i, res in enumerate(self.res):
            x = res(x)
            if self.attn:
                x = self.attn[i](x)
        for name in ("downsample", "upsample"):
            if hasattr(self, name):
                x = getattr(self, name)(x)
        return x


class Half(nn.Module):
    """An encoder [B, 3, H, W] -> [B, z, h, w], or a decoder the other way: levels, ``mid`` at the coarsest."""

    def __init__(self, cfg: VQConfig, decodes: bool):
        super().__init__()
        self.decodes, last, groups = decodes, len(cfg.ch_mult) - 1, cfg.norm_groups
        widths = [cfg.ch * m for m in cfg.ch_mult]
        ends = [(3, cfg.ch, widths[-1], cfg.z_channels), (cfg.z_channels, widths[-1], widths[0], 3)][decodes]
        self.conv_in = nn.Conv2d(*ends[:2], 3, padding=1)
        if decodes:
            self.mid = _mid(widths[-1], groups)
        self.conv_blocks = nn.ModuleList()  # in the order in which they are passed
        for i in reversed(range(last + 1)) if decodes else range(last + 1):
            before = widths[min(i + 1, last)] if decodes else widths[i - 1] if i else cfg.ch
            level = Level(before, widths[i], cfg.num_res_blocks + decodes, cfg.attention and i == last, groups)
            if i != (0 if decodes else last):
                setattr(level, "upsample" if decodes else "downsample", Resample(widths[i], not decodes))
            self.conv_blocks.append(level)
        if not decodes:
            self.mid = _mid(widths[-1], groups)
        self.norm_out = _norm(ends[2], groups)
        self.conv_out = nn.Conv2d(*ends[2:], 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for block in (*self.mid, *self.conv_blocks) if self.decodes else (*self.conv_blocks, *self.mid):
            x = block(x)
        return self.conv_out(F.silu(self.norm_out(x)))


def _mid(c: int, groups: int) -> nn.ModuleList:
    return nn.ModuleList([ResBlock(c, c, groups), AttnBlock(c, groups), ResBlock(c, c, groups)])


class Codebook(nn.Module):
    """Nearest code on the unit sphere: latents and codes are compared, and decoded, with unit norm."""

    def __init__(self, size: int, dim: int):
        super().__init__()
        self.embedding = nn.Embedding(size, dim)

    def codes(self) -> Tensor:
        return F.normalize(self.embedding.weight, dim=-1)  # [V, d]

    def nearest(self, z: Tensor) -> Tensor:
        """z [..., d] -> indices [...]."""
        return (F.normalize(z, dim=-1) @ self.codes().T).argmax(-1)


class VQModel(nn.Module):
    """Images [B, 3, H, W] in −1…1 ↔ token grids [B, h, w]."""

    def __init__(self, cfg: VQConfig):
        super().__init__()
        self.config = cfg
        self.encoder, self.decoder = Half(cfg, decodes=False), Half(cfg, decodes=True)
        self.quant_conv = nn.Conv2d(cfg.z_channels, cfg.codebook_dim, 1)
        self.post_quant_conv = nn.Conv2d(cfg.codebook_dim, cfg.z_channels, 1)
        self.quantize = Codebook(cfg.codebook_size, cfg.codebook_dim)

    def latents(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, d, h, w], before quantisation."""
        return self.quant_conv(self.encoder(images))

    def encode(self, images: Tensor) -> Tensor:
        return self.quantize.nearest(self.latents(images).permute(0, 2, 3, 1))

    def decode_latents(self, z: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(z))

    def decode(self, tokens: Tensor) -> Tensor:
        """[B, h, w] -> [B, 3, H, W], not clamped."""
        return self.decode_latents(self.quantize.codes()[tokens].permute(0, 3, 1, 2))


_BLOCKS = {".mid.block_1.": ".mid.0.", ".mid.attn_1.": ".mid.1.", ".mid.block_2.": ".mid.2.", ".block.": ".res."}


def from_vqgan(key: str) -> str:
    """The name of a parameter in VQGAN's code -> LlamaGen's; levels keep their numbers."""
    key = re.sub(r"^(decoder|encoder)\.(up|down)\.", r"\1.conv_blocks.", key)
    for theirs, ours in _BLOCKS.items():
        key = key.replace(theirs, ours)
    return key
