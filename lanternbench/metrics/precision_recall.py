"""Precision and recall of a set of images (Kynkäänniemi et al., NeurIPS 2019, arXiv 1904.06991).

A set's manifold is the union of the balls around its features that just reach the k-th nearest neighbour.  Precision is
the share of generated images inside the real manifold (how good), recall that of real ones inside the generated (how
varied).  The features are those of the FID net.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanternbench.metrics.feature_metric import FeatureMetric
from lanternbench.metrics.features import Net
from lanternbench.metrics.metric import ENOUGH, Extra, SetScore
from lanternbench.metrics.nets import FID_TINY, INCEPTION, inception_net, tiny_net
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

K = 3
CHUNK = 1024  # rows of the distance matrix held at a time


def radii(points: Tensor) -> Tensor:
    """Distance of each point [N, D] to its K-th nearest other one [N]; to the farthest where there are fewer."""
    import torch

    k = min(K, len(points) - 1)
    # kthvalue counts from 1, and the nearest of all is the point itself
    return torch.cat([torch.cdist(block, points).kthvalue(k + 1).values for block in points.split(CHUNK)])


def inside(points: Tensor, others: Tensor, reach: Tensor) -> float:
    """Share of points [N, D] that lie in a ball around one of the others [M, D] with radii [M]."""
    import torch

    hits = [(torch.cdist(block, others) <= reach).any(1).sum() for block in points.split(CHUNK)]
    return float(torch.stack(hits).sum() / len(points))


def precision_recall(real: Tensor, made: Tensor) -> tuple[float, float]:
    """(precision, recall), 0…1, of features made [N, D] against real [M, D]; at least two of each."""
    return inside(made, real, radii(real)), inside(real, made, radii(made))


@register("metric", "precision-recall")
class PrecisionRecall(FeatureMetric):
    """Two columns, on Inception-V3's 2048 features; both without a value when images are too few."""

    paper = "Kynkäänniemi et al. 2019, arXiv 1904.06991"
    title, form, key = "Precision", ".3f", "precision"
    more = (Extra("recall", "Recall", form=".3f"),)
    weights = (INCEPTION,)
    stand_in = "precision-recall-tiny"

    def load(self) -> Net:
        return inception_net(self.setup)

    def compare(self, made: Tensor) -> SetScore:
        precise, recalled = precision_recall(self.real, made)
        few = f"precision and recall over {len(made)} images (fewer than {ENOUGH}) compare only at equal numbers"
        note = self.note("warning", few) if len(made) < ENOUGH else None
        return SetScore(precise, len(made), note, {self.more[0].key: recalled})


@register("metric", "precision-recall-tiny")
class PrecisionRecallTiny(PrecisionRecall):
    """On features of the embedded net."""

    title, key = "Precision-tiny", "precision-tiny"
    more = (Extra("recall-tiny", "Recall-tiny", form=".3f"),)
    weights = (FID_TINY,)
    embedded, extra, stand_in = True, True, ""

    def load(self) -> Net:
        return tiny_net()[0]
