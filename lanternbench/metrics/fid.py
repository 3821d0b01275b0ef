"""FID through torchmetrics: the distance between a set of images and stored statistics of real ones.

"fid-tiny" compares features of the embedded net with real scenes; "fid" compares Inception-V3's 2048 features with a
folder of real images.  The two are on different scales and never share a column.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchmetrics.image.fid import FrechetInceptionDistance

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.images import read_image

BATCH = 64
ENOUGH = 5000  # samples from which on FID values are usually quoted
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
Prepare = Callable[[Image.Image], Tensor]  # RGB image -> uint8 [3, H, W]


@dataclass(frozen=True)
class Statistics:
    """What FID keeps of a set of images; float64 sums, so that sets can be added up and continued."""

    total: Tensor  # [D] sum of the features
    products: Tensor  # [D, D] sum of their outer products
    count: int


@dataclass(frozen=True)
class SetScore:
    """A value of a whole set of images, lower is better; ``value`` is None when it could not be computed."""

    value: float | None
    count: int
    note: str | None


@dataclass(frozen=True)
class Measure:
    """What one FID needs: torchmetrics' metric with its net, how images enter it, and the real images' statistics."""

    metric: FrechetInceptionDistance
    prepare: Prepare
    reference: Statistics


def update(metric: FrechetInceptionDistance, prepare: Prepare, images: Iterable[Image.Image], real: bool) -> None:
    """Add ``images`` to the metric; neighbours of one size go through the net together."""
    for batch in _batches(prepare(image) for image in images):
        metric.update(batch, real=real)


def _batches(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
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
    def reference(self) -> Statistics:
        """Statistics of the real images."""
        return self._load().reference

    def fid(self, images: Iterable[Image.Image]) -> SetScore:
        """FID of the images, their number, and a note for the reader; ``value`` is None when files are missing."""
        if reason := self.available():
            return SetScore(None, 0, reason)
        return distance(self._load(), images)


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


def _inception(path: Path) -> FrechetInceptionDistance:
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=False)  # refuses a pickle that runs code
        return FrechetInceptionDistance(feature=2048, feature_extractor_weights_path=str(path))
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(
            f"{path} is not the Inception-V3 file of FID ({type(error).__name__}); download it again."
        ) from None


def reference_images(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder.is_dir() else []


def reference_statistics(metric: FrechetInceptionDistance, folder: Path) -> Statistics:
    """Statistics of a folder of real images, computed once per content and kept in the cache.

    Raises UserError when an image cannot be read.
    """
    paths = reference_images(folder)
    listing = [f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in paths]
    content = hashlib.sha256("\n".join([str(folder.resolve()), *listing]).encode("utf-8", "replace")).hexdigest()
    kept = files.cache_dir() / f"fid-{content[:16]}.safetensors"
    if kept.is_file():
        found = load_file(kept)
        return Statistics(found["total"], found["products"], int(found["count"]))
    result = statistics(metric, plain_image, map(read_image, paths))
    save_statistics(result, kept)
    return result


def save_statistics(value: Statistics, path: Path) -> None:
    """Write statistics as safetensors, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    save_file({"total": value.total, "products": value.products, "count": torch.tensor(value.count)}, part)
    part.replace(path)


def fid_score(reference: Path | None = None, path: Path | None = None) -> Fid:
    """ "fid": Inception-V3 2048, against the real images in folder ``reference``; weights from ``path`` or found."""
    weights = files.INCEPTION

    def missing() -> str | None:
        if not (path and path.is_file()) and (reason := weights.missing()):
            return reason
        if reference is None or len(reference_images(reference)) < 2:
            where = f"{reference} holds fewer than two images" if reference else "no folder of real images was given"
            return f"FID needs real images to compare with and {where}; pass one with --fid-reference DIR"
        return None

    def load() -> Measure:
        found = path or weights.find()
        if found is None or reference is None:
            raise UserError(f"FID cannot be computed: {missing()}.")
        metric = _inception(found)
        return Measure(metric, plain_image, reference_statistics(metric, reference))

    return Fid("fid", (weights.file, "a folder of real images"), missing, load)
