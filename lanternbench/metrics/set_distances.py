"""Distances of two sets of images, by a network's features of them: FID, FID∞, precision and
recall, MMD²; and the Inception Score of one set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from lanternbench.metrics.files import seeded

if TYPE_CHECKING:
    from torch import Tensor

SUBSETS = 15  # of FID∞, as in the paper
PER_FEATURE = 2  # images per feature in the smallest subset: below, FID is far from linear in 1/N
NEAREST = 3  # neighbours of a manifold's balls
SIGMA = 10.0  # of CMMD's kernel
SCALE = 1000.0  # of CMMD
SPLITS = 10  # of the Inception Score
CHUNK = 1024  # rows of a matrix of distances held at a time


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of the features of a set of images, in float64."""

    mean: Tensor  # [D]
    covariance: Tensor  # [D, D], unbiased
    count: int | None  # of images; None if it is unknown

    @classmethod
    def of(cls, features: Tensor) -> Self:
        """Of features [N, D]."""
        return cls(features.mean(0), features.T.cov(), len(features))

    @classmethod
    def of_sums(cls, total: Tensor, products: Tensor, count: int) -> Self:
        """Of the sum of the features [D] and that of their outer products [D, D]."""
        mean = total / count
        covariance = (products - count * mean.outer(mean)) / (count - 1)
        return cls(mean, covariance, count)


def frechet(mean: Tensor, cov: Tensor, other_mean: Tensor, other_root: Tensor) -> float:
    """|μ₁ − μ₂|² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁Σ₂)^½ of two Gaussians, the second as the root of its
    covariance.
    """
    import torch

    # (Σ₁Σ₂)^½ has the trace of (Σ₂^½ Σ₁ Σ₂^½)^½, which is symmetric: its eigenvalues are real and
    # quickly computed
    middle = torch.linalg.eigvalsh(other_root @ cov @ other_root).clamp(min=0).sqrt().sum()
    apart = (mean - other_mean).square().sum()
    return float(apart + cov.trace() + other_root.square().sum() - 2 * middle)


def root(cov: Tensor) -> Tensor:
    """The symmetric square root of a covariance [D, D]."""
    import torch

    values, vectors = torch.linalg.eigh(cov)
    return vectors * values.clamp(min=0).sqrt() @ vectors.T


def fid(features: Tensor, reference: Moments) -> float:
    """FID of features [N, D], N ≥ 2, from unbiased covariances."""
    other_root = root(reference.covariance)
    return max(frechet(features.mean(0), features.T.cov(), reference.mean, other_root), 0.0)


def least_images(width: int) -> int:
    """Fewest images for FID∞ on features of this width."""
    return 2 * PER_FEATURE * width


def fid_infinity(features: Tensor, reference: Moments) -> float:
    """FID∞ (Chong & Forsyth, CVPR 2020) of features [N, D], N ≥ ``least_images(D)``: the line of
    FID over 1/N, at 0.
    """
    import torch

    count, width = features.shape
    other_root = root(reference.covariance)
    generator = torch.Generator().manual_seed(0)
    smallest = max(PER_FEATURE * width, count // 10)
    sizes = np.linspace(smallest, count, SUBSETS).astype(int)
    values = []
    for size in sizes.tolist():
        part = features[torch.randperm(count, generator=generator)[:size]]
        values.append(frechet(part.mean(0), part.T.cov(), reference.mean, other_root))
    _, at_infinity = np.polyfit(1 / sizes, values, 1)
    return float(at_infinity)


def inside(points: Tensor, others: Tensor) -> float:
    """Share of points [N, D] in the manifold of the others [M, D]: balls that reach the
    third-nearest, or farthest.
    """
    import torch

    # kthvalue counts from 1, and the nearest of all is the point itself
    k = min(NEAREST, len(others) - 1) + 1
    radii = []
    for block in others.split(CHUNK):
        radii.append(torch.cdist(block, others).kthvalue(k).values)
    reach = torch.cat(radii)
    hits = 0
    for block in points.split(CHUNK):
        hits += int((torch.cdist(block, others) <= reach).any(1).sum())
    return hits / len(points)


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

    total = 0.0
    for part in x.split(CHUNK):
        exponents = torch.cdist(part, y).square() / (-2 * SIGMA**2)
        total += float(exponents.exp().sum())
    return total


def mmd2(x: Tensor, y: Tensor, unbiased: bool = True) -> float:
    """SCALE · MMD² of x [M, D], y [N, D] (Gretton et al., JMLR 2012): Eq. 3, maybe < 0, if
    ``unbiased``, else Eq. 5.
    """
    across = 2 * kernel_sum(x, y) / (len(x) * len(y))
    within = 0.0
    for points in (x, y):
        count = len(points)
        total = kernel_sum(points, points)
        if unbiased:  # without the pairs of a point with itself, k(x, x) = 1
            within += (total - count) / (count * (count - 1))
        else:
            within += total / count**2
    return SCALE * (within - across)


def inception_score(logits: Tensor) -> float:
    """exp of the mean KL(p(y|x) ‖ p(y)) over images [N, classes]; a mean over SPLITS even parts,
    as officially.
    """
    import torch

    with seeded():  # images of one kind may lie side by side
        order = torch.randperm(len(logits))
    scores = []
    for part in logits[order].tensor_split(SPLITS):
        log_p = part.log_softmax(1)
        marginal = log_p.logsumexp(0) - math.log(len(log_p))
        scores.append((log_p.exp() * (log_p - marginal)).sum(1).mean().exp())
    return float(torch.stack(scores).mean())
