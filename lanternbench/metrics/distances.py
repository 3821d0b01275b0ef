"""What is computed from features of images, float64 [N, D]: FID, FID∞, precision, recall, MMD², Inception Score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lanternbench.metrics.setup import seeded

if TYPE_CHECKING:
    from torch import Tensor

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
    """|μ₁ − μ₂|² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁Σ₂)^½ of two Gaussians, the second as the root of its covariance."""
    import torch

    # (Σ₁Σ₂)^½ has the trace of (Σ₂^½ Σ₁ Σ₂^½)^½, which is symmetric: its eigenvalues are real and quickly computed
    middle = torch.linalg.eigvalsh(other_root @ cov @ other_root).clamp(min=0).sqrt().sum()
    return float((mean - other_mean).square().sum() + cov.trace() + other_root.square().sum() - 2 * middle)


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
    """FID∞ (Chong & Forsyth, CVPR 2020) of features [N, D], N ≥ ``least_images(D)``: the line of FID over 1/N, at 0."""
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
    """Share of points [N, D] in the manifold of the others [M, D]: balls that reach the third-nearest, or farthest."""
    import torch

    k = min(NEAREST, len(others) - 1) + 1  # kthvalue counts from 1, and the nearest of all is the point itself
    reach = torch.cat([torch.cdist(block, others).kthvalue(k).values for block in others.split(CHUNK)])
    hits = [(torch.cdist(block, others) <= reach).any(1).sum() for block in points.split(CHUNK)]
    return float(torch.stack(hits).sum() / len(points))


def precision_recall(real: Tensor, generated: Tensor) -> tuple[float, float]:
    """(precision, recall) of features [N, D] and real ones [M, D], ≥ 2 of each (Kynkäänniemi et al., NeurIPS 2019)."""
    return inside(generated, real), inside(real, generated)


def kernel_sum(x: Tensor, y: Tensor) -> float:
    """Σ k(x_i, y_j) over all pairs of x [M, D] and y [N, D], k(x, y) = exp(−|x − y|² / 2σ²), σ = SIGMA."""
    import torch

    blocks = [torch.cdist(part, y).square().div(-2 * SIGMA**2).exp().sum() for part in x.split(CHUNK)]
    return float(torch.stack(blocks).sum())


def mmd2(x: Tensor, y: Tensor, unbiased: bool = True) -> float:
    """SCALE · MMD² of x [M, D], y [N, D] (Gretton et al., JMLR 2012): Eq. 3, maybe < 0, if ``unbiased``, else Eq. 5."""
    m, n = len(x), len(y)
    within_x, within_y, across = kernel_sum(x, x), kernel_sum(y, y), kernel_sum(x, y)
    if unbiased:  # k(x, x) = 1
        return SCALE * ((within_x - m) / (m * (m - 1)) + (within_y - n) / (n * (n - 1)) - 2 * across / (m * n))
    return SCALE * (within_x / m**2 + within_y / n**2 - 2 * across / (m * n))


def inception_score(logits: Tensor) -> float:
    """exp of the mean KL(p(y|x) ‖ p(y)) over images [N, classes]; a mean over SPLITS even parts, as officially."""
    import torch

    with seeded():  # images of one kind may lie side by side
        order = torch.randperm(len(logits))
    scores = []
    for part in logits[order].tensor_split(SPLITS):
        log_p = part.log_softmax(1)
        marginal = log_p.logsumexp(0) - math.log(len(log_p))
        scores.append((log_p.exp() * (log_p - marginal)).sum(1).mean().exp())
    return float(torch.stack(scores).mean())
