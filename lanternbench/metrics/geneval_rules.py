"""GenEval's rules (arXiv 2310.11513): is what a prompt asks for among the detected objects?

Boxes are (x1, y1, x2, y2) in pixels, y downwards.
"""

from __future__ import annotations

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

    box: Sequence[float]
    confidence: float
    mask: Any = None  # bool [H, W]


Colours = Callable[[list[Detection], str], list[str]]  # objects of a class, its name -> the colour of each


def kept(found: Iterable[Detection], tag: str) -> list[Detection]:
    """The detections of one class that count for prompts of a tag, best first."""
    threshold = COUNTING_CONFIDENCE if tag == "counting" else CONFIDENCE
    return sorted((f for f in found if f.confidence > threshold), key=lambda f: -f.confidence)[:MOST]


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
    """Does an image with these objects (by class, best first) show what a line of the metadata asks for?"""
    groups: list[list[Detection] | None] = []  # the objects that met each demand
    for wanted in metadata.get("include", ()):
        name, count = wanted["class"], wanted["count"]
        best: list[Detection] | None = objects.get(name, [])[:count]
        if len(best or ()) < count or not _coloured(wanted, best or [], colours) or not _placed(wanted, best, groups):
            best = None
        groups.append(best)
    too_many = any(len(objects.get(bad["class"], [])) >= bad["count"] for bad in metadata.get("exclude", ()))
    return None not in groups and not too_many


def _coloured(wanted: Mapping[str, Any], found: list[Detection], colours: Colours) -> bool:
    return "color" not in wanted or colours(found, wanted["class"]).count(wanted["color"]) >= wanted["count"]


def _placed(wanted: Mapping[str, Any], found: list[Detection] | None, groups: list[list[Detection] | None]) -> bool:
    if "position" not in wanted:
        return True
    relation, group = wanted["position"]
    others = groups[group]
    return others is not None and all(relation in relations(a.box, b.box) for a in found or () for b in others)
