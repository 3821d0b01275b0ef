"""FID∞ on the features and real images of ``fid`` and ``fid-tiny``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanternbench.metrics.fid import Fid, FidTiny
from lanternbench.metrics.frechet import fid_infinity, least
from lanternbench.metrics.metric import SetScore
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor


class Infinity(Fid):
    """In place of FID's distance; without a value where there are too few images."""

    def distance(self, found: Tensor) -> SetScore:
        """Of finite features [N, D]."""
        count, reference = len(found), self.measure.reference
        value = fid_infinity(found, reference) if count else None
        few = f"FID∞ needs at least {least(len(reference.total))} images; there are {count}"
        return SetScore(value, count, self.note("missing", few) if value is None else None)


@register("metric", "fid-inf")
class FidInf(Infinity):
    """On Inception-V3 2048, against the setup's real images."""

    title, stand_in, extra = "FID∞", "fid-inf-tiny", True


@register("metric", "fid-inf-tiny")
class FidInfTiny(Infinity, FidTiny):
    """On the embedded net, against held-out real scenes."""

    title, extra = "FID∞-tiny", True
