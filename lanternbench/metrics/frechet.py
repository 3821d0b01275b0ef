"""The Fréchet distance of two Gaussians, and FID∞ (Chong & Forsyth, CVPR 2020), its limit for infinitely many images.

The FID of N images is, to first order, linear in 1/N.  So FID∞ computes it on random subsets of growing size, and
follows the line through these values to 1/N = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

POINTS = 15  # subsets, as in the paper
PER_FEATURE = 2  # images per feature in the smallest subset: below, FID is far from linear in 1/N


@dataclass(frozen=True)
class Statistics:
    """What FID keeps of a set of images; float64 sums, so that sets can be added up and continued."""

    total: Tensor  # [D] sum of the features
    products: Tensor  # [D, D] sum of their outer products
    count: int


def sums(features: Tensor) -> Statistics:
    """Of features [N, D], float64."""
    return Statistics(features.sum(0), features.T @ features, len(features))


def moments(stats: Statistics) -> tuple[Tensor, Tensor]:
    """Mean [D] and unbiased covariance [D, D]."""
    mean = stats.total / stats.count
    return mean, (stats.products - stats.count * mean.outer(mean)) / (stats.count - 1)


def frechet(mean: Tensor, cov: Tensor, other_mean: Tensor, other_root: Tensor) -> float:
    """|μ₁ − μ₂|² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁Σ₂)^½ of two Gaussians, the second given by the root of its covariance.

    (Σ₁Σ₂)^½ has the trace of (Σ₂^½ Σ₁ Σ₂^½)^½, which is symmetric: its eigenvalues are real and quickly found.
    """
    import torch

    middle = torch.linalg.eigvalsh(other_root @ cov @ other_root).clamp(min=0).sqrt().sum()
    return float((mean - other_mean).square().sum() + cov.trace() + other_root.square().sum() - 2 * middle)


def root(cov: Tensor) -> Tensor:
    """The symmetric square root of a covariance [D, D]."""
    import torch

    values, vectors = torch.linalg.eigh(cov)
    return vectors * values.clamp(min=0).sqrt() @ vectors.T


def fid(features: Tensor, reference: Statistics) -> float:
    """FID of features [N, D], float64, N ≥ 2, against the reference, from unbiased covariances."""
    mean, cov = moments(reference)
    return max(frechet(features.mean(0), features.T.cov(), mean, root(cov)), 0.0)


def least_images(width: int) -> int:
    """Fewest images for FID∞ on features of this width."""
    return 2 * PER_FEATURE * width


def fid_infinity(features: Tensor, reference: Statistics) -> float | None:
    """FID∞ of features [N, D], float64, against the reference; None under ``least_images(D)`` images."""
    import torch

    count, width = features.shape
    smallest = max(PER_FEATURE * width, count // 10)
    if count < 2 * smallest:
        return None
    mean, cov = moments(reference)
    other_root = root(cov)
    generator = torch.Generator().manual_seed(0)
    sizes = np.linspace(smallest, count, POINTS).astype(int)
    values = []
    for size in sizes.tolist():
        part = features[torch.randperm(count, generator=generator)[:size]]
        values.append(frechet(part.mean(0), part.T.cov(), mean, other_root))
    _, at_infinity = np.polyfit(1 / sizes, values, 1)
    return float(at_infinity)
