"""Emu3-Gen and Emu3.5 as targets: from published files, or with random weights to measure speed alone.

Sources: the published code of Emu3 (arXiv 2409.18869) and of Emu3.5 (2510.26583), whose images no code here decodes.

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

BOS, PAD, ROW_END, TURN = "<|extra_203|>", "<|endoftext|>", "<|extra_200|>", "<|extra_100|>"
IMAGE_START, TOKENS_START = "<|image start|>", "<|image token|>"
PUBLISHED = {BOS: 151849, PAD: 151643, ROW_END: 151846, TURN: 151746, IMAGE_START: 151852, TOKENS_START: 151851}
_VISUAL = re.compile(r"<\|visual token (\d+)\|>")
QUALITY = " masterpiece, film grained, best quality."  # after every caption
NEGATIVE = (  # in place of one, in the unconditional prompt
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


class Dialect(NamedTuple):
    """What stands before and after a caption, what in place of all three, and the token after either.

    ``images``: does a network here decode image tokens?
    """

    before: str
    after: str
    negative: str
    turn: tuple[str, ...] = ()
    images: bool = True


DIALECTS = {
    "emu3": Dialect("", QUALITY, NEGATIVE),
    "emu3.5": Dialect(
        "You are a helpful assistant for t2i task. USER: ",
        " ASSISTANT: ",
        "You are a helpful assistant. USER:  ASSISTANT: ",
        (TURN,),
        images=False,
    ),
}


class Frame(NamedTuple):
    """The parts of a prompt other than the caption's ids."""

    ids: dict[str, int]
    size: list[int]  # of the image, rows and columns in tokens: "90*90"
    negative: list[int]
    turn: list[int]

    def prompt(self, text: list[int]) -> list[int]:
        ids = self.ids
        return [ids[BOS], *text, *self.turn, ids[IMAGE_START], *self.size, ids[TOKENS_START]]


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

    def random_vq(self, row: Entry, device: str) -> Emu3VQ | None:
        return super().random_vq(row, device) if dialect_of(row).images else None

    def vq(self, row: Entry, folder: Path, device: str) -> Emu3VQ | None:
        if not dialect_of(row).images:
            return None
        where = folder / ("vq" if present(folder, "vq") else "model")
        with explain_errors(where, "holds no image tokeniser of Emu3"):
            codes = emu3_vq.from_published(read_state(where))
        if not any(key.startswith("decoder.") for key in codes):
            raise UserError(
                f"the checkpoint in {where} has no image decoder: put Emu3's tokeniser into {folder / 'vq'}"
            )
        return load_into(lambda: self.new_vq(row), codes, where, device, torch.float32)

    def text(self, row: Entry, folder: Path, device: str, dtype: torch.dtype) -> IdTokeniser:
        dialect = dialect_of(row)
        named = [name for name in PUBLISHED if name != TURN or name in dialect.turn]
        text = IdTokeniser(folder / "model" / "tokenizer.json", named, (dialect.before, dialect.after))
        text.reserved |= set(image_ids(text.names).tolist())
        return text

    def fields(self, row: Entry, model: Emu3, text: IdTokeniser | None) -> dict[str, Any]:
        dialect = dialect_of(row)
        beside = ("{}*{}".format(*model.config.grid), dialect.negative)
        if text is None:
            size = model.config.prompt_ids
            ids = {name: i % size for name, i in PUBLISHED.items()}
            said, negative = (hashed_ids([words], size)[0][0].tolist() for words in beside)
        else:
            ids, (said, negative) = text.ids, map(text.encode, beside)
        frame = Frame(ids, said, negative, [ids[name] for name in dialect.turn])
        return {
            "condition": partial(prefix, frame),
            "pixels": to_pixels,
            "row_end": frame.ids[ROW_END],
            "prompt_template": f"{dialect.before}{{caption}}{dialect.after}",
        }

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Emu3:
        here = folder / "model"
        to_id = image_ids(IdTokeniser(here / "tokenizer.json").names)
        said = read_config(here / "config.json")
        with explain_errors(here / "config.json", "is no config of Emu3"):
            config = emu3.config_from_published(said)
        shape = decoder_shape(row)
        if "image_area" in said and dialect_of(row).images and config.grid != grid_of(shape.get("grid", config.grid)):
            raise UserError(
                f"config.json is of images of {written(config.grid)} tokens but target '{row.name}' has "
                f"{written(row.shape['grid'])}: name the target that it belongs to"
            )
        config = replace(config, vocab_size=len(to_id), **shape)

        def convert(part: State) -> State:
            return emu3.from_published(part, config.decoder, to_id)

        return load_layers(lambda: Emu3(config, to_id), here, convert, device, dtype or dtype_for(device))


def dialect_of(row: Entry) -> Dialect:
    """How the model is prompted: as Emu3-Gen where the row does not say."""
    return DIALECTS[row.shape.get("dialect", "emu3")]
