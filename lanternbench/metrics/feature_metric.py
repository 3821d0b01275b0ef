"""A value of a whole set of images by a network's features of them, mostly compared with those of
the setup's real images.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from PIL import Image

from lanternbench.metrics import files, set_distances
from lanternbench.metrics.images import ImageFiles, images_below
from lanternbench.metrics.metric import ENOUGH, Extra, SetMetric, SetScore
from lanternbench.metrics.reference import is_statistics, other_sizes, read_moments
from lanternbench.metrics.set_distances import Moments
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from lanternbench.metrics.features import Net

INCEPTION_WIDTH = 2048


class FeatureMetric(SetMetric):
    """On Inception-V3's features, or the bundled net's; undefined for fewer than ``fewest``
    images.
    """

    compares = True
    weights = files.published("inception")
    resize: ClassVar[str] = ""  # the resize to 299 × 299 pixels: a key of ``features.RESIZES``
    layer: ClassVar[str] = str(INCEPTION_WIDTH)
    warning: ClassVar[str] = ""  # of a value over ``{few}``
    fewest = 2

    def values(self, generated: Tensor) -> tuple[float, ...]:
        """Return the value for features [N, D], then those of the further columns."""
        raise NotImplementedError

    @cached_property
    def net(self) -> Net:
        from lanternbench.metrics import features

        if self.embedded:
            return features.tiny_net()[0]
        return features.inception_net(self.setup, self.resize, self.layer)

    @cached_property
    def real_features(self) -> Tensor:
        """Features [M, D] of the real images.  Raises UserError when an image cannot be read."""
        from lanternbench.metrics.features import features

        return features(self.net, ImageFiles(images_below(self.setup.reference), strict=True))

    @property
    def real_count(self) -> int | None:
        """The number of real images; None if it is unknown, or there are none."""
        return len(self.real_features) if self.compares else None

    def prepare(self) -> None:
        self.net  # noqa: B018
        self.real_count  # noqa: B018

    def few_images(self, count: int) -> str:
        """Return the warning for a value of few generated or few real images; "" for none."""
        real = self.real_count
        few = [f"{count} images"] if count < ENOUGH else []
        if real is not None and real < ENOUGH:
            few.append(f"{real} real images")
        return self.warning.format(few=f"{' and '.join(few)} (fewer than {ENOUGH})") if few else ""

    def cautions(self, count: int, paths: list[Path]) -> list[str]:
        """Return what a reader of a value has to know; ``paths``: of the generated images."""
        texts = [self.few_images(count)]
        if self.compares:
            texts.append(other_sizes(paths, images_below(self.setup.reference)))
        return [text for text in texts if text]

    def undefined(self, generated: Tensor) -> str:
        """Return why features have no value; "" if they have one."""
        title = self.title or self.name
        if len(generated) < self.fewest:
            return f"{title} needs at least {self.fewest} images; there are {len(generated)}"
        if not bool(generated.isfinite().all()):
            return f"{title} is undefined for these images: their features are not finite"
        return ""

    def compute(self, images: Iterable[Image.Image]) -> SetScore:
        from lanternbench.metrics.features import features

        generated = features(self.net, images)
        count = len(generated)
        if reason := self.undefined(generated):
            return SetScore(None, count, self.note("missing", reason))
        value, *more = self.values(generated)
        paths = images.paths if isinstance(images, ImageFiles) else []
        cautions = self.cautions(count, paths)
        note = self.note("warning", "; ".join(cautions)) if cautions else None
        keys = [column.key for column in self.more]
        return SetScore(value, count, note, dict(zip(keys, more, strict=True)))


@register("metric", "fid")
class Fid(FeatureMetric):
    """FID: the Fréchet distance between the features of generated and of real images; equal to
    torchmetrics'.

    Inception-V3 2048 against the setup's real images, scaled as torchmetrics does.  The way to
    299×299 pixels moves FID by several points, so each way (see ``features``) is a metric of its
    own.
    """

    paper = "Heusel et al. 2017, arXiv 1706.08500"
    title = "FID"
    higher_is_better = False
    form = ".2f"
    stand_in = "fid-tiny"
    takes_statistics = True
    warning = "FID over {few} is biased upwards: compare only equal numbers of images"

    @cached_property
    def real(self) -> Moments:
        from lanternbench.metrics.features import tiny_net

        if self.embedded:
            return tiny_net()[1]
        path = self.setup.reference
        if path is not None and is_statistics(path):
            return read_moments(path, INCEPTION_WIDTH)
        return Moments.of(self.real_features)

    @property
    def real_count(self) -> int | None:
        count = self.real.count
        return count if self.compares else None

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (set_distances.fid(generated, self.real),)

    def few_images(self, count: int) -> str:
        text = super().few_images(count)
        least = set_distances.least_images(len(self.real.mean))
        if not text:
            return ""
        if count < least:
            return f"{text}; the metric fid-inf, which takes the bias off, needs {least}"
        return f"{text}, or take the bias off with the metric fid-inf"

    def cautions(self, count: int, paths: list[Path]) -> list[str]:
        texts = super().cautions(count, paths)
        if self.compares and is_statistics(self.setup.reference) and not self.resize:
            texts.append(
                "its images are scaled otherwise than those of a file of statistics: use fid-legacy "
                "for pytorch-fid's and guided-diffusion's, fid-clean for clean-fid's"
            )
        return texts


@register("metric", "fid-clean")
class FidClean(Fid):
    """FID on images scaled as clean-fid does."""

    paper = "Parmar et al. 2021, arXiv 2104.11222"
    title = "FID (clean-fid resize)"
    resize = "-clean"
    stand_in = ""
    extra = True


@register("metric", "fid-legacy")
class FidLegacy(Fid):
    """FID on images scaled as pytorch-fid does."""

    title = "FID (pytorch-fid resize)"
    resize = "-legacy"
    stand_in = ""
    extra = True


@register("metric", "fid-tiny")
class FidTiny(Fid):
    """FID on features of the bundled net, against held-out real scenes; its scale differs from
    FID's.
    """

    title = "FID-tiny"
    compares = False
    weights = (files.FID_TINY,)
    embedded = True
    stand_in = ""


@register("metric", "fid-inf")
class FidInf(Fid):
    """FID∞, the limit of FID for infinitely many images; it needs many.  Inception-V3 2048 against
    real images.
    """

    paper = "Chong and Forsyth 2019, arXiv 1911.07023"
    title = "FID∞"
    stand_in = "fid-inf-tiny"
    extra = True
    warning = ""  # the estimate has no bias

    @property
    def fewest(self) -> int:  # type: ignore[override]
        return set_distances.least_images(len(self.real.mean))

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (set_distances.fid_infinity(generated, self.real),)


@register("metric", "fid-inf-tiny")
class FidInfTiny(FidInf, FidTiny):
    """FID∞ on the bundled net, against held-out real scenes."""

    title = "FID∞-tiny"
    stand_in = ""


@register("metric", "inception-score")
class InceptionScore(FeatureMetric):
    """Inception Score: exp of the mean KL(p(y|x) ‖ p(y)), a mean over ten splits, by
    Inception-V3's 1008 logits.
    """

    paper = "Salimans et al. 2016, arXiv 1606.03498"
    title = "Inception Score"
    form = ".2f"
    compares = False
    layer = "logits_unbiased"
    warning = "the Inception Score over {few} is biased: compare only equal numbers"
    fewest = 10  # as many as it has splits

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (set_distances.inception_score(generated),)


@register("metric", "precision-recall")
class PrecisionRecall(FeatureMetric):
    """Precision and recall: the share of generated images inside the real manifold, and
    conversely; two columns.
    """

    paper = "Kynkäänniemi et al. 2019, arXiv 1904.06991"
    title = "Precision"
    form = ".3f"
    key = "precision"
    stand_in = "precision-recall-tiny"
    more = (Extra("recall", "Recall", form=".3f"),)
    warning = "precision and recall over {few} compare only at equal numbers"

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return set_distances.precision_recall(self.real_features, generated)


@register("metric", "precision-recall-tiny")
class PrecisionRecallTiny(PrecisionRecall):
    """Precision and recall on features of the bundled net."""

    title = "Precision-tiny"
    key = "precision-tiny"
    extra = True
    weights = (files.FID_TINY,)
    embedded = True
    stand_in = ""
    more = (Extra("recall-tiny", "Recall-tiny", form=".3f"),)


@register("metric", "cmmd")
class Cmmd(FeatureMetric):
    """CMMD: the squared maximum mean discrepancy of unit CLIP embeddings, by the paper's unbiased
    estimator.
    """

    paper = "Jayasumana et al. 2024, arXiv 2401.09603"
    title = "CMMD"
    form = ".3f"
    higher_is_better = False
    weights = files.published("clip-l14-336")
    extra = True
    unbiased: ClassVar[bool] = True

    @cached_property
    def net(self) -> Net:
        from lanternbench.metrics.features import clip_net

        return clip_net(self.setup)

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (set_distances.mmd2(self.real_features, generated, self.unbiased),)


@register("metric", "cmmd-biased")
class CmmdBiased(Cmmd):
    """CMMD by the estimator of its public code: too high by about a constant over the number of
    images.
    """

    title = "CMMD (biased estimate)"
    unbiased = False
