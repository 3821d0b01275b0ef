"""GenEval (arXiv 2310.11513): the share of images that show the objects, counts, colours and
places of their prompts.

The value of an image is 1 or 0; the score is the mean over the six tasks of the mean over their
images.  Mask2Former finds the objects, CLIP ViT-L/14 names their colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.clip import Encoder, clip_encoder
from lanternbench.metrics.geneval_rules import Detection, confident, correct
from lanternbench.metrics.metric import ImageMetric, ScoreFunction, Setup
from lanternbench.notes import Note
from lanternbench.prompts.sources import GenEvalPrompts, geneval_metadata
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

_official = GenEvalPrompts.official
METADATA = files.Weights(
    "geneval-prompts",
    "GenEval's prompts",
    f"prompts/{_official.file}",
    _official.url,
    is_data=True,
)
DETECTOR, CLIP = files.published("mask2former", "clip-l14")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
TEMPLATES = (
    "a photo of a {colour} {name}",
    "a photo of a {colour}-colored {name}",
    "a photo of a {colour} object",
)
BACKGROUND = "#999"


def colour_names(encoder: Encoder) -> Callable[[Image.Image, list[Detection], str], list[str]]:
    """Return a function: (image, objects of a class, its name) -> the colour of each object,
    zero-shot by CLIP on its crop.
    """
    from torch.nn.functional import normalize

    @cache
    def classifier(name: str) -> Tensor:
        """Unit embeddings of the colours of a class [10, D]: the mean over the templates."""
        texts = [t.format(colour=colour, name=name) for colour in COLOURS for t in TEMPLATES]
        embeddings = encoder.captions(texts).unflatten(0, (len(COLOURS), len(TEMPLATES)))
        return normalize(embeddings.mean(1), dim=-1)

    def colours(image: Image.Image, objects: list[Detection], name: str) -> list[str]:
        crops = [crop(image, detection) for detection in objects]
        likeness = encoder.images(crops) @ classifier(name).T
        return [COLOURS[i] for i in likeness.argmax(1).tolist()]

    return colours


def crop(image: Image.Image, detection: Detection) -> Image.Image:
    """Return the object's box of an RGB image, grey outside its mask."""
    if detection.mask is not None:
        background = Image.new("RGB", image.size, BACKGROUND)
        image = Image.composite(image, background, Image.fromarray(detection.mask))
    x1, y1, x2, y2 = map(round, detection.box)
    return image.crop((x1, y1, x2, y2))


@register("metric", "geneval")
@register("metric", "geneval:FILE")
class GenEval(ImageMetric):
    """``FILE``: metadata in the form of the official file, which is the default."""

    paper = "Ghosh et al. 2023, arXiv 2310.11513"
    title = "GenEval"
    key = "geneval"
    form = ".3f"
    extra = True
    over_categories = True
    weights = (DETECTOR, CLIP, METADATA)

    def __init__(self, name: str, setup: Setup):
        super().__init__(name, setup)
        self.unknown_captions: dict[str, None] = {}
        self.metadata = METADATA
        if file := name.partition(":")[2]:
            path = Path(file).expanduser().absolute()
            if not path.is_file():
                raise UserError(f"there is no file {file}: give GenEval's metadata, geneval:FILE.")
            self.metadata = replace(METADATA, file=str(path))
            self.weights = (DETECTOR, CLIP, self.metadata)  # type: ignore[misc]

    def load(self) -> ScoreFunction:
        """1 for a correct image, 0 for another; not a number if the caption is none of GenEval's
        prompts.
        """
        import torch

        from lanternbench.metrics.detector import class_names, detect, detector

        metadata = geneval_metadata(self.setup.path(self.metadata))
        lines = {line.prompt: line for line in metadata}
        names = class_names()
        model = detector(self.setup.find(DETECTOR), DETECTOR.title, self.setup.device)
        colours = colour_names(clip_encoder(self.setup, CLIP, "ViT-L-14-quickgelu"))

        def correctness(image: Image.Image, caption: str) -> float:
            line = lines.get(caption)
            if line is None:
                self.unknown_captions[caption] = None
                return math.nan
            found = detect(model, image, names)
            objects = {name: confident(group, line.tag) for name, group in found.items()}
            return float(correct(line, objects, partial(colours, image)))

        return lambda images, captions: torch.tensor(list(map(correctness, images, captions)))

    def notes(self) -> list[Note]:
        if not self.unknown_captions:
            return []
        first = next(iter(self.unknown_captions))[:80]
        text = (
            f"{len(self.unknown_captions)} captions are no prompts of GenEval (the first: {first}); "
            "run and score with one file, --prompts geneval:FILE and --metrics geneval:FILE"
        )
        return [self.note("missing", text)]
