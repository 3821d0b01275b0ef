"""Janus-Pro targets: from published files of either layout, or with random weights to measure speed alone.

A folder holds ``model`` (config.json, tokenizer.json, and the weights of decoder and image tokeniser together), and
drafters such as ``eagle``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lanternbench.models.chameleon.vqgan import to_pixels
from lanternbench.models.family import Entry, Family, eagles_in, random_eagles
from lanternbench.models.janus import model as janus
from lanternbench.models.janus.model import Janus, JanusConfig
from lanternbench.models.loading import (
    State,
    dtype_for,
    load_into,
    load_layers,
    random_net,
    read_config,
    read_state,
    understood,
)
from lanternbench.models.target import Prefix, Target
from lanternbench.models.token_prompts import IdTokeniser, Prompt, encoded, framed, hashed_ids
from lanternbench.models.vq import VQConfig, VQModel
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
    return framed(target, captions, prompts, guided, ids[PAD])


@register("target", "janus")
class JanusFamily(Family):
    rows = Path(__file__).with_name("catalogue.yaml")

    def load(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Target:
        here = folder / "model"
        text = IdTokeniser(here / "tokenizer.json", (BOS, PAD, IMAGE_START), TEMPLATE)
        with understood(here, "holds no image tokeniser of Janus-Pro"):
            tokens = janus.vq_from_published(read_state(here))
        shape: dict[str, Any] = row.shape.get("vq", {})
        vq = load_into(lambda: VQModel(VQConfig(**shape)), tokens, here, device, torch.float32)
        model = self.decoder(row, folder, device, dtype)
        return _target(row, model, vq, text, text.ids, eagles_in(folder, model, device))

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Janus:
        here = folder / "model"
        with understood(here / "config.json", "is no config of Janus-Pro"):
            config = janus.config_from_published(read_config(here / "config.json"))
        config = replace(config, **{k: v for k, v in row.shape.items() if k != "vq"})

        def convert(part: State) -> State:
            return janus.from_published(part, config.decoder)

        return load_layers(lambda: Janus(config), here, convert, device, dtype or dtype_for(device)).folded()

    def random_decoder(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Janus:
        config = JanusConfig(**{k: v for k, v in row.shape.items() if k != "vq"})
        return random_net(lambda: Janus(config), device, dtype or dtype_for(device)).folded()

    def random_target(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Target:
        dtype = dtype or dtype_for(device)
        model = self.random_decoder(row, device, dtype)
        drafters = random_eagles(model, device, dtype)
        shape: dict[str, Any] = row.shape.get("vq", {})
        vq = random_net(lambda: VQModel(VQConfig(**shape)), device, torch.float32)
        size = model.config.prompt_ids
        ids = {name: i % size for name, i in PUBLISHED.items()}
        return _target(row, model, vq, lambda captions: hashed_ids(captions, size), ids, drafters)


def _target(
    row: Entry,
    model: Janus,
    vq: VQModel,
    text: Callable[[list[str]], tuple[Tensor, Tensor]],
    ids: dict[str, int],
    drafters: dict[str, nn.Module],
) -> Target:
    return Target(
        row.name,
        model,
        vq,
        text,
        row.guidance,
        row.top_k,
        options=dict(OPTIONS),
        drafters=drafters,
        condition=partial(prefix, ids),
        pixels=to_pixels,
        prompt_template="{caption}".join(TEMPLATE),
    )
