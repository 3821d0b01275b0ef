"""Emu3-Gen and Emu3.5: from published files, or with random weights to measure speed alone.

Sources: the published code of Emu3 (arXiv 2409.18869) and of Emu3.5 (2510.26583); key names of the
original releases and of transformers' ``emu3``.  A folder holds ``model`` (config.json, weights,
tokenizer.json or emu3.tiktoken), ``vq`` (the image tokeniser) if the model's checkpoint has none,
and drafters such as ``eagle``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from transformers import Emu3VQVAEConfig

from lanternbench.errors import UserError
from lanternbench.models.emu3.tiktoken import FIRST_IMAGE_ID, read_tokeniser
from lanternbench.models.family import Family, TokenCheckpoint
from lanternbench.models.grids import Grid, grid_of, written
from lanternbench.models.loading import Json, State, config_next_to, explain_errors, read_state
from lanternbench.models.movq import VideoMoVQ, from_movq
from lanternbench.models.token_decoder import (
    IdTokeniser,
    PromptFrame,
    TokenDecoder,
    TokenDecoderConfig,
    check_type,
)
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.registry import register

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BOS = "<|extra_203|>"
PAD = "<|endoftext|>"
ROW_END = "<|extra_200|>"
TURN = "<|extra_100|>"
IMAGE_START = "<|image start|>"
TOKENS_START = "<|image token|>"
PUBLISHED = {
    BOS: 151849,
    PAD: 151643,
    ROW_END: 151846,
    TURN: 151746,
    IMAGE_START: 151852,
    TOKENS_START: 151851,
}
QUALITY = " masterpiece, film grained, best quality."  # after every caption
NEGATIVE = (  # in place of a caption, in the unconditional prompt
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
    "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
    "username, blurry."
)
SYSTEM = "You are a helpful assistant"
END = " ASSISTANT: "
_VISUAL = re.compile(r"<\|visual token (\d{6})\|>")
# of Emu3.5's image tokeniser, IBQ (arXiv 2412.02692); 455 million weights, as the release has
IBQ = VQConfig(ch=256, num_res_blocks=4, codebook_size=131072, codebook_dim=256)


class Dialect(NamedTuple):
    """The text of prompts."""

    before: str  # the caption
    after: str  # the caption
    negative: str  # in place of all three
    turn: tuple[str, ...] = ()  # the tokens after either
    ibq: bool = False  # whether images are decoded by IBQ, else by Emu3's video tokeniser


DIALECTS = {
    "emu3": Dialect("", QUALITY, NEGATIVE),
    "emu3.5": Dialect(
        before=f"{SYSTEM} for t2i task. USER: ",
        after=END,
        negative=f"{SYSTEM}. USER: {END}",
        turn=(TURN,),
        ibq=True,
    ),
}


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
    """A Llama of one vocabulary for text and images."""


class Emu3Text(IdTokeniser):
    """Ids by a tokenizer.json, or by the releases' table of merges."""

    @staticmethod
    def read(path: Path) -> Tokenizer:
        if path.suffix == ".tiktoken":
            return read_tokeniser(path)
        return IdTokeniser.read(path)

    def encode(self, caption: str, before: str = "", after: str = "") -> list[int]:
        return super().encode(_VISUAL.sub(self._allowed, caption), before, after)

    def _allowed(self, name: re.Match[str]) -> str:
        """Return the name of an image token if the model has none of this name, so that it is
        text.
        """
        number = self.names.get(name[0], FIRST_IMAGE_ID + int(name[1]))
        return "" if number in self.reserved else name[0]


class Emu3Checkpoint(TokenCheckpoint[Emu3Config]):
    tokeniser_class = Emu3Text
    network = Emu3
    configuration = Emu3Config
    title = "Emu3"
    prefixes = ("model.text_model.", "text_model.model.", "text_model.", "model.", "backbone.")
    comparison = "product"
    finest_first = True
    vq_file = "BAAI/Emu3-VisionTokenizer"
    special = PUBLISHED
    image_name = _VISUAL
    row_end_name = ROW_END

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.row.shape.get("dialect", "emu3")]

    def named_image_ids(self) -> Tensor:
        """Return ids by the names in a tokenizer.json; with the releases' table all after it."""
        if self.tokeniser.suffix == ".tiktoken":
            return torch.arange(FIRST_IMAGE_ID, self.described_config.prompt_ids)
        return super().named_image_ids()

    @cached_property
    def vq_config(self) -> VQConfig:
        """IBQ's published sizes, unless the row or a config.json with the weights has others."""
        config = replace(IBQ, **self.vq_shape)
        if self.is_random:
            return config
        where = self.files.get("vq")
        reason = f"the config.json of {where} is no configuration of an image tokeniser"
        with explain_errors(reason):
            return VQConfig.described(config_next_to(where), config)

    def new_vq(self) -> VQModel | VideoMoVQ:
        if self.dialect.ibq:
            return super().new_vq()
        return VideoMoVQ(Emu3VQVAEConfig(**self.vq_shape))

    def vq_state(self, where: Path) -> State:
        if self.dialect.ibq:
            return super().vq_state(where)
        return from_movq(read_state(where))

    @cached_property
    def template(self) -> tuple[str, str]:
        return self.dialect.before, self.dialect.after

    def frame(self) -> PromptFrame:
        """The unconditional prompt has a different text and length."""
        ids = self.text.ids
        rows, columns = self.config.grid
        turn = [ids[name] for name in self.dialect.turn]
        size = self.text.encode(f"{rows}*{columns}")
        after = [*turn, ids[IMAGE_START], *size, ids[TOKENS_START]]
        before = [ids[BOS]]
        unconditional = [*before, *self.text.encode(self.dialect.negative), *after]
        return PromptFrame(before, after, unconditional, ids[PAD])

    def described(self, config: Json) -> Emu3Config:
        check_type(config, self.title, "emu3", "Emu3")
        fields = Emu3Config.llama_fields(config.get("text_config") or config)
        grid = grid_of(self.row.shape["grid"])
        published = round(config["image_area"] ** 0.5 / 8) if "image_area" in config else grid
        if not self.dialect.ibq and grid_of(published) != grid:
            raise UserError(
                f"config.json is of images of {written(published)} tokens but target "
                f"'{self.row.name}' has {written(grid)}: name the target that it belongs to"
            )
        return Emu3Config(grid=grid, prompt_ids=fields.pop("vocab_size"), **fields)


@register("target", "emu3")
class Emu3Family(Family):
    checkpoint = Emu3Checkpoint
