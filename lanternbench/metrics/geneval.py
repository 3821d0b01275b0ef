"""GenEval (arXiv 2310.11513): the share of images that show the objects, counts, colours and
places of their prompts.

The value of an image is 1 or 0; the score is the mean over the six tasks of the mean over their
images.  Mask2Former finds the objects, CLIP ViT-L/14 names their colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
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

_official = GenEvalPrompts.official
METADATA = files.Weights(
    "geneval-prompts", "GenEval's prompts", f"prompts/{_official.file}", _official.url
)
DETECTOR, CLIP, NAMES = files.published("mask2former", "clip-l14", "geneval-names")
# names that NAMES has beside the metadata
BESIDE = ("geneval_object_names.txt", "object_names.txt")
CONFIDENCE, COUNTING_CONFIDENCE = 0.3, 0.9
MOST = 16  # objects of a class
OVERLAP = 0.1  # share of both objects' sizes that counts as no offset
DIRECTION = 0.5  # of the offset's norm, from which on it counts
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
# pixels: of the shorter side, of the longer at most, and what both are padded to
SHORT, LONG, STRIDE = 800, 1333, 32
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of the detector's pixels
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
    mask: Any = None  # bool [H, W]


# objects of a class, its name -> the colour of each
Colours = Callable[[list[Detection], str], list[str]]


def confident(objects: Iterable[Detection], tag: str) -> list[Detection]:
    """The detections of one class that count for prompts of a tag, best first."""
    threshold = COUNTING_CONFIDENCE if tag == "counting" else CONFIDENCE
    return sorted(
        (one for one in objects if one.confidence > threshold), key=lambda one: -one.confidence
    )[:MOST]


def relations(a: Sequence[float], b: Sequence[float]) -> set[str]:
    """Where box a lies, seen from box b: any of "left of", "right of", "above", "below"."""
    corners = np.array([a[:4], b[:4]], dtype=float).reshape(2, 2, 2)  # [box, corner, axis]
    (centre_a, centre_b), sizes = corners.mean(1), np.abs(corners[:, 1] - corners[:, 0])
    offset = centre_a - centre_b
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
    """Does an image with these objects (by class, best first) satisfy a line of the metadata?"""
    groups: list[list[Detection] | None] = []  # the objects that satisfy each requirement
    for requirement in metadata.get("include", ()):
        name, count, colour = requirement["class"], requirement["count"], requirement.get("color")
        best = objects.get(name, [])[:count]
        met = len(best) >= count and (colour is None or colours(best, name).count(colour) >= count)
        if met and "position" in requirement:
            relation, group = requirement["position"]
            others = groups[group]
            met = others is not None and all(
                relation in relations(a.box, b.box) for a in best for b in others
            )
        groups.append(best if met else None)
    too_many = any(
        len(objects.get(bad["class"], [])) >= bad["count"] for bad in metadata.get("exclude", ())
    )
    return None not in groups and not too_many


def detector(path: Path | None, classes: int = 80, device: str = "cpu") -> Any:
    """transformers' Mask2Former from its published file; random weights without one."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

    kind, config = Mask2FormerForUniversalSegmentation, Mask2FormerConfig(num_labels=classes)  # type: ignore[call-arg]
    return files.pretrained(
        kind, config, path, DETECTOR.title, device, unused=("swin.layernorm", "criterion")
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
    best, place = scores.flatten().topk(min(most, scores.numel()))
    objects = []
    for score, query, label in zip(
        best, place // scores.shape[1], place % scores.shape[1], strict=True
    ):
        mask = masks[query] > 0
        if not mask.any():
            continue
        certainty = masks[query].sigmoid()[mask].mean()  # of the mask, over its pixels
        ys, xs = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        box = [float(v) for v in (xs[0], ys[0], xs[-1] + 1, ys[-1] + 1)]
        objects.append((int(label), Detection(box, float(score * certainty), mask.cpu().numpy())))
    return objects


def detect(model: Any, image: Image.Image, names: Sequence[str]) -> dict[str, list[Detection]]:
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
        names = [
            line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
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
    title, key, form, extra, over_categories = "GenEval", "geneval", ".3f", True, True
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
        names, lines = (
            read_names(names_file),
            {line["prompt"]: line for line in geneval_metadata(metadata)},
        )
        model = detector(self.setup.find(DETECTOR), len(names), self.setup.device)
        colours = colour_names(clip_encoder(self.setup, CLIP, "ViT-L-14-quickgelu"))

        def correctness(image: Image.Image, caption: str) -> float:
            if (line := lines.get(caption)) is None:
                self.unknown[caption] = None
                return math.nan
            objects = {
                name: confident(group, line["tag"])
                for name, group in detect(model, image, names).items()
            }
            return float(correct(line, objects, partial(colours, image)))

        return lambda images, captions: torch.tensor(list(map(correctness, images, captions)))

    def notes(self) -> list[Note]:
        if not self.unknown:
            return []
        first = next(iter(self.unknown))[:80]
        text = f"{len(self.unknown)} captions are no prompts of GenEval (the first: {first}); use --prompts geneval"
        return [self.note("missing", text)]
