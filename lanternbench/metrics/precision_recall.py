"""Precision and recall of a set of images (Kynkäänniemi et al., NeurIPS 2019, arXiv 1904.06991).

A set's manifold is the union of the balls around its features that just reach the k-th nearest neighbour.  Precision is
the share of generated images inside the real manifold (how good), recall that of real ones inside the generated (how
varied).  The features are those of the FID net.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from lanternbench.metrics import files, reference
from lanternbench.metrics.features import ImageFiles, Net, features
from lanternbench.metrics.fid import ENOUGH, SetScore, inception_net, tiny_net
from lanternbench.metrics.setup import Setup

K = 3
CHUNK = 1024  # rows of the distance matrix held at a time


def radii(points: Tensor, k: int = K) -> Tensor:
    """Distance of each point [N, D] to its k-th nearest other one [N]; to the farthest where there are fewer."""
    k = min(k, len(points) - 1)
    # kthvalue counts from 1, and the nearest of all is the point itself
    return torch.cat([torch.cdist(block, points).kthvalue(k + 1).values for block in points.split(CHUNK)])


def inside(points: Tensor, others: Tensor, reach: Tensor) -> float:
    """Share of points [N, D] that lie in a ball around one of the others [M, D] with radii [M]."""
    hits = [(torch.cdist(block, others) <= reach).any(1).sum() for block in points.split(CHUNK)]
    return float(torch.stack(hits).sum() / len(points))


def precision_recall(real: Tensor, made: Tensor, k: int = K) -> tuple[float, float]:
    """(precision, recall), 0…1, of features made [N, D] against real [M, D]; at least two of each."""
    return inside(made, real, radii(real, k)), inside(real, made, radii(made, k))


class PrecisionRecall:
    """A set scorer with two columns, "precision" and "recall" (and a mark); net and reference load on first use."""

    compares = True

    def __init__(
        self,
        mark: str,
        needs: tuple[str, ...],
        missing: Callable[[], str | None],
        net: Callable[[], Net],
        real: Path | None,
    ):
        self.name, self.needs, self._mark = f"precision{mark}", needs, mark
        self._missing, self._net, self._folder, self._real = missing, cache(net), real, cache(self._reference)

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""
        return self._missing() or reference.missing("precision and recall", self._folder)

    def _reference(self) -> Tensor:
        assert self._folder is not None  # else it is not available
        return features(self._net(), ImageFiles(reference.images_in(self._folder), strict=True))

    def prepare(self) -> None:
        """Load the net and the real images' features now, so that a clock may start afterwards."""
        self._real()

    def score_set(self, images: Iterable[Image.Image]) -> SetScore:
        """Precision, and recall beside it; both None when files are missing or images are too few."""
        recall = f"recall{self._mark}"
        if reason := self.available():
            return SetScore(None, 0, reason, {recall: None})
        made = features(self._net(), images)
        if len(made) < 2:
            few = f"precision and recall need at least 2 images; there are {len(made)}"
            return SetScore(None, len(made), few, {recall: None})
        precise, recalled = precision_recall(self._real(), made)
        few = f"precision and recall over {len(made)} images (fewer than {ENOUGH}) compare only at equal numbers"
        return SetScore(precise, len(made), few if len(made) < ENOUGH else None, {recall: recalled})


def precision_recall_tiny_score(setup: Setup | None = None) -> PrecisionRecall:
    """ "precision-tiny" and "recall-tiny": features of the embedded net, against the setup's real images."""
    file = "fid.safetensors"
    needs, real = (file, "a folder of real images"), (setup or Setup()).reference
    return PrecisionRecall("-tiny", needs, lambda: files.embedded_missing(file, "FID net"), lambda: tiny_net()[0], real)


def precision_recall_score(setup: Setup | None = None, path: Path | None = None) -> PrecisionRecall:
    """ "precision" and "recall": Inception-V3 2048, against the setup's real images; weights from ``path`` or found."""
    setup = setup or Setup()
    needs = (files.INCEPTION.file, "a folder of real images")
    return PrecisionRecall(
        setup.mark,
        needs,
        lambda: setup.missing({files.INCEPTION: path}),
        lambda: inception_net(setup, path),
        setup.reference,
    )
