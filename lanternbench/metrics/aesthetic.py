"""Aesthetic score: LAION's improved predictor (sac+logos+ava1), a linear head on CLIP ViT-L/14, about 1…10.

It looks at the image alone; the caption does not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from lanternbench.metrics import files
from lanternbench.metrics.clip import CLIP_VIT_L14, Encoder, openai_clip
from lanternbench.metrics.metric import ImageMetric, ScoreFunction
from lanternbench.metrics.setup import seeded
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

AESTHETIC = files.Weights(
    name="aesthetic",
    title="LAION's aesthetic predictor",
    file="sac+logos+ava1-l14-linearMSE.pth",
    gigabytes=0.004,
    url="https://github.com/christophschuhmann/improved-aesthetic-predictor/raw/main/"
    "sac%2Blogos%2Bava1-l14-linearMSE.pth",
    sha256="",
)


def score_function(encoder: Encoder, path: Path | None, width: int = 768) -> ScoreFunction:
    """The head in ``path`` on the unit embeddings [B, width] of an encoder; a random head without a path.

    Raises UserError for another file.
    """
    from lanternbench.metrics.linear_head import linear_head

    with seeded():
        head = linear_head(width)
    if path is not None:
        try:
            head.load_state_dict({k.removeprefix("layers."): v for k, v in files.tensors(path, "aesthetic").items()})
        except RuntimeError as error:
            raise files.wrong_file(path, AESTHETIC.title, error) from None
    head.eval().requires_grad_(False).to(encoder.device)

    def values(images: list[Image.Image], captions: list[str]) -> Tensor:
        return head(encoder.images(images)).squeeze(-1)

    return values


@register("metric", "aesthetic")
class Aesthetic(ImageMetric):
    """The published head on CLIP ViT-L/14."""

    paper = "LAION 2022, github.com/christophschuhmann/improved-aesthetic-predictor"
    title, form, captions = "Aesthetic", ".3f", False
    weights = (AESTHETIC, CLIP_VIT_L14)

    def load(self) -> ScoreFunction:
        """The head's value; captions do not count."""
        path = self.setup.find(CLIP_VIT_L14)
        encoder = openai_clip(path, CLIP_VIT_L14, "ViT-L-14-quickgelu", self.setup.device)
        return score_function(encoder, self.setup.find(AESTHETIC))
