"""GenEval (arXiv 2310.11513): the share of images that show the objects, counts, colours and
places of their prompts.

The value of an image is 1 or 0; the score is the mean over the six tasks of the mean over their
images.  Mask2Former finds the objects, CLIP ViT-L/14 names their colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.clip import Encoder, clip_encoder
from lanternbench.metrics.metric import ImageMetric, ScoreFunction, Setup
from lanternbench.notes import Note
from lanternbench.prompts.sources import GenEvalPrompts, geneval_metadata
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_official = GenEvalPrompts.official
METADATA = files.Weights(
    "geneval-prompts", "GenEval's prompts", f"prompts/{_official.file}", _official.url
)
DETECTOR, CLIP, NAMES = files.published("mask2former", "clip-l14", "geneval-names")
# names that NAMES may have next to the metadata
BESIDE = ("geneval_object_names.txt", "object_names.txt")
CONFIDENCE = 0.3
COUNTING_CONFIDENCE = 0.9  # of prompts that ask for a number of objects
MOST = 16  # objects of a class
OVERLAP = 0.1  # share of both objects' sizes that counts as no offset
DIRECTION = 0.5  # of the offset's norm, from which on it counts
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
SHORT = 800  # pixels of the shorter side
LONG = 1333  # of the longer side at most
STRIDE = 32  # both are padded to a multiple of it
MEAN = (123.675, 116.28, 103.53)  # of the detector's pixels
STD = (58.395, 57.12, 57.375)
DETECTIONS = 100  # of an image
TEMPLATES = (
    "a photo of a {colour} {name}",
    "a photo of a {colour}-colored {name}",
    "a photo of a {colour} object",
)
BACKGROUND = "#999"


class Detection(NamedTuple):
    box: Sequence[float]  # x1, y1, x2, y2 in pixels, y downwards
    confidence: float
    mask: np.ndarray | None = None  # bool [H, W]


# objects of a class, its name -> the colour of each
Colours = Callable[[list[Detection], str], list[str]]


def confident(objects: Iterable[Detection], tag: str) -> list[Detection]:
    """The detections of one class that count for prompts of a tag, best first."""
    threshold = COUNTING_CONFIDENCE if tag == "counting" else CONFIDENCE
    found = [detection for detection in objects if detection.confidence > threshold]
    found.sort(key=lambda detection: -detection.confidence)
    return found[:MOST]


def relations(a: Sequence[float], b: Sequence[float]) -> set[str]:
    """Where box a lies, seen from box b: any of "left of", "right of", "above", "below"."""
    corners = np.array([a[:4], b[:4]], dtype=float).reshape(2, 2, 2)  # [box, corner, axis]
    centres = corners.mean(1)
    sizes = np.abs(corners[:, 1] - corners[:, 0])
    offset = centres[0] - centres[1]
    beyond = np.maximum(np.abs(offset) - OVERLAP * sizes.sum(0), 0) * np.sign(offset)
    if (np.abs(beyond) < 1e-3).all():
        return set()
    x, y = beyond / np.linalg.norm(offset)
    tests = {
        "left of": x < -DIRECTION,
        "right of": x > DIRECTION,
        "above": y < -DIRECTION,
        "below": y > DIRECTION,
    }
    return {name for name, holds in tests.items() if holds}


def correct(
    metadata: Mapping[str, Any], objects: Mapping[str, list[Detection]], colours: Colours
) -> bool:
    """Return whether an image with these objects (by class, best first) satisfies a line of the
    metadata.
    """
    groups: list[list[Detection]] = []  # the objects that satisfy each requirement so far
    for requirement in metadata.get("include", ()):
        name = requirement["class"]
        count = requirement["count"]
        best = objects.get(name, [])[:count]
        if len(best) < count:
            return False
        if (colour := requirement.get("color")) and colours(best, name).count(colour) < count:
            return False
        if "position" in requirement:
            relation, group = requirement["position"]
            if not all_stand(best, relation, groups[group]):
                return False
        groups.append(best)
    for excluded in metadata.get("exclude", ()):
        if len(objects.get(excluded["class"], [])) >= excluded["count"]:
            return False
    return True


def all_stand(objects: list[Detection], relation: str, others: list[Detection]) -> bool:
    """Return whether each object stands in a relation to each of the others."""
    pairs = product(objects, others)
    return all(relation in relations(a.box, b.box) for a, b in pairs)


def detector(path: Path | None, classes: int = 80, device: str = "cpu") -> PreTrainedModel:
    """transformers' Mask2Former from its published file; random weights without one."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

    config = Mask2FormerConfig(num_labels=classes)  # type: ignore[call-arg]
    return files.pretrained(
        Mask2FormerForUniversalSegmentation,
        config,
        path,
        DETECTOR.title,
        device,
        unused=("swin.layernorm", "criterion"),
    )


