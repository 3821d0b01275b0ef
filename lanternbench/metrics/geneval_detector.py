"""GenEval's detector: Mask2Former finds objects, CLIP ViT-L/14 names their colours."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

from lanternbench.metrics import files
from lanternbench.metrics.clip import Encoder
from lanternbench.metrics.geneval_rules import COLOURS, Colours, Detection
from lanternbench.metrics.pretrained import pretrained

SHORT, LONG, STRIDE = 800, 1333, 32  # pixels: of the shorter side, of the longer at most, and what both are padded to
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
MOST = 100  # detections of an image
TEMPLATES = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}", "a photo of a {colour} object")
BACKGROUND = "#999"


def detector(path: Path | None, classes: int = 80, device: str = "cpu") -> Any:
    """transformers' Mask2Former from its published file; random weights without one."""
    kind, config = Mask2FormerForUniversalSegmentation, Mask2FormerConfig(num_labels=classes)  # type: ignore[call-arg]
    title = files.published("mask2former")[0].title
    return pretrained(kind, config, path, title, device, unused=("swin.layernorm", "criterion"))


def pixels(image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
    """RGB image -> float [3, H, W] as the detector sees it, and its height and width before padding."""
    width, height = image.size
    scale = min(SHORT / min(width, height), LONG / max(width, height))
    size = max(int(height * scale + 0.5), 1), max(int(width * scale + 0.5), 1)
    scaled = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float()
    scaled = F.interpolate(scaled[None], size, mode="bilinear", align_corners=False)[0]
    scaled = (scaled - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    return F.pad(scaled, (0, -size[1] % STRIDE, 0, -size[0] % STRIDE)), size


def instances(classes: Tensor, masks: Tensor, most: int = MOST) -> list[tuple[int, Detection]]:
    """(class, object) of the ``most`` likeliest pairs of query and class, as mmdet's instance head finds them.

    classes: logits [Q, C + 1], the last for "nothing"; masks: logits [Q, H, W] in pixels of the image.
    """
    scores = classes.softmax(-1)[:, :-1]
    best, place = scores.flatten().topk(min(most, scores.numel()))
    objects = []
    for score, query, label in zip(best, place // scores.shape[1], place % scores.shape[1], strict=True):
        mask = masks[query] > 0
        if not mask.any():
            continue
        certainty = masks[query].sigmoid()[mask].mean()  # of the mask, over its pixels
        ys, xs = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        box = [float(v) for v in (xs[0], ys[0], xs[-1] + 1, ys[-1] + 1)]
        objects.append((int(label), Detection(box, float(score * certainty), mask.cpu().numpy())))
    return objects


@torch.inference_mode()
def detect(model: Any, image: Image.Image, names: Sequence[str]) -> dict[str, list[Detection]]:
    """The objects of an RGB image by class; masks are bool [H, W] of the image's size."""
    objects: dict[str, list[Detection]] = {}
    prepared, (height, width) = pixels(image)
    out = model(pixel_values=prepared[None].to(next(model.parameters()).device))
    masks = F.interpolate(out.masks_queries_logits, prepared.shape[1:], mode="bilinear", align_corners=False)
    masks = F.interpolate(masks[:, :, :height, :width], image.size[::-1], mode="bilinear", align_corners=False)[0]
    for label, one in instances(out.class_queries_logits[0], masks):
        objects.setdefault(names[label], []).append(one)
    return objects


class ColourNames:
    """Zero-shot colours of objects by CLIP: the object's crop, its surroundings grey."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self.classifier = cache(self._classifier)

    def _classifier(self, name: str) -> Tensor:
        """Unit embeddings of the colours of a class [10, D]: the mean over the templates."""
        texts = [t.format(colour=colour, name=name) for colour in COLOURS for t in TEMPLATES]
        means = self.encoder.captions(texts).unflatten(0, (len(COLOURS), len(TEMPLATES))).mean(1)
        return F.normalize(means, dim=-1)

    def of(self, image: Image.Image) -> Colours:
        """What names the colours of objects in this image."""

        def colours(objects: list[Detection], name: str) -> list[str]:
            likeness = self.encoder.images([crop(image, one) for one in objects]) @ self.classifier(name).T
            return [COLOURS[i] for i in likeness.argmax(1).tolist()]

        return colours


def crop(image: Image.Image, one: Detection) -> Image.Image:
    """The object's box of an RGB image, grey outside its mask."""
    if one.mask is not None:
        image = Image.composite(image, Image.new("RGB", image.size, BACKGROUND), Image.fromarray(one.mask))
    x1, y1, x2, y2 = map(round, one.box)
    return image.crop((x1, y1, x2, y2))
