"""Images of GLM-Image's tokens: its diffusion decoder, run by diffusers' ``GlmImagePipeline``.

The extra ``lanternbench[glm-image]``.  The pipeline is given the tokens that are drawn here, so its own autoregressive
part is not loaded.
"""

import importlib.util
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.loading import cause

STEPS, GUIDANCE = 50, 1.5  # of the diffusion, as published
PIXELS = 32  # a token's side
ABSENT = ("vision_language_encoder", "processor")  # of the pipeline's parts


def installed() -> bool:
    return importlib.util.find_spec("diffusers") is not None


def load(folder: Path, device: str, dtype: torch.dtype) -> Callable[[Tensor, Sequence[str]], list[Any]]:
    """(tokens [B, h, w], captions) -> 32 h × 32 w pixels; noise is a function of the tokens.  Raises UserError."""
    from diffusers import GlmImagePipeline

    try:
        parts: Any = dict.fromkeys(ABSENT)
        pipeline: Any = GlmImagePipeline.from_pretrained(folder, **parts, torch_dtype=dtype, local_files_only=True)
    except Exception as error:  # whatever one of the parts raises
        raise UserError(f"{folder} is no diffusion decoder of GLM-Image ({cause(error)}): fetch it again") from None
    pipeline.to(device)
    pipeline.set_progress_bar_config(disable=True)

    def render(tokens: Tensor, captions: Sequence[str]) -> list[Any]:
        images = []
        for grid, caption in zip(tokens.cpu(), captions, strict=True):
            noise = torch.Generator().manual_seed(zlib.crc32(grid.numpy().tobytes()))
            doubled = grid.repeat_interleave(2, 0).repeat_interleave(2, 1)  # the decoder's latents are twice as fine
            output = pipeline(
                prompt=caption, prior_token_ids=doubled.view(1, -1).to(device), height=PIXELS * grid.shape[0],
                width=PIXELS * grid.shape[1], num_inference_steps=STEPS, guidance_scale=GUIDANCE, generator=noise,
            )  # fmt: skip
            images.append(output.images[0])
        return images

    return render
