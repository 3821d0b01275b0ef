"""Decoders whose prompts are token ids, one sequence with the image, 1-D rotary positions: Chameleon, Janus, Emu3."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.grids import Grid, grid_of
from lanternbench.models.transformer import DecoderConfig, rope_1d

VARIANTS = ("attention_bias", "mlp_bias", "tie_word_embeddings", "rope_scaling", "hidden_act")  # of Llama


@dataclass(frozen=True)
class TokenDecoderConfig(DecoderConfig):
    """Shape of the decoder."""

    dim: int = 4096
    n_layer: int = 32
    n_head: int = 32
    hidden: int = 11008
    vocab_size: int = 65536
    positions: int = 8192  # rows of the rotary table: prompt and image must fit; it costs nothing else
    rope_base: float = 10000.0
    grid: Grid = (32, 32)  # rows and columns of image tokens; a number for a square
    # 0: one table holds all ids; else prompts have a table of this size, and ``vocab_size`` counts image tokens alone
    prompt_ids: int = 0
    first_image_id: int = 0  # the prompt id of image token 0, to go by where no tokeniser is available

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grid", grid_of(self.grid))


class TokenDecoder(ImageDecoder):
    """``output`` gives the logits of image tokens alone: no other token may be drawn inside an image."""

    fits = (*ImageDecoder.fits, ("prompt_ids", "prompt ids"))
    rotates_halves = True
    image_ids: Tensor  # [vocab_size] the prompt id of each image token
    cls_embedding: nn.Embedding  # ids of prompts [R, P] -> [R, P, dim]; only where ``prompt_ids`` is not 0

    def __init__(self, config: TokenDecoderConfig, image_ids: Tensor | None = None):
        """``image_ids`` [V]: by default in the order of the codebook from ``first_image_id`` on."""
        super().__init__(config)
        if config.prompt_ids:
            self.cls_embedding = nn.Embedding(config.prompt_ids, config.dim)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        rope = rope_1d(config.positions, config.head_dim, config.rope_base, config.rotary_width)
        self.register_buffer("rope", rope, persistent=False)
        if image_ids is None:
            image_ids = torch.arange(config.vocab_size) + (config.first_image_id if config.prompt_ids else 0)
        self.register_buffer("image_ids", image_ids, persistent=False)

    @property
    def prompt_embeddings(self) -> nn.Module:
        return self.cls_embedding if self.config.prompt_ids else self.tok_embeddings

    @property
    def eagle_tables(self) -> tuple[int, int]:
        return self.config.vocab_size, self.config.prompt_ids


def check_type(config: Mapping[str, Any], name: str, *types: str) -> None:
    """Raises UserError unless ``model_type`` of a config.json is one of ``types``; ``name``: of the model."""
    if (kind := config.get("model_type")) not in types:
        raise UserError(f"config.json describes a model of type '{kind}', not {name}: name the target it belongs to")


def llama_fields(
    text: Mapping[str, Any], kind: type[TokenDecoderConfig], allowed: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A Llama-like part of a config.json, in transformers' names -> fields of ``kind``, whose defaults fill gaps.

    ``allowed``: variants that make no difference to it.  Raises UserError for others of ``VARIANTS``, which no
    published model of this kind uses, and for a size that is absent.
    """
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    asked = [name for name in VARIANTS[:3] if text.get(name)]
    asked += ["rope_scaling"] if rope.get("rope_type", rope.get("type", "default")) != "default" else []
    asked += ["hidden_act"] if text.get("hidden_act", "silu") != "silu" else []
    if refused := [f"{name} {text.get(name) or ''}".strip() for name in asked if name not in allowed]:
        name = kind.__name__.removesuffix("Config")
        raise UserError(f"config.json asks for {refused[0]}, which no {name} uses: use the original checkpoint")
    try:
        return {
            "dim": text["hidden_size"],
            "n_layer": text["num_hidden_layers"],
            "n_head": text["num_attention_heads"],
            "hidden": text["intermediate_size"],
            "n_kv_head": text.get("num_key_value_heads") or 0,
            "head_width": text.get("head_dim") or 0,
            "vocab_size": text["vocab_size"],
            "positions": max(text.get("max_position_embeddings", 0), kind.positions),
            "rope_base": rope.get("rope_theta") or text.get("rope_theta") or kind.rope_base,
            "norm_eps": text.get("rms_norm_eps", kind.norm_eps),
        }
    except KeyError as missing:
        raise UserError(f"config.json has no {missing}; use the one published with the weights") from None
