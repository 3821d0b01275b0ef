"""Inception Score (Salimans et al., 2016): exp of the mean KL(p(y|x) ‖ p(y)), a mean over ten splits.

The splits are even, as in the official code; torchmetrics' leave few images in the last, or make fewer than ten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from lanternbench.metrics import files
from lanternbench.metrics.features import Net, features
from lanternbench.metrics.fid import ENOUGH, SetScore, inception_net
from lanternbench.metrics.setup import Setup, seeded

SPLITS = 10


def _score(logits: Tensor) -> Tensor:
    """exp of the mean KL(p(y|x) ‖ p(y)) over images [B, classes]."""
    log_p = logits.log_softmax(1)
    marginal = log_p.logsumexp(0) - math.log(len(log_p))
    return (log_p.exp() * (log_p - marginal)).sum(1).mean().exp()


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
        with seeded():  # images of one kind may lie side by side
            order = torch.randperm(count)
        value = float(torch.stack([_score(part) for part in logits[order].tensor_split(SPLITS)]).mean())
        few = f"the Inception Score over {count} images (fewer than {ENOUGH}) is biased: compare only equal numbers"
        return SetScore(value, count, few if count < ENOUGH else None)


def inception_score(setup: Setup | None = None, path: Path | None = None) -> InceptionScorer:
    """ "inception-score": Inception-V3's 1008 logits without bias; weights from ``path`` or found here."""
    setup = setup or Setup()

    def load() -> Net:
        return inception_net(setup, path, features="logits_unbiased")

    return InceptionScorer(lambda: setup.missing({files.INCEPTION: path}), load, f"inception-score{setup.mark}")
