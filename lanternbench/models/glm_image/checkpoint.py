"""GLM-Image's autoregressive part as a target: from published files, or random weights to measure speed alone.

A folder holds ``model`` with two folders of the release, ``vision_language_encoder`` (config.json, weights) and
``processor`` (tokenizer.json, chat_template.jinja), or the files of both; and drafters such as ``eagle``.  With the
release's other folders in ``diffusion``, and diffusers installed, there are images; else tokens, speed and fidelity.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lanternbench.errors import UserError
from lanternbench.models.entries import Entry, present
from lanternbench.models.family import PublishedFamily, decoder_shape
from lanternbench.models.glm_image import diffusion
from lanternbench.models.glm_image import model as glm
from lanternbench.models.glm_image.model import GlmImage, GlmImageConfig
from lanternbench.models.loading import State, dtype_for, explain_errors, load_layers, read_config
from lanternbench.models.target import Prefix, Target
from lanternbench.models.token_prompts import IdTokeniser, Prompt, encoded, frame_prompts, hashed_ids
from lanternbench.registry import register

SIZE = ("<sop>", "<eop>")  # around the rows and columns of each grid, the image's first
CAPTION = "{caption}"  # stands for one in the chat template
NO_IMAGES = (
    "There are tokens and no images: `pip install lanternbench[glm-image]` and `lanternbench fetch glm-image` get the "
    "diffusion model that draws them."
)


def prefix(size: list[int], image_start: int, target: Target, captions: list[str], guided: bool) -> Prefix:
    """The model is published without guidance; asked for it, the unconditional prompt has an empty caption."""
    empty, *texts = (text + size + [image_start] for text in encoded(target, ["", *captions]))
    return frame_prompts(target, captions, [Prompt(text, empty) for text in texts], guided, 0)


def chat_frame(folder: Path) -> tuple[str, str]:
    """What the tokeniser's chat template puts before and after a caption.  Raises UserError for a broken template."""
    from transformers.utils.chat_template_utils import render_jinja_template  # in a sandbox

    where = folder / "chat_template.jinja"
    said = read_config(beside) if (beside := folder / "tokenizer_config.json").is_file() else {}
    template = where.read_text(encoding="utf-8") if where.is_file() else said.get("chat_template")
    if not template:
        return "", ""
    named = {key: value for key, value in said.items() if key.endswith("_token")}
    tokens: Any = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    chat = [{"role": "user", "content": [{"type": "text", "text": CAPTION}]}]
    try:
        made: Any = render_jinja_template([chat], chat_template=template, **tokens)
        before, after = made[0][0].split(CAPTION)
    except Exception as error:  # whatever a template may raise
        raise UserError(
            f"the chat template in {folder} cannot be used ({str(error).splitlines()[0]}): use the one published with "
            "the model"
        ) from None
    return before, after


def part(folder: Path, name: str) -> Path:
    """The folder ``name`` of the release, or ``model`` where the files of both are."""
    return here if (here := folder / "model" / name).is_dir() else folder / "model"


@register("target", "glm-image")
class GlmImageFamily(PublishedFamily):
    rows = Path(__file__).with_name("catalogue.yaml")
    network, configuration = GlmImage, GlmImageConfig

    def load(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Target:
        target = super().load(row, folder, device, dtype)
        if present(folder, "diffusion") and diffusion.installed():
            render = diffusion.load(folder / "diffusion", device, target.dtype)
            return replace(target, render=render, evaluators="full")
        return replace(target, remark=NO_IMAGES)

    def random_vq(self, row: Entry, device: str) -> None:
        return None

    def vq(self, row: Entry, folder: Path, device: str) -> None:
        return None

    def published(self, row: Entry, folder: Path) -> GlmImageConfig:
        """The decoder's configuration, as config.json says it."""
        path = part(folder, "vision_language_encoder") / "config.json"
        with explain_errors(path, "is no config of GLM-Image"):
            return replace(glm.config_from_published(read_config(path)), **decoder_shape(row))

    def text(self, row: Entry, folder: Path, device: str, dtype: torch.dtype) -> IdTokeniser:
        here = part(folder, "processor")
        text = IdTokeniser(here / "tokenizer.json", SIZE, chat_frame(here))
        text.reserved |= set(range(self.published(row, folder).vocab_size))
        return text

    def fields(self, row: Entry, model: GlmImage, text: IdTokeniser | None) -> dict[str, Any]:
        ids, start = model.config.prompt_ids, model.config.image_start
        said = "".join("{}{} {}{}".format(SIZE[0], *grid, SIZE[1]) for grid in reversed(model.grids))
        size = hashed_ids([said], ids)[0][0].tolist() if text is None else text.encode("", said)
        frame = ("", "") if text is None else text.template
        return {"condition": partial(prefix, size, start % ids), "prompt_template": CAPTION.join(frame)}

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> GlmImage:
        config = self.published(row, folder)
        to_id = torch.arange(config.vocab_size)

        def convert(state: State) -> State:
            return glm.from_published(state, config.decoder, to_id)

        here = part(folder, "vision_language_encoder")
        return load_layers(lambda: GlmImage(config, to_id), here, convert, device, dtype or dtype_for(device))
