"""Metrics of an image next to the baseline's image of the same prompt and seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lanternbench.metrics.metric import PairMetric
from lanternbench.registry import register

if TYPE_CHECKING:
    from PIL import Image

WHITE = 255.0
EQUAL = 99.0  # dB; what two equal images have, so that means stay finite


@register("metric", "psnr")
class Psnr(PairMetric):
    """The peak signal-to-noise ratio to the baseline's image in dB, 99 at most; informative with
    shared noise, as two images of one caption drawn independently differ anyway.
    """

    paper = "Huynh-Thu & Ghanbari 2008, doi:10.1049/el:20080522"
    title = "PSNR to ar"
    form = ".1f"

    def score_pair(self, image: Image.Image, baseline: Image.Image) -> float:
        """Return 10 · log10(255² / mean squared error) of two RGB images of one size."""
        difference = np.asarray(image, float) - np.asarray(baseline, float)
        error = float(np.square(difference).mean())
        if error == 0.0:
            return EQUAL
        return min(EQUAL, float(10 * np.log10(WHITE**2 / error)))
