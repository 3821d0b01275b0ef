"""GenEval's detector: transformers' Mask2Former, with images and instances as mmdet has them."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, PreTrainedModel

from lanternbench.metrics import files
from lanternbench.metrics.geneval_rules import Detection

SHORT = 800  # pixels of the shorter side
LONG = 1333  # of the longer side at most
STRIDE = 32  # both are padded to a multiple of it
MEAN = (123.675, 116.28, 103.53)  # of the pixels
STD = (58.395, 57.12, 57.375)
DETECTIONS = 100  # of an image
# GenEval's names of COCO's classes, if they are not COCO's own
RENAMED = {"mouse": "computer mouse", "remote": "tv remote", "keyboard": "computer keyboard"}


def class_names() -> list[str]:
    """Return GenEval's names of the detector's 80 classes."""
    from torchvision.models.detection import MaskRCNN_ResNet50_FPN_Weights

    categories = MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"]
    coco = [name for name in categories if name not in ("__background__", "N/A")]
    return [RENAMED.get(name, name) for name in coco]


def detector(path: Path | None, title: str, device: str = "cpu") -> PreTrainedModel:
    """Return Mask2Former with the weights of its published file, or with random ones."""
    return files.pretrained(
        Mask2FormerForUniversalSegmentation,
        Mask2FormerConfig(num_labels=80),  # type: ignore[call-arg]
        path,
        title,
        device,
        unused=("swin.layernorm", "criterion"),
    )


def pixels(image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
    """RGB image -> float [3, H, W] as the detector sees it, and its height and width before
    padding.
    """
    width, height = image.size
    scale = min(SHORT / min(width, height), LONG / max(width, height))
    size = max(int(height * scale + 0.5), 1), max(int(width * scale + 0.5), 1)
    scaled = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float()
    scaled = bilinear(scaled[None], size)[0]
    scaled = (scaled - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    return F.pad(scaled, (0, -size[1] % STRIDE, 0, -size[0] % STRIDE)), size


def bilinear(planes: Tensor, size: tuple[int, ...]) -> Tensor:
    """Scale planes [B, C, H, W] to a height and width, without anti-aliasing."""
    return F.interpolate(planes, size, mode="bilinear", align_corners=False)


def instances(
    classes: Tensor, masks: Tensor, most: int = DETECTIONS
) -> list[tuple[int, Detection]]:
    """Return (class, object) of the ``most`` likeliest pairs of query and class, as mmdet's
    instance head finds them.

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
    """Return the box around a mask [H, W] that is not empty: x1, y1, x2, y2."""
    from torchvision.ops import masks_to_boxes

    x1, y1, x2, y2 = masks_to_boxes(mask[None])[0].tolist()  # of the last pixels
    return [x1, y1, x2 + 1, y2 + 1]


def detect(
    model: PreTrainedModel, image: Image.Image, names: list[str]
) -> dict[str, list[Detection]]:
    """Return the objects of an RGB image by class; masks are bool [H, W] of the image's size."""
    objects: dict[str, list[Detection]] = {}
    prepared, (height, width) = pixels(image)
    with torch.inference_mode():
        out = model(pixel_values=prepared[None].to(model.device))
    masks = bilinear(out.masks_queries_logits, prepared.shape[1:])
    masks = bilinear(masks[:, :, :height, :width], image.size[::-1])[0]
    for label, detection in instances(out.class_queries_logits[0], masks):
        objects.setdefault(names[label], []).append(detection)
    return objects
