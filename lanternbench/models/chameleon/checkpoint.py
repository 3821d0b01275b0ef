"""Anole and Lumina-mGPT: from published files, or with random weights to measure speed alone.

Sources: Chameleon Team 2024 (arXiv 2405.09818), layers as in transformers'
``ChameleonForConditionalGeneration``; the published code of Anole and Lumina-mGPT (2407.06135,
2408.02657).  A folder holds one sub-folder per role: ``model`` (config.json, tokenizer.json,
safetensors; or Meta's params.json, text_tokenizer.json, consolidated.pth), ``eagle`` (the drafter
in LANTERN's layout), and ``vq`` (Meta's vqgan.ckpt) if the model's checkpoint has no image
decoder.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from lanternbench.errors import UserError
from lanternbench.models.entries import Entry
from lanternbench.models.family import Family, TokenCheckpoint
from lanternbench.models.loading import Json, explain_errors, read_config
from lanternbench.models.target import Options
from lanternbench.models.token_decoder import (
    IdTokeniser,
    PromptFrame,
    TokenDecoder,
    TokenDecoderConfig,
    check_type,
)
from lanternbench.models.vq import VQConfig
from lanternbench.registry import register

# of every published Chameleon
VQ = VQConfig(codebook_size=8192, codebook_dim=256, attention=False)
BOS = "<s>"
PAD = "<pad>"
IMAGE_START = "<racm3:break>"
TURN_END = "<reserved08706>"
SPECIAL = {BOS: 0, PAD: 1, "</s>": 2, "<eoss>": 8196, IMAGE_START: 8197, TURN_END: 8710}
ROW_END = 8803  # what Lumina-mGPT writes after each row of an image
SIZE_UNIT = 32  # pixels that a size id counts
MAX_UNITS = 128
SIZE_ZERO = 8804  # the size id of n units is SIZE_ZERO + n
PIXELS = 16  # a side of one image token
# in pixels
LUMINA = "Generate an image of {width}x{height} according to the following prompt:\n{caption}"


@dataclass(frozen=True)
class ChameleonConfig(TokenDecoderConfig):
    """Its defaults are those of the 7B models, except for ``positions``."""

    qk_norm: bool | Literal["rms"] = True
    first_image_id: int = 4


class Chameleon(TokenDecoder):
    pass


def from_params(params: Json) -> Json:
    """Meta's params.json -> fields of a ``ChameleonConfig``.  Raises KeyError for absent ones."""
    model = params.get("model", params)
    multiple = model.get("multiple_of", 256)
    width = int(model.get("ffn_dim_multiplier", 1.0) * int(8 * model["dim"] / 3))
    return {
        "dim": model["dim"],
        "n_layer": model["n_layers"],
        "n_head": model["n_heads"],
        "n_kv_head": model.get("n_kv_heads") or 0,
        "hidden": -(-width // multiple) * multiple,  # rounded up
        "vocab_size": model.get("vocab_size") or ChameleonConfig.vocab_size,
        "rope_base": model.get("rope_theta") or ChameleonConfig.rope_base,
        "norm_eps": model.get("norm_eps") or ChameleonConfig.norm_eps,
        "swin_norm": bool(model.get("swin_norm")),
    }


def described_decoder(config: Json, title: str) -> Json:
    """A config.json -> fields of a ``ChameleonConfig``.  Raises UserError for another model."""
    check_type(config, title, "chameleon")
    fields = ChameleonConfig.llama_fields(config)
    return fields | {"swin_norm": bool(config.get("swin_norm"))}


def is_special(name: str) -> bool:
    """Return whether a token is in angle brackets and stands for no text; a lone ``<`` is text."""
    return name.startswith("<") and name != "<"


def size_units(pixels: int) -> int:
    """Return a width or height in the unit of Lumina-mGPT's size tokens.  Raises UserError."""
    if pixels % SIZE_UNIT or not 0 < pixels <= MAX_UNITS * SIZE_UNIT:
        raise UserError(
            f"an image cannot be {pixels} pixels wide or high: "
            f"use a multiple of {SIZE_UNIT}, such as 768"
        )
    return pixels // SIZE_UNIT


def size_id(pixels: int) -> int:
    """Return Lumina-mGPT's id for a width or height.  Raises UserError."""
    return SIZE_ZERO + size_units(pixels)


def check_sizes(names: dict[str, int]) -> None:
    """Raise UserError for a vocabulary that gives row ends and sizes other ids."""
    for number in (8799, 8816, 8824, 8832):  # the row end, and sizes of 512, 768 and 1024 pixels
        name = f"<reserved{number:05d}>"
        wanted = number + 4
        found = names.get(name, wanted)
        if found != wanted:
            raise UserError(
                f"the tokeniser gives '{name}' the id {found}, not {wanted}: use Lumina-mGPT's"
            )


def anole_frame(ids: Mapping[str, int], width: int, height: int) -> PromptFrame:
    """Return Anole's prompts, which have no template and do not give the image's size.

    ``ids``: those of ``SPECIAL``.
    """
    before = [ids[BOS]]
    image = [ids[IMAGE_START]]
    return PromptFrame(before, [ids[TURN_END], *image], [*before, *image], ids[PAD])


def lumina_frame(ids: Mapping[str, int], width: int, height: int) -> PromptFrame:
    """Return Lumina-mGPT's prompts for images of this size in pixels.

    Raises UserError for a size that has no id.
    """
    image = [ids[IMAGE_START], size_id(height), size_id(width)]
    template = LUMINA.format(width=width, height=height, caption="{caption}")
    return PromptFrame([ids[BOS]], [ids[TURN_END], *image], image, ids[PAD], template)


class Dialect(NamedTuple):
    """The prompts, defaults and row ends of one fine-tune of Chameleon."""

    frame: Callable[[Mapping[str, int], int, int], PromptFrame]
    options: Options  # LANTERN's trees; its other defaults are the engine's
    row_end: int | None = None


DIALECTS = {
    "anole": Dialect(anole_frame, {"static": "naive_extend_57"}),
    "lumina": Dialect(lumina_frame, {"static": "mc_sim_7b_63", "row_window": 16}, ROW_END),
}


def dialect_of(row: Entry) -> Dialect:
    return DIALECTS[row.shape.get("dialect", "anole")]


class ChameleonCheckpoint(TokenCheckpoint[ChameleonConfig]):
    network = Chameleon
    configuration = ChameleonConfig
    title = "Chameleon"
    comparison = "distance"
    finest_first = True
    vq_file = "Meta's vqgan.ckpt"
    special = SPECIAL
    image_name = re.compile("IMGIMG(.*?)Z?")

    @property
    def dialect(self) -> Dialect:
        return dialect_of(self.row)

    @property
    def config_file(self) -> Path:
        """Meta's, or that of a Hugging Face conversion."""
        meta = self.folder / "params.json"
        hub = self.folder / "config.json"
        return meta if meta.is_file() and not hub.is_file() else hub

    def described(self, config: Json) -> ChameleonConfig:
        if "model_type" in config:
            return ChameleonConfig(**described_decoder(config, self.title))
        return ChameleonConfig(**from_params(config))

    @cached_property
    def vq_config(self) -> VQConfig:
        if self.is_random:
            return replace(VQ, **self.vq_shape)
        with explain_errors(f"{self.config_file} has a vq_config that cannot be read"):
            return VQConfig.described(read_config(self.config_file).get("vq_config") or {}, VQ)

    @cached_property
    def text(self) -> IdTokeniser:
        text = super().text
        if not self.is_random:
            text.reserved |= {number for name, number in text.names.items() if is_special(name)}
            if self.dialect.row_end is not None:
                check_sizes(text.names)
        return text

    def frame(self) -> PromptFrame:
        rows, columns = self.config.grid
        return self.dialect.frame(self.text.ids, PIXELS * columns, PIXELS * rows)

    @property
    def row_end(self) -> int | None:
        return self.dialect.row_end


@register("target", "chameleon")
class ChameleonFamily(Family):
    checkpoint = ChameleonCheckpoint

    def options(self, row: Entry) -> Options:
        return dict(dialect_of(row).options)
