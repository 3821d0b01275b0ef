"""Emu3's decoder: a Llama of one vocabulary for text and images.

Source: Wang et al. 2024 (arXiv 2409.18869); key names of the original release and of transformers' ``emu3``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models import token_decoder
from lanternbench.models.loading import State
from lanternbench.models.token_decoder import TokenDecoder, TokenDecoderConfig, image_tables
from lanternbench.models.transformer import DecoderConfig


@dataclass(frozen=True)
class Emu3Config(TokenDecoderConfig):
    """Its defaults are Emu3-Gen's."""

    hidden: int = 14336
    n_kv_head: int = 8
    vocab_size: int = 32768
    positions: int = 9216
    rope_base: float = 1e6
    grid: int = 90
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
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    odd = [k for k in ("attention_bias", "mlp_bias", "tie_word_embeddings") if text.get(k)]
    odd += ["rope_scaling"] if rope.get("rope_type", rope.get("type", "default")) != "default" else []
    if odd or text.get("hidden_act", "silu") != "silu":
        raise UserError(f"config.json asks for {(*odd, 'hidden_act')[0]}, which no published Emu3 uses")
    side = round(text.get("image_area", Emu3Config.grid**2 * 64) ** 0.5 / 8)
    try:
        return Emu3Config(
            grid=side,
            dim=text["hidden_size"],
            n_layer=text["num_hidden_layers"],
            n_head=text["num_attention_heads"],
            hidden=text["intermediate_size"],
            n_kv_head=text.get("num_key_value_heads") or 0,
            positions=max(text.get("max_position_embeddings", 0), Emu3Config.positions),
            rope_base=rope.get("rope_theta") or text.get("rope_theta") or 1e6,
            norm_eps=text.get("rms_norm_eps", 1e-5),
            prompt_ids=text["vocab_size"],
        )
    except KeyError as missing:
        raise UserError(f"config.json has no {missing}; use the one published with the weights") from None
