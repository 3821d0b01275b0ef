"""LlamaGen (Sun et al. 2024, arXiv 2406.06525) at its published sizes: from official files, or with random weights.

Class- or caption-conditional, 2-D rotary positions, official key names.  A folder holds one sub-folder per role:
``model`` (an official .pt, or LANTERN's Hugging Face conversion), ``vq``, ``text`` (Flan-T5-XL), and drafters such as
``eagle`` in LANTERN's layout.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder, causal_mask
from lanternbench.models.entries import Entry
from lanternbench.models.family import PublishedFamily
from lanternbench.models.grids import Grid, grid_of, size
from lanternbench.models.key_names import OFFICIAL, from_published, split
from lanternbench.models.loading import State, read_state
from lanternbench.models.target import Prefix
from lanternbench.models.transformer import DecoderConfig, rope_2d
from lanternbench.registry import register


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
        c, dim = cfg.caption_dim, cfg.dim
        linear1, linear2 = nn.Linear(c, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.cap_proj = nn.Sequential(OrderedDict(fc1=linear1, gelu=nn.GELU("tanh"), fc2=linear2))
        self.uncond_embedding = nn.Parameter(torch.randn(cfg.cls_token_num, cfg.caption_dim) / cfg.caption_dim**0.5)

    def forward(self, features: Tensor) -> Tensor:
        return self.cap_proj(features)

    def unconditional(self, count: int) -> Tensor:
        """What stands for no caption: [count, T, c]."""
        return self.uncond_embedding.expand(count, -1, -1)


class LabelEmbedding(nn.Module):
    """Class labels [B, 1] -> one prefix embedding [B, 1, dim]; the last row is the null class."""

    def __init__(self, cfg: LlamaGenConfig):
        super().__init__()
        self.embedding_table = nn.Embedding(cfg.num_classes + 1, cfg.dim)

    def forward(self, labels: Tensor) -> Tensor:
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
        n, prompt = x.shape[1], prefix.shape[1]
        positions = self.rope[None, self.config.prefix - prompt :][:, :n, None]
        return self(x, positions, causal_mask(valid, n))[:, prompt - 1 :]


def to_official(state: State) -> State:
    """Ours -> the official key names, in which queries, keys and values are one matrix too."""
    return split(state, {"feed_forward.w13": OFFICIAL["feed_forward.w13"]})


@register("target", "llamagen")
class LlamaGenFamily(PublishedFamily):
    rows = Path(__file__).with_name("catalogue.yaml")
    network, configuration = LlamaGen, LlamaGenConfig
    needs = ("model", "vq", "text")
    # LANTERN++'s tree, and ADT-Tree's bounds for LlamaGen
    defaults: ClassVar[dict[str, Any]] = {"static": "naive_extend_57", "l_k": 10, "width_range": (3, 40)}
    eagle_pads = "uniform"  # LANTERN trained its drafters on hidden states whose pads see the caption

    def text(self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype) -> Any:
        """Flan-T5-XL, or class labels as they are."""
        config = self.config(row)
        if config.model_type == "c2i":
            return partial(class_labels, device=device)
        from lanternbench.models.llamagen.t5 import RandomT5Features, T5Features

        sizes = (config.cls_token_num, device, dtype, config.caption_dim)
        return T5Features(folder / "text", *sizes) if folder else RandomT5Features(*sizes, config.n_layer)

    def fields(self, row: Entry, model: LlamaGen, text: Any, folder: Path | None) -> dict[str, Any]:
        return {"labels": model.config.model_type == "c2i"}

    def published(self, row: Entry, folder: Path) -> tuple[LlamaGenConfig, None]:
        config, where = self.config(row), folder / "model"
        table, positions = read_state(where).get("freqs_cis"), config.prefix + size(config.grid)
        if table is not None and table.ndim == 3 and len(table) != positions:
            raise UserError(f"{where} has {len(table)} positions, this target {positions}: it is of another image size")
        return config, None

    def renamed(self, state: State, config: LlamaGenConfig, image_ids: Tensor | None) -> State:
        """From LANTERN's conversion or the official file."""
        return from_published(state, self.prefixes)


def class_labels(captions: list[str], device: str) -> tuple[Tensor, Tensor]:
    """ImageNet classes, as prompts "0" … "999": [B, 1] and a mask of ones.  Raises UserError for any other prompt."""
    for caption in captions:
        if not (caption.isascii() and caption.isdigit() and int(caption) < 1000):
            raise UserError(f"'{caption[:60]}' is no ImageNet class: give numbers from 0 to 999, one per line")
    labels = torch.tensor([[int(c)] for c in captions], device=device)
    return labels, torch.ones_like(labels)
