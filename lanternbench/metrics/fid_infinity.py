"""FID∞ (Chong & Forsyth, CVPR 2020): FID without the bias that comes from a finite number of images.

The FID of N images is, to first order, linear in 1/N.  So it is computed on random subsets of growing size, and the
line through these values is followed to 1/N = 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lanternbench.metrics.features import features
from lanternbench.metrics.fid import Fid, SetScore, Statistics, fid_score, fid_tiny_score, frechet, moments, root
from lanternbench.metrics.setup import Setup

POINTS = 15  # as in the paper
PER_FEATURE = 2  # images per feature in the smallest subset: below, FID is far from linear in 1/N


def least(width: int) -> int:
    """Fewest images for features of this width."""
    return 2 * PER_FEATURE * width


def extrapolated(found: Tensor, reference: Statistics, seed: int = 0, points: int = POINTS) -> float | None:
    """FID∞ of features [N, D], float64, against the reference; None under ``least(D)`` images."""
    count, width = found.shape
    smallest = max(PER_FEATURE * width, count // 10)
    if count < 2 * smallest:
        return None
    mean, cov = moments(reference)
    other_root = root(cov)
    generator = torch.Generator().manual_seed(seed)
    sizes = np.linspace(smallest, count, points).astype(int)
    values = []
    for size in sizes.tolist():
        part = found[torch.randperm(count, generator=generator)[:size]]
        values.append(frechet(part.mean(0), torch.cov(part.T), mean, other_root))
    _, at_infinity = np.polyfit(1 / sizes, values, 1)
    return float(at_infinity)


class FidInfinity:
    """A set scorer on net and reference of a ``Fid``; "fid-inf" beside "fid", "fid-inf-tiny" beside "fid-tiny"."""

    def __init__(self, fid: Fid):
        self.name, self.needs, self._fid = fid.name.replace("fid", "fid-inf", 1), fid.needs, fid
        self.compares = fid.compares

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""
        return self._fid.available()

    def prepare(self) -> None:
        """Load the net and the real images' statistics now, so that a clock may start afterwards."""
        self._fid.prepare()

    def score_set(self, images: Iterable[Image.Image]) -> SetScore:
        """FID∞ of the images; without a value where there are too few of them."""
        if reason := self.available():
            return SetScore(None, 0, reason)
        measure = self._fid.measure
        found = features(measure.net, images)
        count, width = len(found), len(measure.reference.total)
        if not bool(found.isfinite().all()):
            return SetScore(None, count, "FID∞ is undefined for these images: their features are not finite")
        value = extrapolated(found, measure.reference) if count else None
        few = f"FID∞ needs at least {least(width)} images; there are {count}"
        return SetScore(value, count, few if value is None else None)


def fid_inf_score(setup: Setup | None = None) -> FidInfinity:
    """ "fid-inf": on Inception-V3 2048, against the setup's real images."""
    return FidInfinity(fid_score(setup))


def fid_inf_tiny_score(setup: Setup | None = None) -> FidInfinity:
    """ "fid-inf-tiny": on the embedded net, against held-out real scenes."""
    return FidInfinity(fid_tiny_score())
