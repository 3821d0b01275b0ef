"""Emu3's decoder: a Llama of one vocabulary for text and images.

Source: Wang et al. 2024 (arXiv 2409.18869); key names of the original release and of transformers' ``emu3``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models import token_decoder
from lanternbench.models.grids import Grid, size
from lanternbench.models.loading import State
from lanternbench.models.token_decoder import TokenDecoder, TokenDecoderConfig, image_tables, llama_fields
from lanternbench.models.transformer import DecoderConfig


@dataclass(frozen=True)
class Emu3Config(TokenDecoderConfig):
    """Its defaults are Emu3-Gen's."""

    hidden: int = 14336
    n_kv_head: int = 8
    vocab_size: int = 32768
    positions: int = 9216
    rope_base: float = 1e6
    grid: Grid = (90, 90)
    prompt_ids: int = 184622
    first_image_id: int = 151854


class Emu3(TokenDecoder):
    pass


_LANGUAGE = ("model.text_model.", "text_model.model.", "text_model.", "model.")


def from_published(state: State, config: DecoderConfig, to_id: Tensor) -> State:
    """The original release's key names, or those of any of transformers' layouts -> ours.

    ``to_id`` [V]: the id of each image token.  Any part of a checkpoint will do that has all tensors of the layers in
    it.  The image tokeniser is left out.
    """
    language = {}
    for key, value in state.items():
        if "vqmodel." not in key:
            prefix = next((p for p in _LANGUAGE if key.startswith(p)), "")
            language[key.removeprefix(prefix)] = value
    return image_tables(token_decoder.from_hf(language, config), to_id)


def config_from_published(config: dict[str, Any]) -> Emu3Config:
    """Either layout's config.json -> ours.  Raises UserError for another architecture or an unknown variant."""
    if str(config.get("model_type")).lower() != "emu3":
        raise UserError(
            f"config.json describes a model of type '{config.get('model_type')}', not Emu3: name the target it belongs "
            "to"
        )
    text = config.get("text_config") or config
    side = round(text.get("image_area", size(Emu3Config.grid) * 64) ** 0.5 / 8)
    fields = llama_fields(text, Emu3Config)
    return Emu3Config(grid=(side, side), prompt_ids=fields.pop("vocab_size"), **fields)
