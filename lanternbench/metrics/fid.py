"""FID: the Fréchet distance between a set of images and stored statistics of real ones; equal to torchmetrics'.

"fid-tiny" compares features of the embedded net with real scenes; "fid" compares Inception-V3's 2048 features with a
folder of real images.  The two are on different scales and never share a column.  Inception sees 299×299 pixels, and
the way there moves FID by several points, so each way is a metric of its own:

- "fid": as torchmetrics does by default, bilinear with anti-aliasing, without rounding;
- "fid-clean": as clean-fid does (Parmar et al., CVPR 2022): Pillow's bicubic on each colour as float; rounded to 8 bits
  here, as torchmetrics' net takes no other;
- "fid-legacy": as pytorch-fid and torch-fidelity do: TensorFlow 1's bilinear without anti-aliasing.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchmetrics.image.fid import NoTrainInceptionV3

from lanternbench.errors import UserError
from lanternbench.metrics import files, reference
from lanternbench.metrics.features import ImageFiles, Net, features
from lanternbench.metrics.setup import Setup, seeded

ENOUGH = 5000  # samples from which on FID values are usually quoted
SIDE = 299  # pixels that Inception sees


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
    """What one FID needs: the feature net, and the real images' statistics."""

    net: Net
    reference: Statistics


def statistics(net: Net, images: Iterable[Image.Image]) -> Statistics:
    """The statistics of ``images``, of which there must be one or more."""
    found = features(net, images)
    return Statistics(found.sum(0), found.T @ found, len(found))


def moments(stats: Statistics) -> tuple[Tensor, Tensor]:
    """Mean [D] and unbiased covariance [D, D]."""
    mean = stats.total / stats.count
    return mean, (stats.products - stats.count * torch.outer(mean, mean)) / (stats.count - 1)


def frechet(mean: Tensor, cov: Tensor, other_mean: Tensor, other_root: Tensor) -> float:
    """|μ₁ − μ₂|² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁Σ₂)^½ of two Gaussians, the second given by the root of its covariance.

    (Σ₁Σ₂)^½ has the trace of (Σ₂^½ Σ₁ Σ₂^½)^½, which is symmetric: its eigenvalues are real and quickly found.
    """
    middle = torch.linalg.eigvalsh(other_root @ cov @ other_root).clamp(min=0).sqrt().sum()
    return float((mean - other_mean).square().sum() + cov.trace() + other_root.square().sum() - 2 * middle)


def root(cov: Tensor) -> Tensor:
    """The symmetric square root of a covariance [D, D]."""
    values, vectors = torch.linalg.eigh(cov)
    return vectors * values.clamp(min=0).sqrt() @ vectors.T


def distance(measure: Measure, images: Iterable[Image.Image]) -> SetScore:
    """FID of ``images`` against the reference, from unbiased covariances in float64."""
    found = features(measure.net, images)
    count = len(found)
    if count < 2:
        return SetScore(None, count, f"FID needs at least 2 images; there are {count}")
    if not bool(found.isfinite().all()):
        return SetScore(None, count, "FID is undefined for these images: their features are not finite")
    mean, cov = moments(measure.reference)
    value = frechet(found.mean(0), torch.cov(found.T), mean, root(cov))
    return SetScore(max(value, 0.0), count, few(count, found.shape[1]) if count < ENOUGH else None)


def few(count: int, width: int) -> str:
    """What to know of a FID over few images, and where its bias can be taken off."""
    from lanternbench.metrics.fid_infinity import least

    note = f"FID over {count} images (fewer than {ENOUGH}) is biased upwards: compare only equal numbers of images"
    if count < least(width):
        return f"{note}; the metric fid-inf, which takes the bias off, needs {least(width)}"
    return f"{note}, or take the bias off with the metric fid-inf"


class Fid:
    """A set scorer; the net and the reference are loaded on first use."""

    def __init__(
        self,
        name: str,
        needs: tuple[str, ...],
        missing: Callable[[], str | None],
        load: Callable[[], Measure],
        compares: bool = True,
    ):
        self.name, self.needs, self.compares, self._missing, self._load = name, needs, compares, missing, cache(load)

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""
        return self._missing()

    @property
    def measure(self) -> Measure:
        """Net, preparation and statistics of the real images; loaded on first use."""
        return self._load()

    def prepare(self) -> None:
        """Load the net and the real images' statistics now, so that a clock may start afterwards."""
        self._load()

    def score_set(self, images: Iterable[Image.Image]) -> SetScore:
        """FID of the images, their number, and a note for the reader; ``value`` is None when files are missing."""
        if reason := self.available():
            return SetScore(None, 0, reason)
        return distance(self.measure, images)


