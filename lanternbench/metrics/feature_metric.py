"""Metrics by the features of a set of images, most of them beside those of the setup's real images."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from PIL import Image

from lanternbench.metrics import reference
from lanternbench.metrics.features import ImageFiles, Net, features
from lanternbench.metrics.metric import SetMetric, SetScore

if TYPE_CHECKING:
    from torch import Tensor


class FeatureMetric(SetMetric):
    compares = True

    def load(self) -> Net:
        """The feature net.  Called once, when it is first needed."""
        raise NotImplementedError

    def compare(self, made: Tensor) -> SetScore:
        """The value of two images or more, by their features [N, D] beside ``real`` [M, D]."""
        raise NotImplementedError

    @cached_property
    def net(self) -> Net:
        return self.load()

    @cached_property
    def real(self) -> Tensor:
        """Features of the real images [M, D]; loaded on first use."""
        assert self.setup.reference is not None  # else it is not available
        return features(self.net, ImageFiles(reference.images_in(self.setup.reference), strict=True))

    def prepare(self) -> None:
        """Load the net and the real images' features now, so that a clock may start afterwards."""
        self.net  # noqa: B018
        if self.compares:
            self.real  # noqa: B018

    def compute(self, images: Iterable[Image.Image]) -> SetScore:
        """No value for fewer than two images."""
        made = features(self.net, images)
        if len(made) < 2:
            few = f"{self.title or self.name} needs at least 2 images; there are {len(made)}"
            return SetScore(None, len(made), self.note("missing", few))
        return self.compare(made)
