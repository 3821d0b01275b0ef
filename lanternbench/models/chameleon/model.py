"""Chameleon's decoder (Anole, Lumina-mGPT): its shape and the layouts it is published in.

Source: Chameleon Team 2024 (arXiv 2405.09818); layers as in transformers' ``ChameleonForConditionalGeneration``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models import token_decoder
from lanternbench.models.llamagen import model as llamagen
from lanternbench.models.token_decoder import TokenDecoder, TokenDecoderConfig, llama_fields, per_head
from lanternbench.models.transformer import DecoderConfig


@dataclass(frozen=True)
class ChameleonConfig(TokenDecoderConfig):
    """Its defaults are those of the 7B models, except for ``positions``."""

    qk_norm: bool | Literal["rms"] = True
    first_image_id: int = 4


class Chameleon(TokenDecoder):
    pass


def from_hf(state: dict[str, Tensor], cfg: DecoderConfig) -> dict[str, Tensor]:
    """transformers' key names (Anole's and Lumina-mGPT's Hugging Face checkpoints) -> ours, as ``token_decoder``'s.

    The image tokeniser is left out.
    """
    own = {k.removeprefix("model."): v for k, v in state.items()}
    return token_decoder.from_hf({k: v for k, v in own.items() if not k.startswith("vqmodel.")}, cfg)


def from_official(state: dict[str, Tensor], cfg: DecoderConfig) -> dict[str, Tensor]:
    """Meta's key names (Chameleon's and Anole's own releases) -> ours: fused or not, pairs interleaved as here.

    Any part of a checkpoint will do that has all tensors of the layers in it.
    """
    found = {}
    for key, value in llamagen.from_official(state).items():
        key = key.replace("_normalization.", "_norm.")
        if ".q_norm." in key or ".k_norm." in key:
            value = per_head(value, cfg.n_head if ".q_norm." in key else cfg.kv_heads)
        if ".attention.wq." in key:
            parts = [state[key.replace(".wq.", f".w{c}.")] for c in "qkv"]
            found[key.replace(".wq.", ".wqkv.")] = torch.cat(parts)
        elif ".attention.wk." not in key and ".attention.wv." not in key and key != "rope.freqs":
            found[key] = value
    return found


def config_from_hf(config: dict[str, Any]) -> ChameleonConfig:
    """A Hugging Face ``config.json`` -> ours.  Raises UserError for another architecture or an unknown variant."""
    kind = config.get("model_type")
    if kind != "chameleon":
        raise UserError(
            f"config.json describes a model of type '{kind}', not 'chameleon': name the target it belongs to"
        )
    return ChameleonConfig(**llama_fields(config, ChameleonConfig), swin_norm=bool(config.get("swin_norm")))


def config_from_official(params: dict[str, Any]) -> ChameleonConfig:
    """Meta's ``params.json`` -> ours.  Raises UserError for what it leaves out."""
    model = params.get("model", params)
    try:
        dim = model["dim"]
        width = int(model.get("ffn_dim_multiplier", 1.0) * int(8 * dim / 3))  # rounded up below
        multiple = model.get("multiple_of", 256)
        return ChameleonConfig(
            dim=dim,
            n_layer=model["n_layers"],
            n_head=model["n_heads"],
            hidden=-(-width // multiple) * multiple,
            n_kv_head=model.get("n_kv_heads") or 0,
            vocab_size=model.get("vocab_size") or ChameleonConfig.vocab_size,
            rope_base=model.get("rope_theta", ChameleonConfig.rope_base),
            norm_eps=model.get("norm_eps", ChameleonConfig.norm_eps),
            swin_norm=bool(model.get("swin_norm")),
        )
    except (KeyError, TypeError) as missing:
        raise UserError(f"params.json has no {missing}; use the one published with the weights") from None
