"""CMMD (arXiv 2401.09603): the squared maximum mean discrepancy of CLIP embeddings of real and generated images.

"cmmd" is the paper's unbiased estimator; "cmmd-biased" the one of its public code, which keeps the pairs of an image
with itself and so is too high by about a constant over the number of images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import Image

from lanternbench.metrics import files
from lanternbench.metrics.clip import openai_clip
from lanternbench.metrics.feature_metric import FeatureMetric
from lanternbench.metrics.features import Net
from lanternbench.metrics.metric import SetScore
from lanternbench.metrics.setup import Setup
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

SIGMA, SCALE = 10.0, 1000.0
SIDE = 336  # pixels
CHUNK = 1024  # rows of a kernel matrix held at a time
CLIP_VIT_L14_336 = files.Weights(
    name="clip-l14-336",
    title="CLIP ViT-L/14 at 336 pixels (OpenAI)",
    file="ViT-L-14-336px.pt",
    gigabytes=0.93,
    url="https://openaipublic.azureedge.net/clip/models/"
    "3035c92b350959924f9f00213499208652fc7ea050643e8b385c2dac08641f02/ViT-L-14-336px.pt",
    sha256="3035c92b350959924f9f00213499208652fc7ea050643e8b385c2dac08641f02",
    elsewhere=("~/.cache/clip/ViT-L-14-336px.pt",),
    hub=("timm/vit_large_patch14_clip_336.openai", "open_clip_model.safetensors"),
)


def kernel_sum(x: Tensor, y: Tensor) -> float:
    """Σ k(x_i, y_j) over all pairs of x [M, D] and y [N, D], k(x, y) = exp(−|x − y|² / 2σ²), σ = SIGMA."""
    import torch

    blocks = (torch.cdist(part, y).square().div(-2 * SIGMA**2).exp().sum() for part in x.split(CHUNK))
    return float(torch.stack(list(blocks)).sum())


def mmd2(x: Tensor, y: Tensor, unbiased: bool = True) -> float:
    """SCALE · MMD² of x [M, D] and y [N, D], float64; without the M + N pairs of a point with itself if ``unbiased``.

    The unbiased estimate (Gretton et al., JMLR 2012, Eq. 3) can fall below zero; the other (Eq. 5) cannot.
    """
    m, n = len(x), len(y)
    within_x, within_y, across = kernel_sum(x, x), kernel_sum(y, y), kernel_sum(x, y)
    if unbiased:  # k(x, x) = 1
        return SCALE * ((within_x - m) / (m * (m - 1)) + (within_y - n) / (n * (n - 1)) - 2 * across / (m * n))
    return SCALE * (within_x / m**2 + within_y / n**2 - 2 * across / (m * n))


def square_image(image: Image.Image) -> Tensor:
    """RGB image of any size -> uint8 [3, 336, 336]: the central square, scaled by Pillow's bicubic."""
    import torch

    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    square = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(square.convert("RGB"))).permute(2, 0, 1)


def clip_net(setup: Setup) -> Net:
    """CLIP ViT-L/14 at 336 pixels on the setup's device."""
    from lanternbench.metrics.image_embedding import ImageEmbedding

    found = setup.find(CLIP_VIT_L14_336)
    encoder = openai_clip(found, CLIP_VIT_L14_336, "ViT-L-14-336-quickgelu", setup.device)
    settings = f"cmmd {files.stamp(found) if found else 'random'}"
    return Net(ImageEmbedding(encoder.model).to(setup.device), square_image, settings)


@register("metric", "cmmd")
class Cmmd(FeatureMetric):
    """The paper's estimator, on unit embeddings."""

    paper = "Jayasumana et al. 2024, arXiv 2401.09603"
    title, form, higher_is_better = "CMMD", ".3f", False
    weights = (CLIP_VIT_L14_336,)
    extra = True
    unbiased: ClassVar[bool] = True

    def load(self) -> Net:
        return clip_net(self.setup)

    def compare(self, made: Tensor) -> SetScore:
        return SetScore(mmd2(self.real, made, self.unbiased), len(made))


@register("metric", "cmmd-biased")
class CmmdBiased(Cmmd):
    """The estimator of the public code."""

    title, unbiased = "CMMD (biased estimate)", False