def pixels(image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
    """RGB image -> float [3, H, W] as the detector sees it, and its height and width before
    padding.
    """
    import torch
    import torch.nn.functional as F

    width, height = image.size
    scale = min(SHORT / min(width, height), LONG / max(width, height))
    size = max(int(height * scale + 0.5), 1), max(int(width * scale + 0.5), 1)
    scaled = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float()
    scaled = F.interpolate(scaled[None], size, mode="bilinear", align_corners=False)[0]
    scaled = (scaled - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    return F.pad(scaled, (0, -size[1] % STRIDE, 0, -size[0] % STRIDE)), size


def instances(
    classes: Tensor, masks: Tensor, most: int = DETECTIONS
) -> list[tuple[int, Detection]]:
    """(class, object) of the ``most`` likeliest pairs of query and class, as mmdet's instance head
    finds them.

    classes: logits [Q, C + 1], the last for "nothing"; masks: logits [Q, H, W] in pixels of the
    image.
    """
    scores = classes.softmax(-1)[:, :-1]
    best = scores.flatten().topk(min(most, scores.numel()))
    objects = []
    for score, place in zip(best.values, best.indices.tolist(), strict=True):
        query, label = divmod(place, scores.shape[1])
        mask = masks[query] > 0
        if mask.any():
            certainty = masks[query].sigmoid()[mask].mean()  # of the mask, over its pixels
            confidence = float(score * certainty)
            objects.append((label, Detection(box_of(mask), confidence, mask.cpu().numpy())))
    return objects


def box_of(mask: Tensor) -> list[float]:
    """The box around a mask [H, W] that is not empty: x1, y1, x2, y2."""
    ys = mask.any(1).nonzero().flatten()
    xs = mask.any(0).nonzero().flatten()
    return [float(xs[0]), float(ys[0]), float(xs[-1] + 1), float(ys[-1] + 1)]


def detect(
    model: PreTrainedModel, image: Image.Image, names: Sequence[str]
) -> dict[str, list[Detection]]:
    """The objects of an RGB image by class; masks are bool [H, W] of the image's size."""
    import torch
    import torch.nn.functional as F

    objects: dict[str, list[Detection]] = {}
    prepared, (height, width) = pixels(image)
    with torch.inference_mode():
        out = model(pixel_values=prepared[None].to(next(model.parameters()).device))
    masks = F.interpolate(
        out.masks_queries_logits, prepared.shape[1:], mode="bilinear", align_corners=False
    )
    masks = F.interpolate(
        masks[:, :, :height, :width], image.size[::-1], mode="bilinear", align_corners=False
    )[0]
    for label, one in instances(out.class_queries_logits[0], masks):
        objects.setdefault(names[label], []).append(one)
    return objects


def colour_names(encoder: Encoder) -> Callable[[Image.Image, list[Detection], str], list[str]]:
    """(image, objects of a class, its name) -> zero-shot colours by CLIP: the object's crop, its
    surroundings grey.
    """
    from torch.nn.functional import normalize

    @cache
    def classifier(name: str) -> Tensor:
        """Unit embeddings of the colours of a class [10, D]: the mean over the templates."""
        texts = [t.format(colour=colour, name=name) for colour in COLOURS for t in TEMPLATES]
        return normalize(
            encoder.captions(texts).unflatten(0, (len(COLOURS), len(TEMPLATES))).mean(1), dim=-1
        )

    def colours(image: Image.Image, objects: list[Detection], name: str) -> list[str]:
        likeness = encoder.images([crop(image, one) for one in objects]) @ classifier(name).T
        return [COLOURS[i] for i in likeness.argmax(1).tolist()]

    return colours


def crop(image: Image.Image, one: Detection) -> Image.Image:
    """The object's box of an RGB image, grey outside its mask."""
    if one.mask is not None:
        image = Image.composite(
            image, Image.new("RGB", image.size, BACKGROUND), Image.fromarray(one.mask)
        )
    x1, y1, x2, y2 = map(round, one.box)
    return image.crop((x1, y1, x2, y2))


def read_names(path: Path) -> list[str]:
    """The names of the detector's classes, a line each.  Raises UserError when the file is
    another.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        names = [line.strip() for line in lines if line.strip()]
        if len(names) != len(set(names)) or not names:
            raise ValueError("a name is there twice, or there is none")
    except (OSError, ValueError) as error:
        raise files.wrong_file(path, NAMES.title, error) from None
    return names


@register("metric", "geneval")
@register("metric", "geneval:FILE")
class GenEval(ImageMetric):
    """``FILE``: the official metadata, with geneval_object_names.txt beside it; by default both as
    fetched.
    """

    paper = "Ghosh et al. 2023, arXiv 2310.11513"
    title = "GenEval"
    key = "geneval"
    form = ".3f"
    extra = True
    over_categories = True
    weights = (DETECTOR, CLIP, METADATA, NAMES)

    def __init__(self, name: str, setup: Setup):
        super().__init__(name, setup)
        self.unknown: dict[str, None] = {}
        # needed also where networks are random
        self.paths: dict[files.Weights, Any] = {METADATA: METADATA.find(), NAMES: NAMES.find()}
        if where := name.partition(":")[2]:
            metadata = Path(where).expanduser()
            if not metadata.is_file():
                raise UserError(
                    f"there is no file {metadata}: give GenEval's metadata, geneval:FILE."
                )
            beside = [path for path in map(metadata.with_name, BESIDE) if path.is_file()]
            self.paths = {METADATA: metadata, NAMES: [*beside, self.paths[NAMES]][0]}

    def found(self) -> list[Path | None]:
        return [self.paths.get(weights) or weights.find() for weights in self.weights]

    def available(self) -> Note | None:
        networks = () if self.setup.random else self.weights[:2]
        reason = files.missing(
            *networks, *(text for text, path in self.paths.items() if path is None)
        )
        return self.note("missing", reason) if reason else None

    def load(self) -> ScoreFunction:
        """1 for a correct image, 0 for another; not a number where the caption is none of
        GenEval's prompts.
        """
        import torch

        metadata, names_file = self.paths.values()  # of files, else it is not available
        names = read_names(names_file)
        lines = {line["prompt"]: line for line in geneval_metadata(metadata)}
        model = detector(self.setup.find(DETECTOR), len(names), self.setup.device)
        colours = colour_names(clip_encoder(self.setup, CLIP, "ViT-L-14-quickgelu"))

        def correctness(image: Image.Image, caption: str) -> float:
            if (line := lines.get(caption)) is None:
                self.unknown[caption] = None
                return math.nan
            found = detect(model, image, names)
            objects = {name: confident(group, line["tag"]) for name, group in found.items()}
            return float(correct(line, objects, partial(colours, image)))

        return lambda images, captions: torch.tensor(list(map(correctness, images, captions)))

    def notes(self) -> list[Note]:
        if not self.unknown:
            return []
        first = next(iter(self.unknown))[:80]
        text = f"{len(self.unknown)} captions are no prompts of GenEval (the first: {first}); use --prompts geneval"
        return [self.note("missing", text)]
