"""Precision and recall of a set of images (Kynkäänniemi et al., NeurIPS 2019, arXiv 1904.06991).

A set's manifold is the union of the balls around its features that just reach the k-th nearest neighbour.  Precision is
the share of generated images inside the real manifold (how good), recall that of real ones inside the generated (how
varied).  The features are those of the FID net.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchmetrics.image.fid import FrechetInceptionDistance

from lanternbench.errors import UserError
from lanternbench.metrics import files, reference
from lanternbench.metrics.fid import ENOUGH, Prepare, SetScore, features, inception, plain_image, tiny_image

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
    """A set scorer with two columns, "precision" and "recall" (and "-tiny"); net and reference load on first use."""

    def __init__(
        self,
        suffix: str,
        needs: tuple[str, ...],
        missing: Callable[[], str | None],
        net: Callable[[], tuple[FrechetInceptionDistance, Prepare]],
        real: Path | None,
        settings: str,
    ):
        self.name, self.needs, self._suffix, self._settings = f"precision{suffix}", needs, suffix, settings
        self._missing, self._net, self._folder = missing, cache(net), real

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""
        return self._missing() or reference.missing("precision and recall", self._folder)

    def _features(self, images: Iterable[Image.Image]) -> Tensor:
        return features(*self._net(), images)

    def _real(self) -> Tensor:
        assert self._folder is not None  # else it is not available

        def make(images: Iterator[Image.Image]) -> dict[str, Tensor]:
            return {"features": self._features(images)}

        return reference.kept("features", self._folder, self._settings, make)["features"]

    def score_set(self, images: Iterable[Image.Image]) -> SetScore:
        """Precision, and recall beside it; both None when files are missing or images are too few."""
        recall = f"recall{self._suffix}"
        if reason := self.available():
            return SetScore(None, 0, reason, {recall: None})
        made, real = self._features(images), self._real()
        if len(made) < 2:
            few = f"precision and recall need at least 2 images; there are {len(made)}"
            return SetScore(None, len(made), few, {recall: None})
        precise, recalled = precision_recall(real, made)
        few = f"precision and recall over {len(made)} images (fewer than {ENOUGH}) compare only at equal numbers"
        return SetScore(precise, len(made), few if len(made) < ENOUGH else None, {recall: recalled})


def precision_recall_tiny_score(real: Path | None = None) -> PrecisionRecall:
    """ "precision-tiny" and "recall-tiny": features of the embedded net, against the images in folder ``real``."""

    def net() -> tuple[FrechetInceptionDistance, Prepare]:
        from lanternbench.models import fid_tiny

        return FrechetInceptionDistance(feature=fid_tiny.load(files.embedded("fid.safetensors"))[0]), tiny_image

    def missing() -> str | None:
        return files.embedded_missing("fid.safetensors", "FID net")

    needs = ("fid.safetensors", "a folder of real images")
    return PrecisionRecall("-tiny", needs, missing, net, real, files.stamp(files.embedded("fid.safetensors")))


def precision_recall_score(real: Path | None = None, path: Path | None = None) -> PrecisionRecall:
    """ "precision" and "recall": Inception-V3 2048, against the images in ``real``; weights from ``path`` or found."""
    weights = files.INCEPTION

    def net() -> tuple[FrechetInceptionDistance, Prepare]:
        found = path or weights.find()
        if found is None:
            raise UserError(f"precision and recall cannot be computed: {weights.missing()}.")
        return inception(found), plain_image

    needs = (weights.file, "a folder of real images")
    return PrecisionRecall("", needs, lambda: None if path else weights.missing(), net, real, weights.file)
