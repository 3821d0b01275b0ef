"""GenEval (arXiv 2310.11513): the share of images that show the objects, counts, colours and places of their prompts.

The value of an image is 1 or 0; the score is the mean over the six tasks of the mean over their images.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.clip import clip_encoder
from lanternbench.metrics.geneval_rules import confident, correct
from lanternbench.metrics.metric import ImageMetric, ScoreFunction
from lanternbench.metrics.setup import Setup
from lanternbench.notes import Note
from lanternbench.prompts.sources import GenEvalPrompts, geneval_metadata
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

_official = GenEvalPrompts.official
METADATA = files.Weights(
    "geneval-prompts", "GenEval's prompts", f"prompts/{_official.file}", _official.url, _official.sha256
)
DETECTOR, CLIP, NAMES = files.published("mask2former", "clip-l14", "geneval-names")
BESIDE = ("geneval_object_names.txt", "object_names.txt")  # names that NAMES has beside the metadata


def read_names(path: Path) -> list[str]:
    """The names of the detector's classes, a line each.  Raises UserError when the file is another."""
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if len(names) != len(set(names)) or not names:
            raise ValueError("a name is there twice, or there is none")
    except (OSError, ValueError) as error:
        raise files.wrong_file(path, NAMES.title, error) from None
    return names


@register("metric", "geneval")
@register("metric", "geneval:FILE")
class GenEval(ImageMetric):
    """``FILE``: the official metadata, with geneval_object_names.txt beside it; by default both as fetched."""

    paper = "Ghosh et al. 2023, arXiv 2310.11513"
    title, key, form, extra = "GenEval", "geneval", ".3f", True
    weights = (DETECTOR, CLIP, METADATA, NAMES)
    over_categories = True

    def __init__(self, name: str, setup: Setup):
        super().__init__(name, setup)
        self.unknown: dict[str, None] = {}
        self.paths = {METADATA: METADATA.find(), NAMES: NAMES.find()}  # needed also where networks are random
        if where := name.partition(":")[2]:
            metadata = Path(where).expanduser()
            if not metadata.is_file():
                raise UserError(f"there is no file {metadata}: give GenEval's metadata, geneval:FILE.")
            beside = [path for path in map(metadata.with_name, BESIDE) if path.is_file()]
            self.paths = {METADATA: metadata, NAMES: [*beside, self.paths[NAMES]][0]}

    def available(self) -> Note | None:
        networks = () if self.setup.random else self.weights[:2]
        reason = files.missing(*networks, *(text for text, path in self.paths.items() if path is None))
        return self.note("missing", reason) if reason else None

    def load(self) -> ScoreFunction:
        """1 for a correct image, 0 for another; not a number where the caption is none of GenEval's prompts."""
        import torch

        from lanternbench.metrics import geneval_detector as networks

        metadata, names_file = self.paths.values()
        assert metadata is not None  # else it is not available
        assert names_file is not None
        names, lines = read_names(names_file), {line["prompt"]: line for line in geneval_metadata(metadata)}
        model = networks.detector(self.setup.find(DETECTOR), len(names), self.setup.device)
        colours = networks.ColourNames(clip_encoder(self.setup, CLIP, "ViT-L-14-quickgelu"))

        def correctness(image: Image.Image, caption: str) -> float:
            if (line := lines.get(caption)) is None:
                self.unknown[caption] = None
                return math.nan
            groups = networks.detect(model, image, names).items()
            objects = {name: confident(group, line["tag"]) for name, group in groups}
            return float(correct(line, objects, colours.of(image)))

        def values(images: list[Image.Image], captions: list[str]) -> Tensor:
            return torch.tensor(list(map(correctness, images, captions)))

        return values

    def notes(self) -> list[Note]:
        """The captions that are none of GenEval's prompts."""
        if not self.unknown:
            return []
        first = next(iter(self.unknown))[:80]
        text = f"{len(self.unknown)} captions are no prompts of GenEval (the first: {first}); use --prompts geneval"
        return [self.note("missing", text)]
