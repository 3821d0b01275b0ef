"""GenEval (arXiv 2310.11513): the share of images that show the objects, counts, colours and places of their prompts.

The value of an image is 1 or 0; the score is the mean over the six tasks of the mean over their images.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.clip import CLIP_VIT_L14, openai_clip
from lanternbench.metrics.geneval_detector import MASK2FORMER, ColourNames, detect, detector
from lanternbench.metrics.geneval_rules import correct, kept
from lanternbench.metrics.metric import ImageMetric, ScoreFunction
from lanternbench.metrics.setup import Setup
from lanternbench.notes import Note
from lanternbench.prompts.sources import GENEVAL, GenEvalPrompts, geneval_metadata
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

METADATA = files.Weights(
    name="geneval-prompts",
    title="GenEval's prompts",
    file=f"prompts/{GenEvalPrompts.official.file}",
    url=GenEvalPrompts.official.url,
    sha256=GenEvalPrompts.official.sha256,
)
NAMES = files.Weights(
    name="geneval-names",
    title="GenEval's names of objects",
    file="prompts/geneval_object_names.txt",
    url=f"{GENEVAL}/evaluation/object_names.txt",
    sha256="",
)
BESIDE = ("geneval_object_names.txt", "object_names.txt")  # names that NAMES has beside the metadata


def read_names(path: Path) -> list[str]:
    """The names of the detector's classes, a line each.  Raises UserError when the file is another."""
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise files.wrong_file(path, NAMES.title, error) from None
    if len(names) != len(set(names)) or not names:
        raise files.wrong_file(path, NAMES.title, ValueError("a name is there twice, or there is none"))
    return names


@register("metric", "geneval")
@register("metric", "geneval:FILE")
class GenEval(ImageMetric):
    """``FILE``: the official metadata, with geneval_object_names.txt beside it; by default both as fetched."""

    paper = "Ghosh et al. 2023, arXiv 2310.11513"
    title, key, form, extra = "GenEval", "geneval", ".3f", True
    weights = (MASK2FORMER, CLIP_VIT_L14, METADATA, NAMES)
    over_categories = True

    def __init__(self, name: str, setup: Setup):
        super().__init__(name, setup)
        where = name.partition(":")[2]
        metadata = Path(where).expanduser()
        names = next((p for p in map(metadata.with_name, BESIDE) if p.is_file()), None) if where else None
        self.given = ({METADATA.name: metadata} if where else {}) | ({NAMES.name: names} if names else {})
        if where and not metadata.is_file():
            raise UserError(f"there is no file {metadata}: give GenEval's metadata, geneval:FILE.")
        self.unknown: dict[str, None] = {}

    def _data(self, wanted: files.Weights) -> Path | None:
        """Prompts and names are needed also where networks are random."""
        return self.given.get(wanted.name) or wanted.find()

    def available(self) -> Note | None:
        """None, or what is missing and the command that gets it."""
        networks = () if self.setup.random else self.weights[:2]
        reason = files.missing(*networks, *(w for w in self.weights[2:] if not self._data(w)))
        return self.note("missing", reason) if reason else None

    @cached_property
    def metadata(self) -> dict[str, dict[str, Any]]:
        """The lines of the official file by prompt."""
        path = self._data(METADATA)
        assert path is not None  # else it is not available
        return {line["prompt"]: line for line in geneval_metadata(path)}

    def load(self) -> ScoreFunction:
        """1 for a correct image, 0 for another; not a number where the caption is none of GenEval's prompts."""
        import torch

        path, device = self._data(NAMES), self.setup.device
        assert path is not None  # else it is not available
        names, lines = read_names(path), self.metadata
        model = detector(self.setup.find(MASK2FORMER), len(names), device)
        encoder = openai_clip(self.setup.find(CLIP_VIT_L14), CLIP_VIT_L14, "ViT-L-14-quickgelu", device)
        colours = ColourNames(encoder)

        def one(image: Image.Image, caption: str) -> float:
            if (line := lines.get(caption)) is None:
                self.unknown[caption] = None
                return math.nan
            found = detect(model, image, names)
            objects = {name: kept(group, line["tag"]) for name, group in found.items()}
            return float(correct(line, objects, colours.of(image)))

        def values(images: list[Image.Image], captions: list[str]) -> Tensor:
            return torch.tensor([one(image, caption) for image, caption in zip(images, captions, strict=True)])

        return values

    def notes(self) -> list[Note]:
        """The captions that are none of GenEval's prompts."""
        if not self.unknown:
            return []
        first = next(iter(self.unknown))[:80]
        text = f"{len(self.unknown)} captions are no prompts of GenEval (the first: {first}); use --prompts geneval"
        return [self.note("missing", text)]
