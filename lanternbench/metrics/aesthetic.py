"""Aesthetic score: LAION's improved predictor (sac+logos+ava1), a linear head on CLIP ViT-L/14, about 1…10.

It looks at the image alone; the caption does not count.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from torch import Tensor

from lanternbench.metrics import files
from lanternbench.metrics.clip import Encoder, openai_clip
from lanternbench.metrics.judge import Judge, PerImage, linear_head
from lanternbench.metrics.setup import Setup, seeded


def judge(encoder: Encoder, path: Path | None, width: int = 768) -> Judge:
    """The head in ``path`` on the unit embeddings [B, width] of an encoder; a random head without a path.

    Raises UserError for another file.
    """
    with seeded():
        head = linear_head(width)
    if path is not None:
        try:
            head.load_state_dict({k.removeprefix("layers."): v for k, v in files.tensors(path, "aesthetic").items()})
        except RuntimeError as error:
            raise files.wrong_file(path, files.AESTHETIC.title, error) from None
    head.eval().requires_grad_(False).to(encoder.device)

    def values(images: list[Image.Image], captions: list[str]) -> Tensor:
        return head(encoder.images(images)).squeeze(-1)

    return values


def aesthetic_score(setup: Setup | None = None, path: Path | None = None, clip: Path | None = None) -> PerImage:
    """ "aesthetic": the head from ``path``, CLIP ViT-L/14 from ``clip``, or both found on this machine."""
    setup, weights = setup or Setup(), files.CLIP_VIT_L14

    def load() -> Judge:
        encoder = openai_clip(setup.find(weights, clip), weights, "ViT-L-14-quickgelu", setup.device)
        return judge(encoder, setup.find(files.AESTHETIC, path))

    def missing() -> str | None:
        return setup.missing({files.AESTHETIC: path, weights: clip})

    return PerImage(f"aesthetic{setup.mark}", (files.AESTHETIC.file, weights.file), missing, load, captions=False)
