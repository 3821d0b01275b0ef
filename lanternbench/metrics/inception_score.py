"""Inception Score (Salimans et al., 2016) through torchmetrics: exp of the mean KL(p(y|x) ‖ p(y)), over ten splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torchmetrics.image.fid import NoTrainInceptionV3
from torchmetrics.image.inception import InceptionScore

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.fid import ENOUGH, SetScore, batches, inception, plain_image

SPLITS = 10


class InceptionScorer:
    """A set scorer, higher is better; ``load`` gives the net, uint8 [B, 3, H, W] -> logits [B, classes]."""

    name = "inception-score"
    needs: tuple[str, ...] = (files.INCEPTION.file,)

    def __init__(self, missing: Callable[[], str | None], load: Callable[[], nn.Module]):
        self._missing, self._load = missing, cache(load)

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""
        return self._missing()

    def score_set(self, images: Iterable[Image.Image]) -> SetScore:
        """Mean over the splits; None when files are missing or there are fewer images than splits."""
        if reason := self.available():
            return SetScore(None, 0, reason)
        metric = InceptionScore(feature=self._load(), splits=SPLITS)
        count = 0
        with torch.inference_mode():
            for batch in batches(plain_image(image) for image in images):
                metric.update(batch)
                count += len(batch)
        if count < SPLITS:
            return SetScore(None, count, f"the Inception Score needs at least {SPLITS} images; there are {count}")
        with torch.random.fork_rng(devices=[]):  # torchmetrics shuffles by the global generator
            torch.manual_seed(0)
            value = float(metric.compute()[0])
        few = f"the Inception Score over {count} images (fewer than {ENOUGH}) is biased: compare only equal numbers"
        return SetScore(value, count, few if count < ENOUGH else None)


def inception_score(path: Path | None = None) -> InceptionScorer:
    """ "inception-score": Inception-V3's 1008 logits without bias; weights from ``path`` or found here."""
    weights = files.INCEPTION

    def load() -> nn.Module:
        found = path or weights.find()
        if found is None:
            raise UserError(f"the Inception Score cannot be computed: {weights.missing()}.")
        inception(found)  # refuses a wrong file
        return NoTrainInceptionV3("inception-v3-compat", ["logits_unbiased"], str(found))

    return InceptionScorer(lambda: None if path else weights.missing(), load)
