"""Inception Score (Salimans et al., 2016): exp of the mean KL(p(y|x) ‖ p(y)), a mean over ten splits.

The splits are even, as in the official code; torchmetrics' leave few images in the last, or make fewer than ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from PIL import Image

from lanternbench.metrics.feature_metric import FeatureMetric
from lanternbench.metrics.features import Net, features
from lanternbench.metrics.metric import ENOUGH, SetScore
from lanternbench.metrics.nets import INCEPTION, inception_net
from lanternbench.metrics.setup import seeded
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

SPLITS = 10


def _score(logits: Tensor) -> Tensor:
    """exp of the mean KL(p(y|x) ‖ p(y)) over images [B, classes]."""
    log_p = logits.log_softmax(1)
    marginal = log_p.logsumexp(0) - math.log(len(log_p))
    return (log_p.exp() * (log_p - marginal)).sum(1).mean().exp()


@register("metric", "inception-score")
class InceptionScore(FeatureMetric):
    """By Inception-V3's 1008 logits without bias."""

    paper = "Salimans et al. 2016, arXiv 1606.03498"
    title, form, compares = "Inception Score", ".2f", False
    weights = (INCEPTION,)

    def load(self) -> Net:
        """Gives logits [B, classes]."""
        return inception_net(self.setup, features="logits_unbiased")

    def compute(self, images: Iterable[Image.Image]) -> SetScore:
        """Mean over the splits; None when there are fewer images than splits."""
        import torch

        logits = features(self.net, images)
        count = len(logits)
        if count < SPLITS:
            text = f"the Inception Score needs at least {SPLITS} images; there are {count}"
            return SetScore(None, count, self.note("missing", text))
        with seeded():  # images of one kind may lie side by side
            order = torch.randperm(count)
        value = float(torch.stack([_score(part) for part in logits[order].tensor_split(SPLITS)]).mean())
        few = f"the Inception Score over {count} images (fewer than {ENOUGH}) is biased: compare only equal numbers"
        return SetScore(value, count, self.note("warning", few) if count < ENOUGH else None)
