"""FID: the Fréchet distance between the features of a set of images and those of real ones; equal to torchmetrics'.

"fid-tiny" compares features of the embedded net with real scenes; the others compare Inception-V3's 2048 features with
a folder of real images.  Those two are on different scales and never share a column.  Inception sees 299×299 pixels,
and the way there moves FID by several points, so each way (see ``nets``) is a metric of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from PIL import Image

from lanternbench.metrics import reference
from lanternbench.metrics.features import ImageFiles, Net, features
from lanternbench.metrics.frechet import Statistics, fid, least, sums
from lanternbench.metrics.metric import ENOUGH, SetMetric, SetScore
from lanternbench.metrics.nets import FID_TINY, INCEPTION, inception_net, tiny_net
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor


class Measure(NamedTuple):
    """What one FID needs: the feature net, and the real images' statistics."""

    net: Net
    reference: Statistics


def statistics(net: Net, images: Iterable[Image.Image]) -> Statistics:
    """The statistics of ``images``, of which there must be one or more."""
    return sums(features(net, images))


def reference_statistics(net: Net, folder: Path) -> Statistics:
    """Statistics of a folder of real images, computed once per content and settings of the net, and kept.

    Raises UserError when an image cannot be read.
    """
    paths = reference.images_in(folder)

    def compute() -> dict[str, Tensor]:
        import torch

        made = statistics(net, ImageFiles(paths, strict=True))
        return {"total": made.total, "products": made.products, "count": torch.tensor(made.count)}

    def valid(kept: dict[str, Tensor]) -> bool:
        width = kept["total"].numel()
        return kept["products"].shape == (width, width) and kept["count"].numel() == 1

    kept = reference.cached("fid", paths, str(net.settings), compute, valid)
    return Statistics(kept["total"], kept["products"], int(kept["count"]))


def few(count: int, width: int) -> str:
    """What to know of a FID over few images, and where its bias can be taken off."""
    note = f"FID over {count} images (fewer than {ENOUGH}) is biased upwards: compare only equal numbers of images"
    if count < least(width):
        return f"{note}; the metric fid-inf, which takes the bias off, needs {least(width)}"
    return f"{note}, or take the bias off with the metric fid-inf"


@register("metric", "fid")
class Fid(SetMetric):
    """Inception-V3 2048 against the setup's real images, scaled as torchmetrics does."""

    title, higher_is_better, form = "FID", False, ".2f"
    weights = (INCEPTION,)
    compares = True
    stand_in = "fid-tiny"
    resize: ClassVar[str] = ""

    @cached_property
    def measure(self) -> Measure:
        """Net and statistics of the real images; loaded on first use."""
        assert self.setup.reference is not None  # else it is not available
        net = inception_net(self.setup, self.resize)
        return Measure(net, reference_statistics(net, self.setup.reference))

    def prepare(self) -> None:
        """Load the net and the real images' statistics now, so that a clock may start afterwards."""
        self.measure  # noqa: B018

    def compute(self, images: Iterable[Image.Image]) -> SetScore:
        """FID of the images, their number, and a note for the reader."""
        found = features(self.measure.net, images)
        if len(found) and not bool(found.isfinite().all()):
            text = f"{self.title} is undefined for these images: their features are not finite"
            return SetScore(None, len(found), self.note("missing", text))
        return self.distance(found)

    def distance(self, found: Tensor) -> SetScore:
        """Of finite features [N, D]."""
        count = len(found)
        if count < 2:
            return SetScore(None, count, self.note("missing", f"FID needs at least 2 images; there are {count}"))
        note = self.note("warning", few(count, found.shape[1])) if count < ENOUGH else None
        return SetScore(fid(found, self.measure.reference), count, note)


@register("metric", "fid-clean")
class FidClean(Fid):
    """Scaled as clean-fid does."""

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

    @cached_property
    def measure(self) -> Measure:
        """Net and statistics of real scenes; loaded on first use."""
        net, kept = tiny_net()
        return Measure(net, Statistics(kept["total"], kept["products"], int(kept["count"])))
