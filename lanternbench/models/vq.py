"""VQGANs as image tokenisers, under LlamaGen's parameter names: its VQ-16, the bundled VQ-4,
Janus's, Chameleon's and Emu3.5's.

Sources: Sun et al. 2024, LlamaGen, section 2.1; Esser et al. 2021, VQGAN; Gafni et al. 2022,
Make-A-Scene; Shi et al. 2024, IBQ (arXiv 2412.02692).
"""

import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.loading import Json, State

_norm = partial(nn.GroupNorm, eps=1e-6)
_PARTS = ("encoder.", "decoder.", "quantize.", "quant_conv.", "post_quant_conv.")
_BLOCKS = {
    ".mid.block_1.": ".mid.0.",
    ".mid.attn_1.": ".mid.1.",
    ".mid.block_2.": ".mid.2.",
    ".block.": ".res.",
}
_FIELDS = {  # ours -> those of VQGAN's configurations and of a Hugging Face config.json
    "ch": ("ch", "base_channels"),
    "ch_mult": ("ch_mult", "channel_multiplier"),
    "num_res_blocks": ("num_res_blocks",),
    "z_channels": ("z_channels", "latent_channels"),
    "codebook_size": ("n_embed", "num_embeddings", "codebook_size"),
    "codebook_dim": ("embed_dim",),
}
# how latents and codes are compared: by angle (unit norm, also when decoded), by distance, by
# their product
Comparison = Literal["angle", "distance", "product"]


class Codes(Protocol):
    """The codebook of an image tokeniser."""

    def codes(self) -> Tensor:
        """The codes as the tokeniser compares them [V, d]."""


class ImageTokeniser(Protocol):
    """A tokeniser of which a target needs the decoder."""

    @property
    def quantize(self) -> Codes: ...

    def decode(self, tokens: Tensor) -> Tensor:
        """[B, h, w] -> images, usually [B, 3, H, W] in −1…1, not clamped."""


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
    # at these levels, the finest being 0, or at the coarsest alone; in the middle there always is
    attention: bool | tuple[int, ...] = True

    @classmethod
    def described(cls, config: Json, default: "VQConfig") -> "VQConfig":
        """A VQGAN's configuration, flat or with a ``ddconfig`` -> ours, ``default`` filling gaps.

        Raises UserError for a double latent.
        """
        shape = config | config.get("ddconfig", {})
        if shape.get("double_z") or shape.get("double_latent"):
            raise UserError("the image tokeniser has a double latent: use the published one")
        fields: Json = {}
        for ours, names in _FIELDS.items():
            for name in names:
                if name in shape:
                    fields[ours] = shape[name]
        fields["ch_mult"] = tuple(fields.get("ch_mult", default.ch_mult))
        attended = shape.get("attn_resolutions")
        if attended is not None:
            sides = [shape["resolution"] >> level for level in range(len(fields["ch_mult"]))]
            fields["attention"] = tuple(sides.index(side) for side in attended if side in sides)
        return replace(default, **fields)

    @property
    def attention_levels(self) -> tuple[int, ...]:
        if isinstance(self.attention, bool):
            return (len(self.ch_mult) - 1,) if self.attention else ()
        return self.attention

    @property
    def widths(self) -> list[int]:
        """Channels by level, the finest first."""
        return [self.ch * factor for factor in self.ch_mult]


