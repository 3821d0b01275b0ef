"""Aesthetic score: LAION's improved predictor (sac+logos+ava1), a linear head on CLIP ViT-L/14, about 1…10.

It looks at the image alone; the caption does not count.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.clip import Encoder, openai_clip
from lanternbench.metrics.judge import Judge, PerImage, linear_head


def judge(encoder: Encoder, path: Path, width: int = 768) -> Judge:
    """The head in ``path`` on the unit embeddings [B, width] of an encoder.  Raises UserError for another file."""
    head = linear_head(width)
    try:
        head.load_state_dict({k.removeprefix("layers."): v for k, v in files.tensors(path, "aesthetic").items()})
    except RuntimeError as error:
        raise files.wrong_file(path, files.AESTHETIC.title, error) from None
    head.eval().requires_grad_(False)

    def values(images: list[Image.Image], captions: list[str]) -> Tensor:
        return head(encoder.images(images)).squeeze(-1)

    return values


def aesthetic_score(path: Path | None = None, clip: Path | None = None) -> PerImage:
    """ "aesthetic": the head from ``path``, CLIP ViT-L/14 from ``clip``, or both found on this machine."""
    needed = [w for w, given in ((files.AESTHETIC, path), (files.CLIP_VIT_L14, clip)) if given is None]

    def load() -> Judge:
        head, weights = path or files.AESTHETIC.find(), clip or files.CLIP_VIT_L14.find()
        if head is None or weights is None:
            raise UserError(f"the aesthetic score cannot be computed: {files.missing(*needed)}.")
        return judge(openai_clip(weights, files.CLIP_VIT_L14, "ViT-L-14-quickgelu"), head)

    needs = (files.AESTHETIC.file, files.CLIP_VIT_L14.file)
    return PerImage("aesthetic", needs, lambda: files.missing(*needed), load, captions=False)
