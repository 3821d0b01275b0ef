"""FID through torchmetrics: the distance between a set of images and stored statistics of real ones.

"fid-tiny" compares features of the embedded net with real scenes; "fid" compares Inception-V3's 2048 features with a
folder of real images.  The two are on different scales and never share a column.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchmetrics.image.fid import FrechetInceptionDistance

from lanternbench.errors import UserError
from lanternbench.metrics import files, reference

BATCH = 64
ENOUGH = 5000  # samples from which on FID values are usually quoted
Prepare = Callable[[Image.Image], Tensor]  # RGB image -> uint8 [3, H, W]


@dataclass(frozen=True)
class Statistics:
    """What FID keeps of a set of images; float64 sums, so that sets can be added up and continued."""

    total: Tensor  # [D] sum of the features
    products: Tensor  # [D, D] sum of their outer products
    count: int


@dataclass(frozen=True)
class SetScore:
    """A value of a whole set of images; ``value`` is None when it could not be computed."""

    value: float | None
    count: int
    note: str | None
    more: dict[str, float | None] = field(default_factory=dict)  # further columns that come with it


@dataclass(frozen=True)
class Measure:
    """What one FID needs: torchmetrics' metric with its net, how images enter it, and the real images' statistics.

    ``metric.inception`` is the net: uint8 [B, 3, H, W] -> features [B, D].
    """

    metric: FrechetInceptionDistance
    prepare: Prepare
    reference: Statistics


def update(metric: FrechetInceptionDistance, prepare: Prepare, images: Iterable[Image.Image], real: bool) -> None:
    """Add ``images`` to the metric; neighbours of one size go through the net together."""
    for batch in batches(prepare(image) for image in images):
        metric.update(batch, real=real)


def batches(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Stacked blocks [B, 3, H, W] of neighbours of one size."""
    for _, run in groupby(tensors, key=lambda t: t.shape):
        block: list[Tensor] = []
        for tensor in run:
            block.append(tensor)
            if len(block) == BATCH:
                yield torch.stack(block)
                block = []
        if block:
            yield torch.stack(block)


def statistics(metric: FrechetInceptionDistance, prepare: Prepare, images: Iterable[Image.Image]) -> Statistics:
    """The statistics of ``images``; the metric is left empty."""
    metric.reset()
    update(metric, prepare, images, real=True)
    found = Statistics(
        metric.real_features_sum.clone(),
        metric.real_features_cov_sum.clone(),
        int(metric.real_features_num_samples),
    )
    metric.reset()
    return found


@torch.inference_mode()
def features(metric: FrechetInceptionDistance, prepare: Prepare, images: Iterable[Image.Image]) -> Tensor:
    """Features of the metric's net, float64 [N, D]; [0, 0] for no images."""
    found = [metric.inception(batch).double() for batch in batches(prepare(image) for image in images)]
    return torch.cat(found) if found else torch.zeros(0, 0, dtype=torch.float64)


def distance(measure: Measure, images: Iterable[Image.Image]) -> SetScore:
    """FID of ``images`` against the reference (torchmetrics, unbiased covariances, float64)."""
    metric = measure.metric
    metric.reset()
    update(metric, measure.prepare, images, real=False)
    count = int(metric.fake_features_num_samples)
    if count < 2:
        return SetScore(None, count, f"FID needs at least 2 images; there are {count}")
    # what update(real=True) would have left: the reference set, without its images
    metric.real_features_sum, metric.real_features_cov_sum = measure.reference.total, measure.reference.products
    metric.real_features_num_samples = torch.tensor(measure.reference.count)
    value = float(metric.compute())
    metric.reset()
    if not np.isfinite(value):
        return SetScore(None, count, "FID is undefined for these images: their features are not finite")
    note = f"FID over {count} images (fewer than {ENOUGH}) is biased upwards: compare only equal numbers of images"
    return SetScore(max(value, 0.0), count, note if count < ENOUGH else None)


class Fid:
    """A set scorer; the net and the reference are loaded on first use."""

    def __init__(
        self, name: str, needs: tuple[str, ...], missing: Callable[[], str | None], load: Callable[[], Measure]
    ):
        self.name, self.needs, self._missing, self._load = name, needs, missing, cache(load)

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""
        return self._missing()

    @property
    def measure(self) -> Measure:
        """Net, preparation and statistics of the real images; loaded on first use."""
        return self._load()

    def score_set(self, images: Iterable[Image.Image]) -> SetScore:
        """FID of the images, their number, and a note for the reader; ``value`` is None when files are missing."""
        if reason := self.available():
            return SetScore(None, 0, reason)
        return distance(self.measure, images)


def tiny_image(image: Image.Image) -> Tensor:
    """RGB image of any size -> uint8 [3, 64, 64]."""
    from lanternbench.models import clip_tiny

    return clip_tiny.to_uint8([image])[0]


def plain_image(image: Image.Image) -> Tensor:
    """RGB image -> uint8 [3, H, W]; Inception scales by itself."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def _tiny() -> Measure:
    from lanternbench.models import fid_tiny

    net, kept = fid_tiny.load(files.embedded("fid.safetensors"))
    reference = Statistics(kept["total"], kept["products"], int(kept["count"]))
    return Measure(FrechetInceptionDistance(feature=net), tiny_image, reference)


def fid_tiny_score() -> Fid:
    """ "fid-tiny": features of the embedded net, against held-out real scenes."""
    return Fid(
        "fid-tiny",
        ("fid.safetensors",),
        lambda: files.embedded_missing("fid.safetensors", "FID net"),
        _tiny,
    )


def inception(path: Path) -> FrechetInceptionDistance:
    """FID's Inception-V3 from its file.  Raises UserError when the file is another, is damaged, or holds code."""
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=False)  # refuses a pickle that runs code
        return FrechetInceptionDistance(feature=2048, feature_extractor_weights_path=str(path))
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(
            f"{path} is not the Inception-V3 file of FID ({type(error).__name__}); download it again."
        ) from None


def reference_statistics(metric: FrechetInceptionDistance, folder: Path, settings: str = "inception") -> Statistics:
    """Statistics of a folder of real images, computed once per content and ``settings`` (which net) and kept.

    Raises UserError when an image cannot be read.
    """

    def make(images: Iterable[Image.Image]) -> dict[str, Tensor]:
        made = statistics(metric, plain_image, images)
        return {"total": made.total, "products": made.products, "count": torch.tensor(made.count)}

    kept = reference.kept("fid", folder, settings, make)
    return Statistics(kept["total"], kept["products"], int(kept["count"]))


def fid_score(real: Path | None = None, path: Path | None = None) -> Fid:
    """ "fid": Inception-V3 2048, against the real images in folder ``real``; weights from ``path`` or found."""
    weights = files.INCEPTION

    def missing() -> str | None:
        if not (path and path.is_file()) and (reason := weights.missing()):
            return reason
        return reference.missing("FID", real)

    def load() -> Measure:
        found = path or weights.find()
        if found is None or real is None:
            raise UserError(f"FID cannot be computed: {missing()}.")
        metric = inception(found)
        return Measure(metric, plain_image, reference_statistics(metric, real))

    return Fid("fid", (weights.file, "a folder of real images"), missing, load)
