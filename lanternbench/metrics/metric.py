"""Base classes of metrics: a value per image (``ImageMetric``) or per set of images
(``SetMetric``), and its column.

All that tables, commands and scoring need to know of a metric are attributes of its registered
class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.files import Weights, missing
from lanternbench.metrics.images import images_below
from lanternbench.metrics.reference import is_statistics
from lanternbench.notes import Note
from lanternbench.registry import plugin_errors

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 32  # images that go through a network together at most
ENOUGH = 5000  # images from which on values of whole sets are usually quoted
RANDOM = "-random"  # ends the name of a metric that a network without trained weights computed
# images, captions -> values [B]
ScoreFunction = Callable[[list[Image.Image], list[str]], "Tensor"]


class Column(NamedTuple):
    key: str
    title: str
    higher_is_better: bool | None = True  # None: neither
    form: str = ".4f"  # format specification of the value
    metric: str = ""  # the registered name
    embedded: bool = False  # computed by the package's small networks
    random: bool = False  # computed by networks with random weights: noise
    over_categories: bool = False  # its mean is that of the means of the prompts' categories


Extra = Column  # an additional column of a metric, with its first four fields set


class Setup(NamedTuple):
    """The settings that all scorers of one scoring share."""

    reference: Path | None = None  # a folder of real images, or a file of their statistics
    device: str = "cpu"
    # networks at full size, without any file: their times are real, their values mean nothing
    random: bool = False
    in_pairs: bool = False  # whether each image comes with the baseline's

    def find(self, weights: Weights) -> Path | None:
        """Return the file to read, as ``path``; None for random weights."""
        return None if self.random else self.path(weights)

    def path(self, weights: Weights) -> Path:
        """Return the file.  Raises UserError if it is missing."""
        if path := weights.find():
            return path
        raise UserError(f"{weights.title} cannot score: {missing(weights)}.")


@dataclass(frozen=True)
class SetScore:
    """A value of a whole set of images; ``value`` is None when it could not be computed."""

    value: float | None
    count: int
    note: Note | None = None
    # further columns that come with it
    more: Mapping[str, float | None] = field(default_factory=dict)


class Metric:
    """Base of all metrics.  A subclass sets the attributes that differ from these."""

    title: ClassVar[str] = ""  # of the column; the metric's name if it is empty
    key: ClassVar[str] = ""  # of the column in results; the metric's name if it is empty
    paper: ClassVar[str] = ""  # authors, year, arXiv number
    higher_is_better: ClassVar[bool | None] = True
    form: ClassVar[str] = ".4f"
    more: ClassVar[tuple[Extra, ...]] = ()  # further columns
    weights: ClassVar[tuple[Weights, ...]] = ()
    embedded: ClassVar[bool] = False  # computed by the package's small networks
    stand_in: ClassVar[str] = ""  # the bundled metric that this name means on the tiny target
    compares: ClassVar[bool] = False  # with the real images of the setup
    takes_statistics: ClassVar[bool] = False  # also with statistics of them alone
    # its mean is that of the means of the prompts' categories
    over_categories: ClassVar[bool] = False
    extra: ClassVar[bool] = False  # computed only when it is asked for by name

    def __init__(self, name: str, setup: Setup):
        self.setup = setup
        self.mark = RANDOM if setup.random else ""
        self.name = f"{self.key or name}{self.mark}"  # the key of its column

    @classmethod
    def columns(cls, name: str, random: bool = False) -> list[Column]:
        """Return the columns of the metric registered as ``name``, with trained or random weights."""
        mark = RANDOM if random else ""
        first = Column(cls.key or name, cls.title or name, cls.higher_is_better, cls.form)
        columns = []
        for own in (first, *cls.more):
            column = own._replace(
                key=own.key + mark,
                title=own.title + mark,
                metric=name,
                embedded=cls.embedded,
                random=random,
                over_categories=cls.over_categories,
            )
            columns.append(column)
        return columns

    @cached_property
    def weights_digest(self) -> str:
        """A digest of the files that values depend on; "" for random weights, without files, or
        if one is missing.
        """
        if self.setup.random:
            return ""
        return files.content([weights.find() for weights in self.weights])

    def available(self) -> Note | None:
        """None, or a note on what is missing, with the command that fetches it."""
        trained = not self.setup.random
        reason = missing(*(weights for weights in self.weights if trained or weights.is_data))
        if reason is None and self.compares:
            reason = self.lacks_real_images()
        return self.note("missing", reason) if reason else None

    def lacks_real_images(self) -> str | None:
        """Return why there is nothing to compare with; None if there is something."""
        reference = self.setup.reference
        if is_statistics(reference):
            if self.takes_statistics:
                return None
            reason = f"{reference} holds statistics, not images"
        elif reference is None:
            reason = "no folder of them was given"
        elif len(images_below(reference)) < 2:
            reason = f"{reference} holds fewer than two images"
        else:
            return None
        title = self.title or self.name
        advice = "give one: lanternbench score --reference FOLDER"
        return f"{title} compares with real images and {reason}; {advice}"

    def note(self, kind: Literal["missing", "warning", "info"], text: str) -> Note:
        return Note(kind, self.name, text)

    def prepare(self) -> None:
        """Load everything in advance, before a clock starts."""


class ImageMetric(Metric):
    """A metric with a value per image; ``captions``: whether the value depends on the caption."""

    captions: ClassVar[bool] = True
    # captions -> ids [B, length], padded with 0; set by ``load`` if the length is limited
    tokenize: Callable[[list[str]], Tensor] | None = None

    def __init__(self, name: str, setup: Setup):
        super().__init__(name, setup)
        self.cut_captions: set[str] = set()

    def load(self) -> ScoreFunction:
        """Return the function that scores a batch.  Called once, on first use."""
        raise NotImplementedError

    @cached_property
    def score_batch(self) -> ScoreFunction:
        return self.load()

    def prepare(self) -> None:
        with plugin_errors(self):
            self.score_batch  # noqa: B018

    def notes(self) -> list[Note]:
        """Return notes on the images scored so far."""
        if not self.cut_captions:
            return []
        text = (
            f"{len(self.cut_captions):,} captions are longer than {self.title or self.name} reads: "
            "it scored their beginning"
        )
        return [self.note("warning", text)]

    def score(self, images: list[Image.Image], captions: list[str]) -> list[float | None]:
        """Return a value per image; None for each when files are missing, or if it is undefined."""
        if len(images) != len(captions):
            raise ValueError(f"{len(images)} images but {len(captions)} captions")
        if not images or self.available():
            return [None] * len(images)
        import torch

        values: list[float] = []
        with plugin_errors(self), torch.inference_mode():
            for start in range(0, len(images), BATCH):
                batch = slice(start, start + BATCH)
                values += self.score_batch(images[batch], captions[batch]).tolist()
        if self.tokenize:
            self.cut_captions.update(c for c in captions if is_cut(c, self.tokenize))
        return [value if math.isfinite(value) else None for value in values]


class PairMetric(ImageMetric):
    """A metric of an image and the baseline's image of the same prompt and seed.

    A run's images are scored afterwards, when both are there: ``lanternbench score``.
    """

    captions = False
    extra = True

    def available(self) -> Note | None:
        if self.setup.in_pairs:
            return super().available()
        text = "it compares with the baseline's images: lanternbench score RUN --metrics"
        return self.note("missing", f"{text} {self.name}")

    def prepare(self) -> None:
        """Nothing is loaded."""

    def score_pair(self, image: Image.Image, baseline: Image.Image) -> float:
        raise NotImplementedError


def is_cut(caption: str, tokenize: Callable[[list[str]], Tensor]) -> bool:
    """Return whether a tokeniser fills its length without reading the last character."""
    whole, shorter = tokenize([caption, caption[:-1]])
    return bool(whole[-1]) and whole.equal(shorter)


class SetMetric(Metric):
    """A metric with one value for a whole set of images."""

    def compute(self, images: Iterable[Image.Image]) -> SetScore:
        """Return the value of RGB images of any size; further columns by the keys of ``more``."""
        raise NotImplementedError

    def score_set(self, images: Iterable[Image.Image]) -> SetScore:
        """As ``compute``; every value is None when files are missing."""
        if missing := self.available():
            score = SetScore(None, 0, missing)
        else:
            with plugin_errors(self):
                score = self.compute(images)
        more = {column.key + self.mark: score.more.get(column.key) for column in self.more}
        return replace(score, more=more)
