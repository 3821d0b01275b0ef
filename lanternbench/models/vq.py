"""VQGANs as image tokenisers, under LlamaGen's parameter names: its VQ-16, the embedded VQ-4,
Janus's and Chameleon's.

Sources: Sun et al. 2024, LlamaGen, section 2.1; Esser et al. 2021, VQGAN; Gafni et al. 2022,
Make-A-Scene.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.models.loading import State

_norm = partial(nn.GroupNorm, eps=1e-6)
_PARTS = ("encoder.", "decoder.", "quantize.", "quant_conv.", "post_quant_conv.")
_BLOCKS = {
    ".mid.block_1.": ".mid.0.",
    ".mid.attn_1.": ".mid.1.",
    ".mid.block_2.": ".mid.2.",
    ".block.": ".res.",
}


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


class ResBlock(nn.Module):
    def __init__(self, c_in: int, c_out: int, groups: int):
        super().__init__()
        self.norm1, self.conv1 = _norm(groups, c_in), nn.Conv2d(c_in, c_out, 3, padding=1)
        self.norm2, self.conv2 = _norm(groups, c_out), nn.Conv2d(c_out, c_out, 3, padding=1)
        self.nin_shortcut = nn.Identity() if c_in == c_out else nn.Conv2d(c_in, c_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return self.nin_shortcut(x) + self.conv2(F.silu(self.norm2(h)))


class AttnBlock(nn.Module):
    """Single-head attention over all positions, scale c^-0.5."""

    def __init__(self, c: int, groups: int):
        super().__init__()
        self.norm = _norm(groups, c)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(c, c, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        q, k, v = (f(n).flatten(2).transpose(1, 2) for f in (self.q, self.k, self.v))  # [B, hw, c]
        h = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.proj_out(h.transpose(1, 2).reshape_as(x))


class Level(nn.Module):
    """One resolution: residual blocks, attention at the coarsest, then a change of resolution
    called ``change``.
    """

    def __init__(
        self, c_in: int, c_out: int, blocks: int, attention: bool, groups: int, change: str
    ):
        super().__init__()
        self.res = nn.ModuleList(
            ResBlock(c_in if i == 0 else c_out, c_out, groups) for i in range(blocks)
        )
        self.attn = nn.ModuleList(
            AttnBlock(c_out, groups) for _ in range(blocks if attention else 0)
        )
        self.change = change
        if change:  # half the resolution, or twice
            down = change == "downsample"
            first = nn.ZeroPad2d((0, 1, 0, 1)) if down else nn.Upsample(scale_factor=2.0)
            conv = nn.Conv2d(c_out, c_out, 3, 2) if down else nn.Conv2d(c_out, c_out, 3, padding=1)
            self.add_module(change, nn.Sequential(OrderedDict(first=first, conv=conv)))

    def forward(self, x: Tensor) -> Tensor:
        for i, res in enumerate(self.res):
            x = res(x)
            if self.attn:
                x = self.attn[i](x)
        return getattr(self, self.change)(x) if self.change else x


def _levels(cfg: VQConfig, decodes: bool) -> nn.Sequential:
    """In the order in which they are passed."""
    last, widths = len(cfg.ch_mult) - 1, [cfg.ch * m for m in cfg.ch_mult]
    levels: list[nn.Module] = []
    for i in reversed(range(last + 1)) if decodes else range(last + 1):
        before = widths[min(i + 1, last)] if decodes else widths[i - 1] if i else cfg.ch
        change = ("upsample" if i else "") if decodes else ("downsample" if i != last else "")
        blocks, attention = cfg.num_res_blocks + decodes, cfg.attention and i == last
        levels.append(Level(before, widths[i], blocks, attention, cfg.norm_groups, change))
    return nn.Sequential(*levels)


def _half(cfg: VQConfig, decodes: bool) -> nn.Sequential:
    """An encoder [B, 3, H, W] -> [B, z, h, w], or a decoder the other way: levels, and ``mid`` at
    the coarsest.
    """
    wide, groups = cfg.ch * cfg.ch_mult[-1], cfg.norm_groups
    ends = (
        [(cfg.z_channels, wide), (cfg.ch * cfg.ch_mult[0], 3)]
        if decodes
        else [(3, cfg.ch), (wide, cfg.z_channels)]
    )
    res = partial(ResBlock, wide, wide, groups)
    parts: dict[str, nn.Module] = {"conv_in": nn.Conv2d(*ends[0], 3, padding=1)}
    for name in ("mid", "conv_blocks") if decodes else ("conv_blocks", "mid"):
        parts[name] = (
            nn.Sequential(res(), AttnBlock(wide, groups), res())
            if name == "mid"
            else _levels(cfg, decodes)
        )
    parts |= {
        "norm_out": _norm(groups, ends[1][0]),
        "silu": nn.SiLU(),
        "conv_out": nn.Conv2d(*ends[1], 3, padding=1),
    }
    return nn.Sequential(OrderedDict(parts))


class Codebook(nn.Module):
    """``spherical``: latents and codes are compared, and decoded, with unit norm; else by squared
    distance.
    """

    def __init__(self, size: int, dim: int, spherical: bool = True):
        super().__init__()
        self.embedding, self.spherical = nn.Embedding(size, dim), spherical

    def codes(self) -> Tensor:
        """[V, d]."""
        return (
            F.normalize(self.embedding.weight, dim=-1) if self.spherical else self.embedding.weight
        )

    def nearest(self, z: Tensor) -> Tensor:
        """z [..., d] -> indices [...], the first of equally near ones."""
        codes = self.codes()
        if self.spherical:
            return (F.normalize(z, dim=-1) @ codes.T).argmax(-1)
        return (codes.square().sum(-1) - 2 * z @ codes.T).argmin(-1)  # ‖z‖² is the same for all


class VQModel(nn.Module):
    """Images [B, 3, H, W] in −1…1 ↔ token grids [B, h, w]."""

    def __init__(self, cfg: VQConfig, spherical: bool = True):
        super().__init__()
        self.config = cfg
        self.encoder, self.decoder = _half(cfg, decodes=False), _half(cfg, decodes=True)
        self.quant_conv = nn.Conv2d(cfg.z_channels, cfg.codebook_dim, 1)
        self.post_quant_conv = nn.Conv2d(cfg.codebook_dim, cfg.z_channels, 1)
        self.quantize = Codebook(cfg.codebook_size, cfg.codebook_dim, spherical)

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


def from_vqgan(state: State, levels: int = 0) -> State:
    """VQGAN's or LlamaGen's names -> ours, of the tokeniser alone; ``levels``: how many, if
    counted from the finest.
    """
    result = {}
    for key, value in state.items():
        key = re.sub(r"^(model\.vqmodel|vqmodel|gen_vision_model)\.", "", key)
        if key.startswith(_PARTS):
            if levels:
                key = re.sub(
                    r"^decoder\.up\.(\d+)", lambda m: f"decoder.up.{levels - 1 - int(m[1])}", key
                )
            key = re.sub(r"^(decoder|encoder)\.(up|down)\.", r"\1.conv_blocks.", key)
            for theirs, ours in _BLOCKS.items():
                key = key.replace(theirs, ours)
            result[key] = value
    return result
