"""GLM-Image's autoregressive part: from published files, or with random weights to measure speed
alone.

GLM-4 9B draws two grids of image tokens, a coarse one and then the image's, at positions (t, h,
w), M-RoPE.  Source: transformers' ``glm_image``, whose key names its checkpoint has.  A folder
holds ``model`` with two folders of the release, ``vision_language_encoder`` (config.json, weights)
and ``processor`` (tokenizer.json, chat_template.jinja), or the files of both; and drafters such as
``eagle``.  With the release's other folders in ``diffusion``, and diffusers installed, there are
images; else tokens, speed and fidelity.
"""

import importlib.util
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from lanternbench.models.family import Family, TokenCheckpoint
from lanternbench.models.grids import Grid, coarse
from lanternbench.models.loading import Json, explain_errors, read_config
from lanternbench.models.target import Target
from lanternbench.models.token_decoder import (
    PromptFrame,
    TokenDecoder,
    TokenDecoderConfig,
    check_type,
)
from lanternbench.registry import register

SIZE = ("<sop>", "<eop>")  # around the rows and columns of each grid, the image's first
CAPTION = "{caption}"  # stands for one in the chat template
NO_IMAGES = (
    "There are tokens and no images: `pip install lanternbench[glm-image]` and "
    "`lanternbench fetch glm-image` get the diffusion model that draws them."
)

STEPS = 50  # of the diffusion, as published
GUIDANCE = 1.5
PIXELS = 32  # a token's side
ABSENT = ("vision_language_encoder", "processor")  # of the pipeline's parts: tokens are drawn here


@dataclass(frozen=True)
class GlmImageConfig(TokenDecoderConfig):
    """``grid``: that of the image, whose tokens are of 32 × 32 pixels."""

    n_layer: int = 40
    hidden: int = 13696
    n_kv_head: int = 2
    vocab_size: int = 16384
    prompt_ids: int = 168064
    qkv_bias: bool = True
    sandwich_norm: bool = True
    rotary_width: int = 64
    # how many of the pairs that turn do so with t, h and w, over and over
    sections: tuple[int, ...] = (8, 12, 12)
    image_start: int = 16384  # the id that ends the prompt

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sections", tuple(self.sections))
        if 2 * sum(self.sections) != self.rotary_width:
            raise ValueError(
                f"rotary sections {list(self.sections)} of {self.rotary_width} turning dimensions"
            )


def positions(prompt: int, grids: Sequence[Grid]) -> Tensor:
    """Return (t, h, w) of every prompt position and image token [prompt + tokens, 3].

    Text at s: (s, s, s).  Row i, column j of a grid that begins at P: (P, P + i, P + j); the next
    begins max(h, w) on.
    """
    parts = [torch.arange(prompt)[:, None].expand(-1, 3)]
    start = prompt
    still = torch.zeros(1, dtype=torch.long)
    for rows, columns in grids:
        steps = torch.cartesian_prod(still, torch.arange(rows), torch.arange(columns))
        parts.append(start + steps)
        start += max(rows, columns)
    return torch.cat(parts)


class GlmImage(TokenDecoder):
    config: GlmImageConfig

    @property
    def grids(self) -> tuple[Grid, ...]:
        return coarse(self.config.grid), self.config.grid

    def rotary_table(self, prompt: int) -> Tensor:
        """The 1-D table at t, h or w, by pair."""
        sections = torch.tensor(self.config.sections)
        axes = torch.arange(len(sections)).repeat_interleave(sections) % 3
        still = self.rope.shape[1] - len(axes)  # pairs that do not turn
        places = positions(prompt, self.grids)[:, F.pad(axes, (0, still))]
        return self.rope.gather(0, places.to(self.device))


def chat_frame(folder: Path) -> tuple[str, str]:
    """Return the text that the tokeniser's chat template puts before and after a caption.

    Raises UserError for a broken template.
    """
    from transformers.utils.chat_template_utils import render_jinja_template  # in a sandbox

    where = folder / "chat_template.jinja"
    settings = folder / "tokenizer_config.json"
    config = read_config(settings) if settings.is_file() else {}
    template = config.get("chat_template")
    if where.is_file():
        template = where.read_text(encoding="utf-8")
    if not template:
        return "", ""
    tokens: Json = {}
    for key, value in config.items():
        if key.endswith("_token"):
            tokens[key] = value.get("content") if isinstance(value, dict) else value
    chat = [{"role": "user", "content": [{"type": "text", "text": CAPTION}]}]
    with explain_errors(f"the chat template in {folder} cannot be used", "fetch it again"):
        rendered: Any = render_jinja_template([chat], chat_template=template, **tokens)
        before, after = rendered[0][0].split(CAPTION)
    return before, after


