"""Emu3-Gen as a target: from published files of either layout, or with random weights to measure speed alone.

A folder holds ``model`` (config.json, tokenizer.json, weights), ``vq`` (the image tokeniser) where the model's own
checkpoint has none, and drafters such as ``eagle``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Emu3VQVAEConfig

from lanternbench.errors import UserError
from lanternbench.models.chameleon.vqgan import to_pixels
from lanternbench.models.emu3 import model as emu3
from lanternbench.models.emu3 import vq as emu3_vq
from lanternbench.models.emu3.model import Emu3, Emu3Config
from lanternbench.models.emu3.vq import Emu3VQ
from lanternbench.models.entries import Entry, present
from lanternbench.models.family import PublishedFamily, decoder_shape
from lanternbench.models.grids import grid_of, written
from lanternbench.models.loading import (
    State,
    dtype_for,
    explain_errors,
    load_into,
    load_layers,
    read_config,
    read_state,
)
from lanternbench.models.target import Prefix, Target
from lanternbench.models.token_prompts import IdTokeniser, Prompt, encoded, frame_prompts, hashed_ids
from lanternbench.registry import register

BOS, PAD, ROW_END = "<|extra_203|>", "<|endoftext|>", "<|extra_200|>"
IMAGE_START, TOKENS_START = "<|image start|>", "<|image token|>"
PUBLISHED = {BOS: 151849, PAD: 151643, ROW_END: 151846, IMAGE_START: 151852, TOKENS_START: 151851}
_VISUAL = re.compile(r"<\|visual token (\d+)\|>")
QUALITY = " masterpiece, film grained, best quality."  # after every caption
NEGATIVE = (  # in place of one, in the unconditional prompt
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


class Frame(NamedTuple):
    """The parts of a prompt other than the caption's ids."""

    ids: dict[str, int]
    size: list[int]  # of the image, in tokens: "90*90"
    negative: list[int]

    def prompt(self, text: list[int]) -> list[int]:
        ids = self.ids
        return [ids[BOS], *text, ids[IMAGE_START], *self.size, ids[TOKENS_START]]


def prefix(frame: Frame, target: Target, captions: list[str], guided: bool) -> Prefix:
    """The unconditional prompt has a text of its own, as long as it is."""
    uncond = frame.prompt(frame.negative)
    prompts = [Prompt(frame.prompt(text), uncond) for text in encoded(target, captions)]
    return frame_prompts(target, captions, prompts, guided, frame.ids[PAD])


def image_ids(names: dict[str, int]) -> Tensor:
    """A vocabulary -> the id of each image token [V].  Raises UserError where one is missing."""
    found = {int(m[1]): i for name, i in names.items() if (m := _VISUAL.fullmatch(name))}
    if not found or sorted(found) != list(range(len(found))):
        raise UserError(
            f"the tokeniser names {len(found)} image tokens but not every one once: use the tokenizer.json published "
            "with the model"
        )
    return torch.tensor([found[code] for code in range(len(found))])


@register("target", "emu3")
class Emu3Family(PublishedFamily):
    rows = Path(__file__).with_name("catalogue.yaml")
    network, configuration = Emu3, Emu3Config

    def new_vq(self, row: Entry) -> Emu3VQ:
        return Emu3VQ(Emu3VQVAEConfig(**row.shape.get("vq", {})))

    def vq(self, row: Entry, folder: Path, device: str) -> Emu3VQ:
        where = folder / ("vq" if present(folder, "vq") else "model")
        with explain_errors(where, "holds no image tokeniser of Emu3"):
            codes = emu3_vq.from_published(read_state(where))
        if not any(key.startswith("decoder.") for key in codes):
            raise UserError(
                f"the checkpoint in {where} has no image decoder: put Emu3's tokeniser into {folder / 'vq'}"
            )
        return load_into(lambda: self.new_vq(row), codes, where, device, torch.float32)

    def text(self, row: Entry, folder: Path, device: str, dtype: torch.dtype) -> IdTokeniser:
        text = IdTokeniser(folder / "model" / "tokenizer.json", PUBLISHED, ("", QUALITY))
        text.reserved |= set(image_ids(text.names).tolist())
        return text

    def fields(self, row: Entry, model: Emu3, text: IdTokeniser | None) -> dict[str, Any]:
        beside = ("{}*{}".format(*model.config.grid), NEGATIVE)
        if text is None:
            size = model.config.prompt_ids
            ids = {name: i % size for name, i in PUBLISHED.items()}
            frame = Frame(ids, *(hashed_ids([words], size)[0][0].tolist() for words in beside))
        else:
            frame = Frame(text.ids, *map(text.encode, beside))
        return {
            "condition": partial(prefix, frame),
            "pixels": to_pixels,
            "row_end": frame.ids[ROW_END],
            "prompt_template": "{caption}" + QUALITY,
        }

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Emu3:
        here = folder / "model"
        to_id = image_ids(IdTokeniser(here / "tokenizer.json").names)
        said = read_config(here / "config.json")
        with explain_errors(here / "config.json", "is no config of Emu3"):
            config = emu3.config_from_published(said)
        if "image_area" in said and config.grid != grid_of(row.shape.get("grid", config.grid)):
            raise UserError(
                f"config.json is of images of {written(config.grid)} tokens but target '{row.name}' has "
                f"{written(row.shape['grid'])}: name the target that it belongs to"
            )
        config = replace(config, vocab_size=len(to_id), **decoder_shape(row))

        def convert(part: State) -> State:
            return emu3.from_published(part, config.decoder, to_id)

        return load_layers(lambda: Emu3(config, to_id), here, convert, device, dtype or dtype_for(device))
