"""Anole and Lumina-mGPT at their published sizes: from published files, or random weights to measure speed alone.

Source: Chameleon Team 2024 (arXiv 2405.09818); layers as in transformers' ``ChameleonForConditionalGeneration``.

A folder holds one sub-folder per role: ``model`` (config.json, tokenizer.json, safetensors; or Meta's params.json,
text_tokenizer.json, consolidated.pth), ``eagle`` (the drafter in LANTERN's layout), and ``vq`` (Meta's vqgan.ckpt)
where the model's checkpoint has no image decoder.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.chameleon import vocab as chameleon_vocab
from lanternbench.models.chameleon import vqgan as chameleon_vqgan
from lanternbench.models.chameleon.vocab import LUMINA, PIXELS, ROW_END, ChameleonText, Vocabulary
from lanternbench.models.drafters.eagle_files import OFFICIAL, fused
from lanternbench.models.entries import Entry
from lanternbench.models.family import PublishedFamily, decoder_shape
from lanternbench.models.loading import State, explain_errors, read_config, read_state
from lanternbench.models.target import Prefix, Target
from lanternbench.models.token_decoder import (
    TokenDecoder,
    TokenDecoderConfig,
    check_type,
    image_tables,
    llama_fields,
    per_head,
)
from lanternbench.models.token_prompts import PromptFrame
from lanternbench.models.transformer import DecoderConfig
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.registry import register

VQ = VQConfig(codebook_size=8192, codebook_dim=256, attention=False)  # of every published Chameleon


@dataclass(frozen=True)
class ChameleonConfig(TokenDecoderConfig):
    """Its defaults are those of the 7B models, except for ``positions``."""

    qk_norm: bool | Literal["rms"] = True
    first_image_id: int = 4


class Chameleon(TokenDecoder):
    pass


def from_official(state: State, cfg: DecoderConfig) -> State:
    """Meta's key names (Chameleon's and Anole's releases) -> ours: fused or not, pairs interleaved as here."""
    result = {}
    for key, value in fused(state, OFFICIAL).items():
        key = key.replace("_normalization.", "_norm.")
        if ".q_norm." in key or ".k_norm." in key:
            value = per_head(value, cfg.n_head if ".q_norm." in key else cfg.kv_heads)
        if key != "rope.freqs":
            result[key] = value
    return result


def config_from_hf(config: dict[str, Any]) -> ChameleonConfig:
    """A Hugging Face ``config.json`` -> ours.  Raises UserError for another architecture or an unknown variant."""
    check_type(config, "Chameleon", "chameleon")
    return ChameleonConfig(**llama_fields(config, ChameleonConfig), swin_norm=bool(config.get("swin_norm")))


def config_from_official(config: dict[str, Any]) -> ChameleonConfig:
    """Meta's ``params.json`` -> ours.  Raises UserError for what it leaves out."""
    model = config.get("model", config)
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


class Dialect(NamedTuple):
    """How one fine-tune of Chameleon differs from another."""

    frame: Callable[[Vocabulary, int, int], PromptFrame]  # for images of this width and height in pixels
    options: dict[str, Any]  # LANTERN's trees; its other defaults are the engine's
    row_end: int | None = None
    template: str = "{caption}"


DIALECTS = {
    "anole": Dialect(chameleon_vocab.anole_frame, {"static": "naive_extend_57"}),
    "lumina": Dialect(chameleon_vocab.lumina_frame, {"static": "mc_sim_7b_63", "row_window": 16}, ROW_END, LUMINA),
}


@register("target", "chameleon")
class ChameleonFamily(PublishedFamily):
    """``shape`` of a row also has the ``dialect``."""

    rows = Path(__file__).with_name("catalogue.yaml")
    network, configuration = Chameleon, ChameleonConfig
    vq_file = "Meta's vqgan.ckpt"

    def new_vq(self, row: Entry, folder: Path | None) -> VQModel:
        """``vq_config`` of the model's config.json may leave out what all Chameleons share."""
        if folder is None:
            return chameleon_vqgan.chameleon_vqgan(replace(VQ, **row.shape.get("vq", {})))
        return chameleon_vqgan.chameleon_vqgan(vq_config(folder / "model"))

    def vq_state(self, where: Path, row: Entry, folder: Path) -> State:
        checkpoint = next(iter(sorted(where.rglob("*.ckpt"))), where)
        return chameleon_vqgan.from_official(read_state(checkpoint), vq_config(folder / "model"))

    def text(self, row: Entry, folder: Path, device: str, dtype: torch.dtype) -> ChameleonText:
        path = tokeniser(folder / "model")
        text = ChameleonText(path, chameleon_vocab.read(path))
        if dialect_of(row).row_end is not None:
            chameleon_vocab.check_sizes(text.names)
        return text

    def options(self, row: Entry) -> dict[str, Any]:
        return dict(dialect_of(row).options)

    def fields(self, row: Entry, model: Chameleon, text: ChameleonText | None) -> dict[str, Any]:
        vocab = chameleon_vocab.published(model.config.vocab_size) if text is None else text.vocab
        dialect, (height, width) = dialect_of(row), (PIXELS * side for side in model.config.grid)

        def prefix(target: Target, captions: list[str], guided: bool) -> Prefix:
            return dialect.frame(vocab, width, height)(target, captions, guided)

        return {
            "condition": prefix,
            "pixels": chameleon_vqgan.to_pixels,
            "row_end": dialect.row_end,
            "prompt_template": dialect.template.format(width=width, height=height, caption="{caption}"),
        }

    def published(self, row: Entry, folder: Path) -> tuple[ChameleonConfig, Tensor]:
        model = folder / "model"
        where, read = model / "config.json", config_from_hf
        if is_official(model):
            where, read = model / "params.json", config_from_official
        described = read_config(where)
        with explain_errors(where, "is no config of a Chameleon"):
            config = replace(read(described), **decoder_shape(row))
        return config, chameleon_vocab.read(tokeniser(model)).to_id

    def renamed(self, state: State, config: ChameleonConfig, image_ids: Any, folder: Path) -> State:
        if is_official(folder / "model"):
            return image_tables(from_official(state, config), image_ids)
        return super().renamed(state, config, image_ids, folder)


def dialect_of(row: Entry) -> Dialect:
    """The fine-tune's: Anole's where the row does not say."""
    return DIALECTS[row.shape.get("dialect", "anole")]


def is_official(model: Path) -> bool:
    """Whether ``model`` holds Meta's files rather than a Hugging Face conversion."""
    return (model / "params.json").is_file() and not (model / "config.json").is_file()


def tokeniser(model: Path) -> Path:
    """The tokeniser's file, as the hub or as Meta names it."""
    return model / ("text_tokenizer.json" if is_official(model) else "tokenizer.json")


def vq_config(model: Path) -> VQConfig:
    """The shape of the image tokeniser that belongs to the model in ``model``.  Raises UserError."""
    shape = {} if is_official(model) else read_config(model / "config.json").get("vq_config") or {}
    with explain_errors(model / "config.json", "has a vq_config that cannot be read"):
        return chameleon_vqgan.config_from_official(shape, VQ)
