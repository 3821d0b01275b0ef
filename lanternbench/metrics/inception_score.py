"""Inception Score (Salimans et al., 2016) through torchmetrics: exp of the mean KL(p(y|x) ‖ p(y)), over ten splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from PIL import Image
from torch import Tensor, nn
from torchmetrics.image.inception import InceptionScore

from lanternbench.metrics import files
from lanternbench.metrics.features import Net, features
from lanternbench.metrics.fid import ENOUGH, SetScore, inception_net
from lanternbench.metrics.setup import Setup, seeded

SPLITS = 10


class Given(nn.Module):
    """Takes the place of torchmetrics' net, which then takes logits instead of images."""

    def forward(self, found: Tensor) -> Tensor:
        return found


class InceptionScorer:
    """A set scorer, higher is better; ``load`` gives the net, whose features are logits [B, classes]."""

    needs: tuple[str, ...] = (files.INCEPTION.file,)

    def __init__(self, missing: Callable[[], str | None], load: Callable[[], Net], name: str = "inception-score"):
        self.name, self._missing, self._load = name, missing, cache(load)

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""
        return self._missing()

    def prepare(self) -> None:
        """Load the net now, so that a clock may start afterwards."""
        self._load()

    def score_set(self, images: Iterable[Image.Image]) -> SetScore:
        """Mean over the splits; None when files are missing or there are fewer images than splits."""
        if reason := self.available():
            return SetScore(None, 0, reason)
        logits = features(self._load(), images)
        count = len(logits)
        if count < SPLITS:
            return SetScore(None, count, f"the Inception Score needs at least {SPLITS} images; there are {count}")
        metric = InceptionScore(feature=Given(), splits=SPLITS)
        metric.update(logits)
        with seeded():  # torchmetrics shuffles by the global generator
            value = float(metric.compute()[0])
        few = f"the Inception Score over {count} images (fewer than {ENOUGH}) is biased: compare only equal numbers"
        return SetScore(value, count, few if count < ENOUGH else None)


def inception_score(setup: Setup | None = None, path: Path | None = None) -> InceptionScorer:
    """ "inception-score": Inception-V3's 1008 logits without bias; weights from ``path`` or found here."""
    setup = setup or Setup()

    def load() -> Net:
        return inception_net(setup, path, features="logits_unbiased")

    return InceptionScorer(lambda: setup.missing({files.INCEPTION: path}), load, f"inception-score{setup.mark}")