def diffusion(
    folder: Path, device: str, dtype: torch.dtype
) -> Callable[[Tensor, Sequence[str]], list[Image.Image]]:
    """Return the function (tokens [B, h, w], captions) -> images of 32 h × 32 w pixels; noise is
    a function of the tokens.

    Raises UserError.
    """
    from diffusers import GlmImagePipeline

    parts: Any = dict.fromkeys(ABSENT)
    with explain_errors(f"{folder} is no diffusion decoder of GLM-Image", "fetch it again"):
        pipeline: Any = GlmImagePipeline.from_pretrained(
            folder, **parts, torch_dtype=dtype, local_files_only=True
        )
    pipeline.to(device)
    pipeline.set_progress_bar_config(disable=True)

    def render(tokens: Tensor, captions: Sequence[str]) -> list[Image.Image]:
        images = []
        for grid, caption in zip(tokens.cpu(), captions, strict=True):
            noise = torch.Generator().manual_seed(zlib.crc32(grid.numpy().tobytes()))
            # the decoder's latents are twice as fine
            doubled = grid.repeat_interleave(2, 0).repeat_interleave(2, 1)
            output = pipeline(
                prompt=caption,
                prior_token_ids=doubled.view(1, -1).to(device),
                height=PIXELS * grid.shape[0],
                width=PIXELS * grid.shape[1],
                num_inference_steps=STEPS,
                guidance_scale=GUIDANCE,
                generator=noise,
            )
            images.append(output.images[0])
        return images

    return render


class GlmImageCheckpoint(TokenCheckpoint[GlmImageConfig]):
    network = GlmImage
    configuration = GlmImageConfig
    title = "GLM-Image"
    special = dict.fromkeys(SIZE, 0)
    prefixes = ("model.language_model.", "model.", "language_model.")

    def vq(self) -> None:
        return None

    @property
    def processor(self) -> Path:
        """The release's folder of that name, or that of the weights if both are one."""
        sibling = self.folder.parent / "processor"
        return sibling if sibling.is_dir() else self.folder

    @property
    def tokeniser(self) -> Path:
        return self.processor / "tokenizer.json"

    @cached_property
    def template(self) -> tuple[str, str]:
        return ("", "") if self.is_random else chat_frame(self.processor)

    def described(self, config: Json) -> GlmImageConfig:
        check_type(config, self.title, "glm_image")
        text = config["text_config"]
        images = config.get("vq_config") or {}
        rope = text.get("rope_parameters") or {}
        fields = GlmImageConfig.llama_fields(text, ("attention_bias",))
        head = fields["head_width"] or fields["dim"] // fields["n_head"]
        fields["prompt_ids"] = fields["vocab_size"]
        fields["qkv_bias"] = text.get("attention_bias", True)
        fields["vocab_size"] = images.get("num_embeddings", GlmImageConfig.vocab_size)
        fields["rotary_width"] = int(head * rope.get("partial_rotary_factor", 0.5))
        fields["sections"] = rope.get("mrope_section", GlmImageConfig.sections)
        fields["image_start"] = config.get("image_start_token_id", GlmImageConfig.image_start)
        return GlmImageConfig(**fields)

    def named_image_ids(self) -> Tensor:
        return torch.arange(self.described_config.vocab_size)

    def frame(self) -> PromptFrame:
        """The model is published without guidance; with it, the unconditional prompt has an empty
        caption.
        """
        before_size, after_size = SIZE
        sizes = ""
        for rows, columns in (self.config.grid, coarse(self.config.grid)):
            sizes += f"{before_size}{rows} {columns}{after_size}"
        start = self.config.image_start % self.config.prompt_ids
        after = [*self.text.encode("", sizes), start]
        unconditional = [*self.text.encode("", *self.template), *after]
        return PromptFrame([], after, unconditional)

    def complete(self, target: Target) -> None:
        super().complete(target)
        where = self.files.paths.get("diffusion")
        if where is not None and importlib.util.find_spec("diffusers"):
            target.render = diffusion(where, str(target.device), target.dtype)
            target.evaluators = "full"
        elif not self.is_random:
            target.remark = NO_IMAGES


@register("target", "glm-image")
class GlmImageFamily(Family):
    checkpoint = GlmImageCheckpoint