class ResBlock(nn.Module):
    def __init__(self, c_in: int, c_out: int, groups: int):
        super().__init__()
        self.norm1 = _norm(groups, c_in)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.norm2 = _norm(groups, c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.nin_shortcut = nn.Identity() if c_in == c_out else nn.Conv2d(c_in, c_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return self.nin_shortcut(x) + self.conv2(F.silu(self.norm2(h)))


class AttnBlock(nn.Module):
    """Single-head attention over all positions, scale c^-0.5."""

    def __init__(self, c: int, groups: int):
        super().__init__()
        self.norm = _norm(groups, c)
        self.q = nn.Conv2d(c, c, 1)
        self.k = nn.Conv2d(c, c, 1)
        self.v = nn.Conv2d(c, c, 1)
        self.proj_out = nn.Conv2d(c, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        qkv = [part(normed).flatten(2).mT[:, None] for part in (self.q, self.k, self.v)]
        attended = F.scaled_dot_product_attention(*qkv)[:, 0]  # [B, hw, c]
        return x + self.proj_out(attended.mT.reshape_as(x))


class Level(nn.Module):
    """Residual blocks at one resolution, each with attention if asked for; ``upsample`` or
    ``downsample`` follows, named by ``change``.
    """

    def __init__(
        self, c_in: int, c_out: int, blocks: int, groups: int, attention: bool, change: str
    ):
        super().__init__()
        self.res = nn.ModuleList()
        self.attn = nn.ModuleList()
        for number in range(blocks):
            self.res.append(ResBlock(c_out if number else c_in, c_out, groups))
            if attention:
                self.attn.append(AttnBlock(c_out, groups))
        self.change = change
        if change:
            self.add_module(change, _resampling(change, c_out))

    def forward(self, x: Tensor) -> Tensor:
        for number, res in enumerate(self.res):
            x = res(x)
            if self.attn:
                x = self.attn[number](x)
        return getattr(self, self.change)(x) if self.change else x


def _resampling(change: str, channels: int) -> nn.Sequential:
    """Return what doubles the resolution, or halves it."""
    if change == "upsample":
        first: nn.Module = nn.Upsample(scale_factor=2.0)
        conv = nn.Conv2d(channels, channels, 3, padding=1)
    else:
        first = nn.ZeroPad2d((0, 1, 0, 1))
        conv = nn.Conv2d(channels, channels, 3, 2)
    return nn.Sequential(OrderedDict(first=first, conv=conv))


def _levels(config: VQConfig, decodes: bool) -> nn.Sequential:
    """Return the levels of an encoder, from the finest to the coarsest, or back of a decoder."""
    coarsest = len(config.ch_mult) - 1
    order = list(range(coarsest + 1))
    blocks = config.num_res_blocks
    width = config.ch
    change = "downsample"
    if decodes:
        order.reverse()
        blocks += 1
        width = config.widths[-1]
        change = "upsample"
    levels = nn.Sequential()
    for level in order:
        attention = level in config.attention_levels
        following = change if level != order[-1] else ""
        shape = (width, config.widths[level], blocks, config.norm_groups)
        levels.append(Level(*shape, attention, following))
        width = config.widths[level]
    return levels


def _middle(config: VQConfig) -> nn.Sequential:
    width = config.widths[-1]
    groups = config.norm_groups
    first = ResBlock(width, width, groups)
    return nn.Sequential(first, AttnBlock(width, groups), ResBlock(width, width, groups))


def _encoder(config: VQConfig) -> nn.Sequential:
    """[B, 3, H, W] -> [B, z, h, w]."""
    width = config.widths[-1]
    parts = OrderedDict[str, nn.Module](
        conv_in=nn.Conv2d(3, config.ch, 3, padding=1),
        conv_blocks=_levels(config, decodes=False),
        mid=_middle(config),
        norm_out=_norm(config.norm_groups, width),
        silu=nn.SiLU(),
        conv_out=nn.Conv2d(width, config.z_channels, 3, padding=1),
    )
    return nn.Sequential(parts)


def _decoder(config: VQConfig) -> nn.Sequential:
    """[B, z, h, w] -> [B, 3, H, W]."""
    width = config.widths[0]
    parts = OrderedDict[str, nn.Module](
        conv_in=nn.Conv2d(config.z_channels, config.widths[-1], 3, padding=1),
        mid=_middle(config),
        conv_blocks=_levels(config, decodes=True),
        norm_out=_norm(config.norm_groups, width),
        silu=nn.SiLU(),
        conv_out=nn.Conv2d(width, 3, 3, padding=1),
    )
    return nn.Sequential(parts)


class Codebook(nn.Module):
    def __init__(self, size: int, dim: int, comparison: Comparison = "angle"):
        super().__init__()
        self.embedding = nn.Embedding(size, dim)
        self.comparison = comparison

    def codes(self) -> Tensor:
        """[V, d]."""
        table = self.embedding.weight
        return F.normalize(table, dim=-1) if self.comparison == "angle" else table

    def nearest(self, z: Tensor) -> Tensor:
        """z [..., d] -> indices [...], the first of equally near ones."""
        codes = self.codes()
        if self.comparison == "distance":
            return (codes.square().sum(-1) - 2 * z @ codes.T).argmin(
                -1
            )  # ‖z‖² is the same for all
        if self.comparison == "angle":
            z = F.normalize(z, dim=-1)
        return (z @ codes.T).argmax(-1)


class VQModel(nn.Module):
    """Images [B, 3, H, W] in −1…1 ↔ token grids [B, h, w]."""

    def __init__(self, config: VQConfig, comparison: Comparison = "angle"):
        super().__init__()
        self.config = config
        self.encoder = _encoder(config)
        self.decoder = _decoder(config)
        self.quant_conv = nn.Conv2d(config.z_channels, config.codebook_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.codebook_dim, config.z_channels, 1)
        self.quantize = Codebook(config.codebook_size, config.codebook_dim, comparison)

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


def from_vqgan(state: State, config: VQConfig, finest_first: bool = True) -> State:
    """Return the tokeniser's tensors alone, VQGAN's or LlamaGen's names as ours.

    ``finest_first``: whether the levels of VQGAN's decoder are counted from the finest.
    """
    coarsest = len(config.ch_mult) - 1
    result = {}
    for key, value in state.items():
        key = re.sub(r"^(model\.vqmodel|vqmodel|gen_vision_model)\.", "", key)
        if not key.startswith(_PARTS):
            continue
        upsampling = re.match(r"decoder\.up\.(\d+)", key)
        if finest_first and upsampling:
            level = coarsest - int(upsampling[1])
            key = f"decoder.up.{level}{key[upsampling.end() :]}"
        key = re.sub(r"^(decoder|encoder)\.(up|down)\.", r"\1.conv_blocks.", key)
        for theirs, ours in _BLOCKS.items():
            key = key.replace(theirs, ours)
        result[key] = value
    return result
