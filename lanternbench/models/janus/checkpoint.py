"""Janus-Pro targets: from published files of either layout, or with random weights to measure speed alone.

A folder holds ``model`` (config.json, tokenizer.json, and the weights of decoder and image tokeniser together), and
drafters such as ``eagle``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from lanternbench.models.chameleon.vqgan import to_pixels
from lanternbench.models.entries import Entry
from lanternbench.models.family import PublishedFamily, decoder_shape
from lanternbench.models.janus import model as janus
from lanternbench.models.janus.model import Janus, JanusConfig
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
from lanternbench.models.token_prompts import IdTokeniser, Prompt, encoded, frame_prompts
from lanternbench.registry import register

BOS, PAD, IMAGE_START = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"
PUBLISHED = {BOS: 100000, PAD: 100002, IMAGE_START: 100016}  # for random weights: there is no tokeniser then
TEMPLATE = ("<|User|>: ", "\n\n<|Assistant|>:")  # a conversation that the assistant is to answer
OPTIONS = {"l_k": 10, "width_range": (3, 40)}


def prefix(ids: dict[str, int], target: Target, captions: list[str], guided: bool) -> Prefix:
    """The unconditional prompt is the conditional one with padding, which is attended to, for all between its ends."""
    prompts = []
    for text in encoded(target, [caption.strip() for caption in captions]):
        prompts.append(
            Prompt([ids[BOS], *text, ids[IMAGE_START]], [ids[BOS], *[ids[PAD]] * len(text), ids[IMAGE_START]])
        )
    return frame_prompts(target, captions, prompts, guided, ids[PAD])


@register("target", "janus")
class JanusFamily(PublishedFamily):
    rows = Path(__file__).with_name("catalogue.yaml")
    network, configuration = Janus, JanusConfig

    def vq(self, row: Entry, folder: Path, device: str) -> Any:
        here = folder / "model"
        with explain_errors(here, "holds no image tokeniser of Janus-Pro"):
            tokens = janus.vq_from_published(read_state(here))
        return load_into(lambda: self.new_vq(row), tokens, here, device, torch.float32)

    def text(self, row: Entry, folder: Path, device: str, dtype: torch.dtype) -> IdTokeniser:
        return IdTokeniser(folder / "model" / "tokenizer.json", (BOS, PAD, IMAGE_START), TEMPLATE)

    def options(self, row: Entry) -> dict[str, Any]:
        return dict(OPTIONS)

    def fields(self, row: Entry, model: Janus, text: IdTokeniser | None) -> dict[str, Any]:
        size = model.config.prompt_ids
        ids = {name: i % size for name, i in PUBLISHED.items()} if text is None else text.ids
        return {
            "condition": partial(prefix, ids),
            "pixels": to_pixels,
            "prompt_template": "{caption}".join(TEMPLATE),
        }

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Janus:
        here = folder / "model"
        with explain_errors(here / "config.json", "is no config of Janus-Pro"):
            config = janus.config_from_published(read_config(here / "config.json"))
        config = replace(config, **decoder_shape(row))

        def convert(part: State) -> State:
            return janus.from_published(part, config.decoder)

        return load_layers(lambda: Janus(config), here, convert, device, dtype or dtype_for(device)).folded()

    def random_decoder(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Janus:
        return cast(Janus, super().random_decoder(row, device, dtype)).folded()