def tiny_image(image: Image.Image) -> Tensor:
    """RGB image of any size -> uint8 [3, 64, 64]."""
    from lanternbench.models.tiny import clip as clip_tiny

    return clip_tiny.to_uint8([image])[0]


def plain_image(image: Image.Image) -> Tensor:
    """RGB image -> uint8 [3, H, W]; Inception scales by itself."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def clean_image(image: Image.Image) -> Tensor:
    """RGB image of any size -> uint8 [3, 299, 299] as clean-fid scales: Pillow's bicubic on each colour as float."""
    planes = [np.asarray(plane, np.float32) for plane in image.convert("RGB").split()]
    scaled = [Image.fromarray(plane).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for plane in planes]
    return torch.from_numpy((np.stack([np.asarray(s) for s in scaled]).clip(0, 255) + 0.5).astype(np.uint8))


def tiny_net() -> tuple[Net, dict[str, Tensor]]:
    """The embedded net, and the statistics of real scenes beside it."""
    from lanternbench.models.tiny import feature_net as fid_tiny

    net, kept = fid_tiny.load(files.embedded("fid.safetensors"))
    return Net(net, tiny_image), kept


def fid_tiny_score(setup: Setup | None = None) -> Fid:
    """ "fid-tiny": features of the embedded net, against held-out real scenes."""

    def load() -> Measure:
        net, kept = tiny_net()
        return Measure(net, Statistics(kept["total"], kept["products"], int(kept["count"])))

    file = "fid.safetensors"
    return Fid("fid-tiny", (file,), lambda: files.embedded_missing(file, "FID net"), load, compares=False)


class _Untrained(NoTrainInceptionV3):
    """Inception-V3 whose weights are random (He et al., 2015), whatever its file says."""

    def load_state_dict(self, *_: object, **__: object) -> None:  # type: ignore[override]
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)


def inception(path: Path | None, features: str = "2048", antialias: bool = True) -> NoTrainInceptionV3:
    """FID's Inception-V3 from its file; with random weights without one.

    ``features``: "2048", or "logits_unbiased".  Raises UserError when the file is another, is damaged, or holds code.
    """
    what = ("inception-v3-compat", [features])
    if path is None:
        with tempfile.NamedTemporaryFile(suffix=".pth") as empty, seeded():  # the class wants a file
            torch.save({}, empty.name)
            return _Untrained(*what, empty.name, antialias=antialias)
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=False)  # refuses a pickle that runs code
        return NoTrainInceptionV3(*what, str(path), antialias=antialias)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(
            f"{path} is not the Inception-V3 file of FID ({type(error).__name__}); download it again."
        ) from None


RESIZES = {"": (plain_image, True), "-clean": (clean_image, True), "-legacy": (plain_image, False)}


def inception_net(setup: Setup, path: Path | None = None, resize: str = "", features: str = "2048") -> Net:
    """Inception-V3 on the setup's device, with one of ``RESIZES``; weights from ``path`` or found."""
    prepare, antialias = RESIZES[resize]
    found = setup.find(files.INCEPTION, path)
    settings = f"inception {features}{resize} {files.stamp(found) if found else 'random'}"
    return Net(inception(found, features, antialias).to(setup.device), prepare, settings)


def reference_statistics(net: Net, folder: Path) -> Statistics:
    """Statistics of a folder of real images, computed once per content and settings of the net, and kept.

    Raises UserError when an image cannot be read.
    """
    paths = reference.images_in(folder)

    def make() -> dict[str, Tensor]:
        made = statistics(net, ImageFiles(paths, strict=True))
        return {"total": made.total, "products": made.products, "count": torch.tensor(made.count)}

    kept = reference.kept("fid", paths, str(net.settings), make)
    return Statistics(kept["total"], kept["products"], int(kept["count"]))


def fid_score(setup: Setup | None = None, path: Path | None = None, resize: str = "") -> Fid:
    """ "fid", "fid-clean" or "fid-legacy": Inception-V3 2048 against real images; weights from ``path`` or found."""
    setup = setup or Setup()

    def missing() -> str | None:
        return setup.missing({files.INCEPTION: path}) or reference.missing("FID", setup.reference)

    def load() -> Measure:
        assert setup.reference is not None  # else it is not available
        net = inception_net(setup, path, resize)
        return Measure(net, reference_statistics(net, setup.reference))

    return Fid(f"fid{resize}{setup.mark}", (files.INCEPTION.file, "a folder of real images"), missing, load)
