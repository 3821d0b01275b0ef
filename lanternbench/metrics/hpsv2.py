"""HPSv2 (arXiv 2306.09341): the cosine of image and caption under an open_clip ViT-H/14 tuned on human preferences.

"hpsv2" uses the checkpoint of v2.0, as ``hpsv2.score()`` does; "hpsv2.1" that of v2.1.  Their scales differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from lanternbench.metrics import files
from lanternbench.metrics.clip import MEAN, STD, Encoder, encoder, filled
from lanternbench.metrics.metric import ImageMetric, ScoreFunction
from lanternbench.metrics.setup import seeded
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

HPS_V2 = files.Weights(
    name="hpsv2",
    title="HPSv2",
    file="HPS_v2_compressed.pt",
    gigabytes=2,
    url="https://huggingface.co/xswu/HPSv2/resolve/main/HPS_v2_compressed.pt",
    sha256="",
    hub=("xswu/HPSv2", "HPS_v2_compressed.pt"),
)
HPS_V21 = files.Weights(
    name="hpsv2.1",
    title="HPSv2.1",
    file="HPS_v2.1_compressed.pt",
    gigabytes=2,
    url="https://huggingface.co/xswu/HPSv2/resolve/main/HPS_v2.1_compressed.pt",
    sha256="",
    hub=("xswu/HPSv2", "HPS_v2.1_compressed.pt"),
)

SIZE = 224


def letterbox(image: Image.Image, size: int = SIZE) -> Tensor:
    """RGB image of any size -> float [3, size, size]: the longer side to ``size``, the rest filled with black.

    As in the authors' code, pixels are scaled after the change to [0, 1] and padded before the normalisation.  That
    code does not pad an image whose longer side is ``size`` already, and then fails unless it is square; here it is.
    """
    import torch
    import torch.nn.functional as F

    pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255
    height, width = pixels.shape[1:]
    scale = size / max(height, width)
    if scale != 1:
        new = [max(round(side * scale), 1) for side in (height, width)]
        pixels = F.interpolate(pixels[None], new, mode="bicubic", align_corners=False, antialias=True)[0]
    down, right = size - pixels.shape[1], size - pixels.shape[2]
    pixels = F.pad(pixels, (right // 2, right - right // 2, down // 2, down - down // 2))
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def load(
    path: Path | None, weights: files.Weights, config: dict[str, Any] | None = None, device: str = "cpu"
) -> Encoder:
    """The official checkpoint in open_clip's ViT-H/14; random weights without one.

    Raises UserError when the file is another.
    """
    import open_clip

    with seeded():
        model = open_clip.CLIP(**(config or open_clip.get_model_config("ViT-H-14")))
    if path is not None:
        filled(model, files.tensors(path, weights.title), path, weights)
    return encoder(model, letterbox, open_clip.get_tokenizer("ViT-H-14"), device)


@register("metric", "hpsv2")
class HpsV2(ImageMetric):
    """The checkpoint of v2.0: a cosine, about 0.2…0.35."""

    paper = "Wu et al. 2023, arXiv 2306.09341"
    title, weights = "HPSv2", (HPS_V2,)

    def load(self) -> ScoreFunction:
        (weights,) = self.weights
        return load(self.setup.find(weights), weights, device=self.setup.device).cosine()


@register("metric", "hpsv2.1")
class HpsV21(HpsV2):
    """The checkpoint of v2.1."""

    title, weights, extra = "HPSv2.1", (HPS_V21,), True
