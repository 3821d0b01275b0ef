"""A value of a whole set of images by a network's features of them, most beside those of the
setup's real images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

from lanternbench.metrics import files
from lanternbench.metrics.images import ImageFiles, images_in
from lanternbench.metrics.metric import ENOUGH, Extra, SetMetric, SetScore
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from lanternbench.metrics.features import Net

POINTS = 15  # subsets of FID∞, as in the paper
PER_FEATURE = 2  # images per feature in the smallest subset: below, FID is far from linear in 1/N
NEAREST = 3  # neighbours of a manifold's balls
SIGMA, SCALE = 10.0, 1000.0  # of CMMD
SPLITS = 10  # of the Inception Score
CHUNK = 1024  # rows of a matrix of distances held at a time


@dataclass(frozen=True)
class Statistics:
    """What FID keeps of a set of images; float64 sums, so that sets can be added up and continued."""

    total: Tensor  # [D] sum of the features
    products: Tensor  # [D, D] sum of their outer products
    count: int

    @classmethod
    def of(cls, features: Tensor) -> Statistics:
        """Of features [N, D]."""
        return cls(features.sum(0), features.T @ features, len(features))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean [D] and unbiased covariance [D, D]."""
        mean = self.total / self.count
        return mean, (self.products - self.count * mean.outer(mean)) / (self.count - 1)


def frechet(mean: Tensor, cov: Tensor, other_mean: Tensor, other_root: Tensor) -> float:
    """|μ₁ − μ₂|² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁Σ₂)^½ of two Gaussians, the second as the root of its
    covariance.
    """
    import torch

    # (Σ₁Σ₂)^½ has the trace of (Σ₂^½ Σ₁ Σ₂^½)^½, which is symmetric: its eigenvalues are real and
    # quickly computed
    middle = torch.linalg.eigvalsh(other_root @ cov @ other_root).clamp(min=0).sqrt().sum()
    return float(
        (mean - other_mean).square().sum() + cov.trace() + other_root.square().sum() - 2 * middle
    )


def root(cov: Tensor) -> Tensor:
    """The symmetric square root of a covariance [D, D]."""
    import torch

    values, vectors = torch.linalg.eigh(cov)
    return vectors * values.clamp(min=0).sqrt() @ vectors.T


def fid(features: Tensor, reference: Statistics) -> float:
    """FID of features [N, D], N ≥ 2, against the reference, from unbiased covariances."""
    mean, cov = reference.moments()
    return max(frechet(features.mean(0), features.T.cov(), mean, root(cov)), 0.0)


def least_images(width: int) -> int:
    """Fewest images for FID∞ on features of this width."""
    return 2 * PER_FEATURE * width


