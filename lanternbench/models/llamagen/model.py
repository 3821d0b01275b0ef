"""LlamaGen's decoder (Sun et al. 2024): class- or caption-conditional, 2-D rotary positions, official key names."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lanternbench.models.decoder import ImageDecoder, causal_mask
from lanternbench.models.drafters import eagle_files
from lanternbench.models.grids import Grid, grid_of
from lanternbench.models.loading import State
from lanternbench.models.target import Prefix
from lanternbench.models.transformer import DecoderConfig, rope_2d


@dataclass(frozen=True)
class LlamaGenConfig:
    """The arguments of the official ``ModelArgs`` that inference needs."""

    dim: int
    n_layer: int
    n_head: int
    vocab_size: int = 16384
    grid: Grid = (16, 16)  # rows and columns of image tokens; a number for a square
    model_type: str = "t2i"  # or "c2i"
    caption_dim: int = 2048
    cls_token_num: int = 120
    num_classes: int = 1000
    multiple_of: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", grid_of(self.grid))

    @property
    def prefix(self) -> int:
        """Conditioning positions before the first image token."""
        return self.cls_token_num if self.model_type == "t2i" else 1

    @property
    def decoder(self) -> DecoderConfig:
        width = -(-int(8 * self.dim / 3) // self.multiple_of) * self.multiple_of  # 8/3 · dim, rounded up
        return DecoderConfig(self.dim, self.n_layer, self.n_head, width, self.vocab_size)


class CaptionEmbedding(nn.Module):
    """Text features -> prefix embeddings; the unconditional prompt is a learned feature sequence."""

    def __init__(self, cfg: LlamaGenConfig):
        super().__init__()
        self.cap_proj = nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(cfg.caption_dim, cfg.dim, bias=False),
                gelu=nn.GELU("tanh"),
                fc2=nn.Linear(cfg.dim, cfg.dim, bias=False),
            )
        )
        self.uncond_embedding = nn.Parameter(torch.randn(cfg.cls_token_num, cfg.caption_dim) / cfg.caption_dim**0.5)

    def forward(self, features: Tensor) -> Tensor:
        return self.cap_proj(features)

    def unconditional(self, count: int) -> Tensor:
        """What stands for no caption: [count, T, c]."""
        return self.uncond_embedding.expand(count, -1, -1)


class LabelEmbedding(nn.Module):
    """Class labels -> one prefix embedding; the last row is the null class."""

    def __init__(self, cfg: LlamaGenConfig):
        super().__init__()
        self.embedding_table = nn.Embedding(cfg.num_classes + 1, cfg.dim)

    def forward(self, labels: Tensor) -> Tensor:
        """Labels [B, 1] -> prefix [B, 1, dim]."""
        return self.embedding_table(labels)

    def unconditional(self, count: int) -> Tensor:
        """What stands for no class: [count, 1]."""
        return self.embedding_table.weight.new_full((count, 1), len(self.embedding_table.weight) - 1, dtype=torch.long)


def left_pad(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Right-padded features [B, T, c] and mask [B, T] -> left-padded, zero where masked, as the official sampler."""
    length = mask.sum(-1, keepdim=True)  # [B, 1]
    index = (torch.arange(mask.shape[1], device=mask.device) + length) % mask.shape[1]
    moved = features.gather(1, index[..., None].expand_as(features))
    flipped = mask.flip(-1)
    return moved * flipped[..., None], flipped


class LlamaGen(ImageDecoder):
    """LlamaGen's decoder: conditioning, token embeddings, layers, head (arXiv 2406.06525)."""

    fits = (
        *ImageDecoder.fits,
        ("model_type", "as conditioning"),
        ("caption_dim", "as width of captions"),
        ("cls_token_num", "conditioning positions"),
    )
    cls_embedding: CaptionEmbedding | LabelEmbedding

    def __init__(self, config: LlamaGenConfig):
        super().__init__(config)
        self.cls_embedding = CaptionEmbedding(config) if config.model_type == "t2i" else LabelEmbedding(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        rope = rope_2d(*config.grid, config.decoder.head_dim, config.prefix)
        self.register_buffer("rope", rope, persistent=False)

    @property
    def prompt_positions(self) -> int:
        return self.config.prefix

    @property
    def eagle_config(self) -> DecoderConfig:
        """LANTERN's drafter, whose only layer has no input norm."""
        return replace(self.config.decoder, first_norm=False, norm_eps=1e-6)

    def prefix(self, features: Tensor, mask: Tensor, guided: bool) -> Prefix:
        """Features, or a class, are the prefix.  Its EAGLE drafter takes token 0 for the next one, pads too."""
        if features.ndim == 3:
            features, mask = left_pad(features, mask)
        if guided:
            unconditional = self.cls_embedding.unconditional(len(features))
            features, mask = torch.cat([features, unconditional]), mask.repeat(2, 1)
        x = self.cls_embedding(features)
        ahead = torch.zeros(x.shape[0], x.shape[1] - 1, dtype=torch.long, device=x.device)
        return Prefix(x, mask.bool(), features, ahead, torch.ones_like(ahead, dtype=torch.bool))

    def teacher_forced(self, prefix: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
        """Hidden states that predict ``tokens``: prefix [B, T, dim], valid [B, T], tokens [B, L] -> [B, L, dim]."""
        pads = int((~valid.bool()).all(0).sum())  # columns that are padding in every row
        prefix, valid = prefix[:, pads:], valid[:, pads:]
        x = torch.cat([prefix, self.tok_embeddings(tokens[:, :-1])], dim=1)
        n = x.shape[1]
        positions = self.rope[None, self.config.prefix - prefix.shape[1] :][:, :n, None]
        h = self(x, positions, causal_mask(valid, n))
        return h[:, prefix.shape[1] - 1 :]


def to_official(state: State) -> State:
    """Ours -> the official key names, in which queries, keys and values are one matrix too."""
    return eagle_files.split(state, {"feed_forward.w13": ("feed_forward.w1", "feed_forward.w3")})
