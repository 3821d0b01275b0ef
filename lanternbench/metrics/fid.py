"""FID: the Fréchet distance between the features of a set of images and those of real ones; equal to torchmetrics'.

"fid-tiny" compares features of the embedded net with real scenes; the others compare Inception-V3's 2048 features with
a folder of real images.  Those two are on different scales and never share a column.  Inception sees 299×299 pixels,
and the way there moves FID by several points, so each way (see ``nets``) is a metric of its own.  "fid-inf" and
"fid-inf-tiny" are FID∞ on the same features.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from PIL import Image

from lanternbench.metrics import reference
from lanternbench.metrics.feature_metric import FeatureMetric
from lanternbench.metrics.features import ImageFiles, Net, features
from lanternbench.metrics.frechet import Statistics, fid, fid_infinity, least_images, sums
from lanternbench.metrics.metric import ENOUGH, SetScore
from lanternbench.metrics.nets import FID_TINY, INCEPTION, inception_net, tiny_net
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor


def reference_statistics(net: Net, folder: Path) -> Statistics:
    """Statistics of a folder of real images, computed once per content and settings of the net, and kept.

    Raises UserError when an image cannot be read.
    """
    paths = reference.images_in(folder)

    def compute() -> dict[str, Tensor]:
        import torch

        made = sums(features(net, ImageFiles(paths, strict=True)))
        return {"total": made.total, "products": made.products, "count": torch.tensor(made.count)}

    def valid(kept: dict[str, Tensor]) -> bool:
        width = kept["total"].numel()
        return kept["products"].shape == (width, width) and kept["count"].numel() == 1

    kept = reference.cached("fid", paths, str(net.settings), compute, valid)
    return Statistics(kept["total"], kept["products"], int(kept["count"]))


def few_images_note(count: int, width: int) -> str:
    """What to know of a FID over few images, and where its bias can be taken off."""
    note = f"FID over {count} images (fewer than {ENOUGH}) is biased upwards: compare only equal numbers of images"
    if count < least_images(width):
        return f"{note}; the metric fid-inf, which takes the bias off, needs {least_images(width)}"
    return f"{note}, or take the bias off with the metric fid-inf"


@register("metric", "fid")
class Fid(FeatureMetric):
    """Inception-V3 2048 against the setup's real images, scaled as torchmetrics does."""

    paper = "Heusel et al. 2017, arXiv 1706.08500"
    title, higher_is_better, form = "FID", False, ".2f"
    weights = (INCEPTION,)
    stand_in = "fid-tiny"
    resize: ClassVar[str] = ""

    def load(self) -> Net:
        return inception_net(self.setup, self.resize)

    @cached_property
    def statistics(self) -> Statistics:
        """Of the real images; loaded on first use."""
        assert self.setup.reference is not None  # else it is not available
        return reference_statistics(self.net, self.setup.reference)

    def prepare(self) -> None:
        """Load the net and the real images' statistics now, so that a clock may start afterwards."""
        self.net, self.statistics  # noqa: B018

    def compute(self, images: Iterable[Image.Image]) -> SetScore:
        """FID of the images, their number, and a note for the reader."""
        found = features(self.net, images)
        if len(found) and not bool(found.isfinite().all()):
            text = f"{self.title} is undefined for these images: their features are not finite"
            return SetScore(None, len(found), self.note("missing", text))
        return self.compare(found)

    def compare(self, made: Tensor) -> SetScore:
        """The distance of finite features [N, D]."""
        count = len(made)
        if count < 2:
            return SetScore(None, count, self.note("missing", f"FID needs at least 2 images; there are {count}"))
        note = self.note("warning", few_images_note(count, made.shape[1])) if count < ENOUGH else None
        return SetScore(fid(made, self.statistics), count, note)


@register("metric", "fid-clean")
class FidClean(Fid):
    """Scaled as clean-fid does."""

    paper = "Parmar et al. 2021, arXiv 2104.11222"
    title, resize, stand_in, extra = "FID (clean-fid resize)", "-clean", "", True


@register("metric", "fid-legacy")
class FidLegacy(Fid):
    """Scaled as pytorch-fid does."""

    title, resize, stand_in, extra = "FID (pytorch-fid resize)", "-legacy", "", True


@register("metric", "fid-tiny")
class FidTiny(Fid):
    """Features of the embedded net, against held-out real scenes."""

    title = "FID-tiny"
    weights = (FID_TINY,)
    embedded, compares, stand_in = True, False, ""

    def load(self) -> Net:
        return tiny_net()[0]

    @cached_property
    def statistics(self) -> Statistics:
        """Of real scenes."""
        kept = tiny_net()[1]
        return Statistics(kept["total"], kept["products"], int(kept["count"]))


class Infinity(Fid):
    """FID∞ in place of FID; without a value where there are too few images."""

    paper = "Chong and Forsyth 2019, arXiv 1911.07023"

    def compare(self, made: Tensor) -> SetScore:
        """The distance of finite features [N, D]."""
        count = len(made)
        value = fid_infinity(made, self.statistics) if count else None
        few = f"FID∞ needs at least {least_images(len(self.statistics.total))} images; there are {count}"
        return SetScore(value, count, self.note("missing", few) if value is None else None)


@register("metric", "fid-inf")
class FidInf(Infinity):
    """On Inception-V3 2048, against the setup's real images."""

    title, stand_in, extra = "FID∞", "fid-inf-tiny", True


@register("metric", "fid-inf-tiny")
class FidInfTiny(Infinity, FidTiny):
    """On the embedded net, against held-out real scenes."""

    title, extra = "FID∞-tiny", True