def fid_infinity(features: Tensor, reference: Statistics) -> float:
    """FID∞ (Chong & Forsyth, CVPR 2020) of features [N, D], N ≥ ``least_images(D)``: the line of
    FID over 1/N, at 0.
    """
    import torch

    count, width = features.shape
    mean, cov = reference.moments()
    other_root, generator = root(cov), torch.Generator().manual_seed(0)
    sizes = np.linspace(max(PER_FEATURE * width, count // 10), count, POINTS).astype(int)
    values = []
    for size in sizes.tolist():
        part = features[torch.randperm(count, generator=generator)[:size]]
        values.append(frechet(part.mean(0), part.T.cov(), mean, other_root))
    _, at_infinity = np.polyfit(1 / sizes, values, 1)
    return float(at_infinity)


def inside(points: Tensor, others: Tensor) -> float:
    """Share of points [N, D] in the manifold of the others [M, D]: balls that reach the
    third-nearest, or farthest.
    """
    import torch

    # kthvalue counts from 1, and the nearest of all is the point itself
    k = min(NEAREST, len(others) - 1) + 1
    reach = torch.cat(
        [torch.cdist(block, others).kthvalue(k).values for block in others.split(CHUNK)]
    )
    hits = [(torch.cdist(block, others) <= reach).any(1).sum() for block in points.split(CHUNK)]
    return float(torch.stack(hits).sum() / len(points))


def precision_recall(real: Tensor, generated: Tensor) -> tuple[float, float]:
    """(precision, recall) of features [N, D] and real ones [M, D], ≥ 2 of each (Kynkäänniemi et
    al., NeurIPS 2019).
    """
    return inside(generated, real), inside(real, generated)


def kernel_sum(x: Tensor, y: Tensor) -> float:
    """Σ k(x_i, y_j) over all pairs of x [M, D] and y [N, D], k(x, y) = exp(−|x − y|² / 2σ²), σ =
    SIGMA.
    """
    import torch

    blocks = [
        torch.cdist(part, y).square().div(-2 * SIGMA**2).exp().sum() for part in x.split(CHUNK)
    ]
    return float(torch.stack(blocks).sum())


def mmd2(x: Tensor, y: Tensor, unbiased: bool = True) -> float:
    """SCALE · MMD² of x [M, D], y [N, D] (Gretton et al., JMLR 2012): Eq. 3, maybe < 0, if
    ``unbiased``, else Eq. 5.
    """
    m, n = len(x), len(y)
    within_x, within_y, across = kernel_sum(x, x), kernel_sum(y, y), kernel_sum(x, y)
    if unbiased:  # k(x, x) = 1
        return SCALE * (
            (within_x - m) / (m * (m - 1)) + (within_y - n) / (n * (n - 1)) - 2 * across / (m * n)
        )
    return SCALE * (within_x / m**2 + within_y / n**2 - 2 * across / (m * n))


def inception_score(logits: Tensor) -> float:
    """exp of the mean KL(p(y|x) ‖ p(y)) over images [N, classes]; a mean over SPLITS even parts,
    as officially.
    """
    import torch

    with files.seeded():  # images of one kind may lie side by side
        order = torch.randperm(len(logits))
    scores = []
    for part in logits[order].tensor_split(SPLITS):
        log_p = part.log_softmax(1)
        marginal = log_p.logsumexp(0) - math.log(len(log_p))
        scores.append((log_p.exp() * (log_p - marginal)).sum(1).mean().exp())
    return float(torch.stack(scores).mean())


class FeatureMetric(SetMetric):
    """On Inception-V3's features, or the embedded net's; undefined for fewer than ``fewest``
    images.
    """

    compares, weights = True, files.published("inception")
    resize: ClassVar[str] = ""  # the resize to 299 × 299 pixels: a key of ``features.RESIZES``
    layer: ClassVar[str] = "2048"
    warning: ClassVar[str] = ""  # of a value of ``{few}`` images
    fewest = 2

    def values(self, generated: Tensor) -> tuple[float, ...]:
        """The value for features [N, D], then those of the further columns."""
        raise NotImplementedError

    def caution(self, generated: Tensor) -> str:
        """The warning for a value of fewer than ``ENOUGH`` images; "" for none."""
        return self.warning.format(few=f"{len(generated)} images (fewer than {ENOUGH})")

    @cached_property
    def net(self) -> Net:
        from lanternbench.metrics import features

        return (
            features.tiny_net()[0]
            if self.embedded
            else features.inception_net(self.setup, self.resize, self.layer)
        )

    @cached_property
    def real(self) -> Any:
        """Features [M, D] of the real images, or their statistics.  Raises UserError when an image
        cannot be read.
        """
        from lanternbench.metrics.features import features

        return features(self.net, ImageFiles(images_in(self.setup.reference), strict=True))

    def prepare(self) -> None:
        self.net  # noqa: B018
        if self.compares:
            self.real  # noqa: B018

    def compute(self, images: Iterable[Image.Image]) -> SetScore:
        from lanternbench.metrics.features import features

        generated = features(self.net, images)
        count, title = len(generated), self.title or self.name
        problem = (
            f"{title} needs at least {self.fewest} images; there are {count}"
            if count < self.fewest
            else ""
        )
        if not problem and not bool(generated.isfinite().all()):
            problem = f"{title} is undefined for these images: their features are not finite"
        if problem:
            return SetScore(None, count, self.note("missing", problem))
        value, *more = self.values(generated)
        text = self.caution(generated) if count < ENOUGH else ""
        note = self.note("warning", text) if text else None
        return SetScore(
            value, count, note, dict(zip((column.key for column in self.more), more, strict=True))
        )


@register("metric", "fid")
class Fid(FeatureMetric):
    """FID: the Fréchet distance between the features of generated and of real images; equal to
    torchmetrics'.

    Inception-V3 2048 against the setup's real images, scaled as torchmetrics does.  The way to
    299×299 pixels moves FID by several points, so each way (see ``features``) is a metric of its
    own.
    """

    paper = "Heusel et al. 2017, arXiv 1706.08500"
    title, higher_is_better, form, stand_in = "FID", False, ".2f", "fid-tiny"
    warning = "FID over {few} is biased upwards: compare only equal numbers of images"

    @cached_property
    def real(self) -> Statistics:
        from lanternbench.metrics.features import tiny_net

        return tiny_net()[1] if self.embedded else Statistics.of(super().real)

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (fid(generated, self.real),)

    def caution(self, generated: Tensor) -> str:
        text, least = super().caution(generated), least_images(generated.shape[1])
        needs = f"; the metric fid-inf, which takes the bias off, needs {least}"
        return text and text + (
            needs if len(generated) < least else ", or take the bias off with the metric fid-inf"
        )


@register("metric", "fid-clean")
class FidClean(Fid):
    """FID on images scaled as clean-fid does."""

    paper = "Parmar et al. 2021, arXiv 2104.11222"
    title, resize, stand_in, extra = "FID (clean-fid resize)", "-clean", "", True


@register("metric", "fid-legacy")
class FidLegacy(Fid):
    """FID on images scaled as pytorch-fid does."""

    title, resize, stand_in, extra = "FID (pytorch-fid resize)", "-legacy", "", True


@register("metric", "fid-tiny")
class FidTiny(Fid):
    """FID on features of the embedded net, against held-out real scenes; its scale is another than
    FID's.
    """

    title, compares, weights, embedded, stand_in = "FID-tiny", False, (files.FID_TINY,), True, ""


@register("metric", "fid-inf")
class FidInf(Fid):
    """FID∞, the limit of FID for infinitely many images; it needs many.  Inception-V3 2048 against
    real images.
    """

    paper = "Chong and Forsyth 2019, arXiv 1911.07023"
    # as the estimate has no bias
    title, stand_in, extra, warning = "FID∞", "fid-inf-tiny", True, ""

    @property
    def fewest(self) -> int:  # type: ignore[override]
        return least_images(len(self.real.total))

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (fid_infinity(generated, self.real),)


@register("metric", "fid-inf-tiny")
class FidInfTiny(FidInf, FidTiny):
    """FID∞ on the embedded net, against held-out real scenes."""

    title, stand_in, extra = "FID∞-tiny", "", True


@register("metric", "inception-score")
class InceptionScore(FeatureMetric):
    """Inception Score: exp of the mean KL(p(y|x) ‖ p(y)), a mean over ten splits, by
    Inception-V3's 1008 logits.
    """

    paper = "Salimans et al. 2016, arXiv 1606.03498"
    title, form, compares, layer = "Inception Score", ".2f", False, "logits_unbiased"
    warning = "the Inception Score over {few} is biased: compare only equal numbers"
    fewest = SPLITS

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (inception_score(generated),)


@register("metric", "precision-recall")
class PrecisionRecall(FeatureMetric):
    """Precision and recall: the share of generated images inside the real manifold, and
    conversely; two columns.
    """

    paper = "Kynkäänniemi et al. 2019, arXiv 1904.06991"
    title, form, key, stand_in = "Precision", ".3f", "precision", "precision-recall-tiny"
    more = (Extra("recall", "Recall", form=".3f"),)
    warning = "precision and recall over {few} compare only at equal numbers"

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return precision_recall(self.real, generated)


@register("metric", "precision-recall-tiny")
class PrecisionRecallTiny(PrecisionRecall):
    """Precision and recall on features of the embedded net."""

    title, key, extra = "Precision-tiny", "precision-tiny", True
    weights, embedded, stand_in = (files.FID_TINY,), True, ""
    more = (Extra("recall-tiny", "Recall-tiny", form=".3f"),)


@register("metric", "cmmd")
class Cmmd(FeatureMetric):
    """CMMD: the squared maximum mean discrepancy of unit CLIP embeddings, by the paper's unbiased
    estimator.
    """

    paper = "Jayasumana et al. 2024, arXiv 2401.09603"
    title, form, higher_is_better = "CMMD", ".3f", False
    weights, extra = files.published("clip-l14-336"), True
    unbiased: ClassVar[bool] = True

    @cached_property
    def net(self) -> Net:
        from lanternbench.metrics.features import clip_net

        return clip_net(self.setup)

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (mmd2(self.real, generated, self.unbiased),)


@register("metric", "cmmd-biased")
class CmmdBiased(Cmmd):
    """CMMD by the estimator of its public code: too high by about a constant over the number of
    images.
    """

    title, unbiased = "CMMD (biased estimate)", False
