"""A value of a whole set of images by a network's features of them, most beside those of the setup's real images."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from PIL import Image

from lanternbench.metrics import distances, files, reference
from lanternbench.metrics.distances import Statistics
from lanternbench.metrics.features import ImageFiles, Net, features
from lanternbench.metrics.metric import ENOUGH, Extra, SetMetric, SetScore
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor


class FeatureMetric(SetMetric):
    """On Inception-V3's features, or the embedded net's; undefined for fewer than ``fewest`` images."""

    compares = True
    weights = files.published("inception")
    resize: ClassVar[str] = ""  # the resize to 299 × 299 pixels: a key of ``nets.RESIZES``
    layer: ClassVar[str] = "2048"
    warning: ClassVar[str] = ""  # of a value of ``{few}`` images
    fewest = 2

    def load(self) -> Net:
        """The feature net.  Called once, when it is first needed."""
        from lanternbench.metrics import nets

        return nets.tiny_net()[0] if self.embedded else nets.inception_net(self.setup, self.resize, self.layer)

    def values(self, generated: Tensor) -> tuple[float, ...]:
        """The value for features [N, D], then those of the further columns."""
        raise NotImplementedError

    def caution(self, generated: Tensor) -> str:
        """The warning for a value of fewer than ``ENOUGH`` images; "" for none."""
        return self.warning.format(few=f"{len(generated)} images (fewer than {ENOUGH})")

    @cached_property
    def net(self) -> Net:
        return self.load()

    @cached_property
    def real(self) -> Any:
        """Features [M, D] of the real images, or their statistics; loaded on first use."""
        return self.real_features()

    def real_features(self) -> Tensor:
        """Features [M, D] of the real images.  Raises UserError when one cannot be read."""
        return features(self.net, ImageFiles(reference.images_in(self.setup.reference), strict=True))

    def prepare(self) -> None:
        self.net  # noqa: B018
        if self.compares:
            self.real  # noqa: B018

    def compute(self, images: Iterable[Image.Image]) -> SetScore:
        generated = features(self.net, images)
        count, title = len(generated), self.title or self.name
        problem = None
        if count < self.fewest:
            problem = f"{title} needs at least {self.fewest} images; there are {count}"
        elif not bool(generated.isfinite().all()):
            problem = f"{title} is undefined for these images: their features are not finite"
        if problem:
            return SetScore(None, count, self.note("missing", problem))
        value, *more = self.values(generated)
        text = self.caution(generated) if count < ENOUGH else ""
        note = self.note("warning", text) if text else None
        return SetScore(value, count, note, dict(zip((column.key for column in self.more), more, strict=True)))


class Tiny(FeatureMetric):
    """On the features of the embedded net."""

    weights, embedded, stand_in = (files.FID_TINY,), True, ""


@register("metric", "fid")
class Fid(FeatureMetric):
    """FID: the Fréchet distance between the features of generated and of real images; equal to torchmetrics'.

    Inception-V3 2048 against the setup's real images, scaled as torchmetrics does.  The way to 299×299 pixels moves FID
    by several points, so each way (see ``nets``) is a metric of its own.
    """

    paper = "Heusel et al. 2017, arXiv 1706.08500"
    title, higher_is_better, form, stand_in = "FID", False, ".2f", "fid-tiny"
    warning = "FID over {few} is biased upwards: compare only equal numbers of images"

    @cached_property
    def real(self) -> Statistics:
        from lanternbench.metrics import nets

        return nets.tiny_net()[1] if self.embedded else Statistics.of(self.real_features())

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (distances.fid(generated, self.real),)

    def caution(self, generated: Tensor) -> str:
        least = distances.least_images(generated.shape[1])
        if len(generated) < least:
            return f"{super().caution(generated)}; the metric fid-inf, which takes the bias off, needs {least}"
        return f"{super().caution(generated)}, or take the bias off with the metric fid-inf"


@register("metric", "fid-clean")
class FidClean(Fid):
    """FID on images scaled as clean-fid does."""

    paper = "Parmar et al. 2021, arXiv 2104.11222"
    title, resize, stand_in, extra = "FID (clean-fid resize)", "-clean", "", True


@register("metric", "fid-legacy")
class FidLegacy(Fid):
    """FID on images scaled as pytorch-fid does."""

    title, resize, stand_in, extra = "FID (pytorch-fid resize)", "-legacy", "", True


@register("metric", "fid-tiny")
class FidTiny(Tiny, Fid):
    """FID on features of the embedded net, against held-out real scenes; its scale is another than FID's."""

    title, compares = "FID-tiny", False


@register("metric", "fid-inf")
class FidInf(Fid):
    """FID∞, the limit of FID for infinitely many images; it needs many.  Inception-V3 2048 against real images."""

    paper = "Chong and Forsyth 2019, arXiv 1911.07023"
    title, stand_in, extra = "FID∞", "fid-inf-tiny", True

    @property
    def fewest(self) -> int:  # type: ignore[override]
        return distances.least_images(len(self.real.total))

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (distances.fid_infinity(generated, self.real),)

    def caution(self, generated: Tensor) -> str:
        """None, as the estimate has no bias."""
        return ""


@register("metric", "fid-inf-tiny")
class FidInfTiny(FidInf, FidTiny):
    """FID∞ on the embedded net, against held-out real scenes."""

    title, stand_in, extra = "FID∞-tiny", "", True


@register("metric", "inception-score")
class InceptionScore(FeatureMetric):
    """Inception Score: exp of the mean KL(p(y|x) ‖ p(y)), a mean over ten splits, by Inception-V3's 1008 logits."""

    paper = "Salimans et al. 2016, arXiv 1606.03498"
    title, form, compares, layer = "Inception Score", ".2f", False, "logits_unbiased"
    warning = "the Inception Score over {few} is biased: compare only equal numbers"
    fewest = distances.SPLITS

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (distances.inception_score(generated),)


@register("metric", "precision-recall")
class PrecisionRecall(FeatureMetric):
    """Precision and recall: the share of generated images inside the real manifold, and conversely; two columns."""

    paper = "Kynkäänniemi et al. 2019, arXiv 1904.06991"
    title, form, key, stand_in = "Precision", ".3f", "precision", "precision-recall-tiny"
    more = (Extra("recall", "Recall", form=".3f"),)
    warning = "precision and recall over {few} compare only at equal numbers"

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return distances.precision_recall(self.real, generated)


@register("metric", "precision-recall-tiny")
class PrecisionRecallTiny(Tiny, PrecisionRecall):
    """Precision and recall on features of the embedded net."""

    title, key, extra = "Precision-tiny", "precision-tiny", True
    more = (Extra("recall-tiny", "Recall-tiny", form=".3f"),)


@register("metric", "cmmd")
class Cmmd(FeatureMetric):
    """CMMD: the squared maximum mean discrepancy of unit CLIP embeddings, by the paper's unbiased estimator."""

    paper = "Jayasumana et al. 2024, arXiv 2401.09603"
    title, form, higher_is_better = "CMMD", ".3f", False
    weights, extra = files.published("clip-l14-336"), True
    unbiased: ClassVar[bool] = True

    def load(self) -> Net:
        from lanternbench.metrics import nets

        return nets.clip_net(self.setup)

    def values(self, generated: Tensor) -> tuple[float, ...]:
        return (distances.mmd2(self.real, generated, self.unbiased),)


@register("metric", "cmmd-biased")
class CmmdBiased(Cmmd):
    """CMMD by the estimator of its public code: too high by about a constant over the number of images."""

    title, unbiased = "CMMD (biased estimate)", False
