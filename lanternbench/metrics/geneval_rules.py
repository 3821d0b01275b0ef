"""GenEval's rules (arXiv 2310.11513): is what a prompt asks for among the detected objects?"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

CONFIDENCE, COUNTING_CONFIDENCE = 0.3, 0.9
MOST = 16  # objects of a class
OVERLAP = 0.1  # share of both objects' sizes that counts as no offset
DIRECTION = 0.5  # of the offset's norm, from which on it counts
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")


class Detection(NamedTuple):
    """A detected object."""

    box: Sequence[float]  # x1, y1, x2, y2 in pixels, y downwards
    confidence: float
    mask: Any = None  # bool [H, W]


Colours = Callable[[list[Detection], str], list[str]]  # objects of a class, its name -> the colour of each


def confident(objects: Iterable[Detection], tag: str) -> list[Detection]:
    """The detections of one class that count for prompts of a tag, best first."""
    threshold = COUNTING_CONFIDENCE if tag == "counting" else CONFIDENCE
    return sorted((one for one in objects if one.confidence > threshold), key=lambda one: -one.confidence)[:MOST]


def relations(a: Sequence[float], b: Sequence[float]) -> set[str]:
    """Where box a lies, seen from box b: any of "left of", "right of", "above", "below"."""
    corners = np.array([a[:4], b[:4]], dtype=float).reshape(2, 2, 2)  # [box, corner, axis]
    (centre_a, centre_b), sizes = corners.mean(1), np.abs(corners[:, 1] - corners[:, 0])
    offset = centre_a - centre_b
    beyond = np.maximum(np.abs(offset) - OVERLAP * sizes.sum(0), 0) * np.sign(offset)
    if (np.abs(beyond) < 1e-3).all():
        return set()
    x, y = beyond / np.linalg.norm(offset)
    tests = {"left of": x < -DIRECTION, "right of": x > DIRECTION, "above": y < -DIRECTION, "below": y > DIRECTION}
    return {name for name, holds in tests.items() if holds}


def correct(metadata: Mapping[str, Any], objects: Mapping[str, list[Detection]], colours: Colours) -> bool:
    """Does an image with these objects (by class, best first) satisfy a line of the metadata?"""
    groups: list[list[Detection] | None] = []  # the objects that satisfy each requirement
    for requirement in metadata.get("include", ()):
        name, count, colour = requirement["class"], requirement["count"], requirement.get("color")
        best = objects.get(name, [])[:count]
        met = len(best) >= count and (colour is None or colours(best, name).count(colour) >= count)
        if met and "position" in requirement:
            relation, group = requirement["position"]
            others = groups[group]
            met = others is not None and all(relation in relations(a.box, b.box) for a in best for b in others)
        groups.append(best if met else None)
    too_many = any(len(objects.get(bad["class"], [])) >= bad["count"] for bad in metadata.get("exclude", ()))
    return None not in groups and not too_many
