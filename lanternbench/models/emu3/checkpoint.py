"""Emu3-Gen as a target: from published files of either layout, or with random weights to measure speed alone.

A folder holds ``model`` (config.json, tokenizer.json, weights), ``vq`` (the image tokeniser) where the model's own
checkpoint has none, and drafters such as ``eagle``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.chameleon.vqgan import to_pixels
from lanternbench.models.emu3 import model as emu3
from lanternbench.models.emu3 import vq as emu3_vq
from lanternbench.models.emu3.model import Emu3, Emu3Config
from lanternbench.models.emu3.vq import Emu3VQ, Emu3VQConfig
from lanternbench.models.family import Entry, Family, eagles_in, random_eagles
from lanternbench.models.loading import (
    State,
    dtype_for,
    load_into,
    load_layers,
    present,
    random_net,
    read_config,
    read_state,
    understood,
)
from lanternbench.models.target import Prefix, Target
from lanternbench.models.token_prompts import IdTokeniser, Prompt, encoded, framed, hashed_ids
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
    """What a prompt has beside the caption's ids."""

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
    return framed(target, captions, prompts, guided, frame.ids[PAD])


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
class Emu3Family(Family):
    """``shape`` of a row: of the decoder where config.json does not say, and ``vq``, of the image tokeniser."""

    rows = Path(__file__).with_name("catalogue.yaml")

    def load(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Target:
        text = IdTokeniser(folder / "model" / "tokenizer.json", PUBLISHED, ("", QUALITY))
        text.reserved |= set(image_ids(text.names).tolist())
        where = folder / ("vq" if present(folder, "vq") else "model")
        with understood(where, "holds no image tokeniser of Emu3"):
            codes = emu3_vq.from_published(read_state(where))
        if not any(key.startswith("decoder.") for key in codes):
            raise UserError(
                f"the checkpoint in {where} has no image decoder: put Emu3's tokeniser into {folder / 'vq'}"
            )
        vq = load_into(lambda: Emu3VQ(_vq_config(row)), codes, where, device, torch.float32)
        model = self.decoder(row, folder, device, dtype)
        frame = Frame(text.ids, text.encode(_size(model)), text.encode(NEGATIVE))
        return _target(row, model, vq, text, frame, eagles_in(folder, model, device))

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Emu3:
        here = folder / "model"
        to_id = image_ids(IdTokeniser(here / "tokenizer.json").names)
        said = read_config(here / "config.json")
        with understood(here / "config.json", "is no config of Emu3"):
            config = emu3.config_from_published(said)
        if "image_area" in said and config.grid != row.shape.get("grid", config.grid):
            raise UserError(
                f"config.json is of images of {config.grid} × {config.grid} tokens but target '{row.name}' has "
                f"{row.shape['grid']} a side: name the target that it belongs to"
            )
        config = replace(config, vocab_size=len(to_id), **_decoder_shape(row))

        def convert(part: State) -> State:
            return emu3.from_published(part, config.decoder, to_id)

        return load_layers(lambda: Emu3(config, to_id), here, convert, device, dtype or dtype_for(device))

    def random_decoder(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Emu3:
        return random_net(lambda: Emu3(Emu3Config(**_decoder_shape(row))), device, dtype or dtype_for(device))

    def random_target(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Target:
        dtype = dtype or dtype_for(device)
        model = self.random_decoder(row, device, dtype)
        drafters = random_eagles(model, device, dtype)
        vq = random_net(lambda: Emu3VQ(_vq_config(row)), device, torch.float32)
        size = model.config.prompt_ids
        words = [hashed_ids([text], size)[0][0].tolist() for text in (_size(model), NEGATIVE)]
        frame = Frame({name: i % size for name, i in PUBLISHED.items()}, *words)
        return _target(row, model, vq, lambda captions: hashed_ids(captions, size), frame, drafters)


def _decoder_shape(row: Entry) -> dict[str, Any]:
    return {k: v for k, v in row.shape.items() if k != "vq"}


def _vq_config(row: Entry) -> Emu3VQConfig:
    return Emu3VQConfig(**row.shape.get("vq", {}))


def _size(model: Emu3) -> str:
    return f"{model.config.grid}*{model.config.grid}"


def _target(
    row: Entry,
    model: Emu3,
    vq: Emu3VQ,
    text: Callable[[list[str]], tuple[Tensor, Tensor]],
    frame: Frame,
    drafters: dict[str, nn.Module],
) -> Target:
    return Target(
        row.name,
        model,
        vq,
        text,
        row.guidance,
        row.top_k,
        drafters=drafters,
        condition=partial(prefix, frame),
        pixels=to_pixels,
        row_end=frame.ids[ROW_END],
        prompt_template="{caption}" + QUALITY,
    )
