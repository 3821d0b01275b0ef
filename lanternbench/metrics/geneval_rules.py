"""The rules by which GenEval's public evaluator judges the objects that were found in an image."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from lanternbench.prompts.sources import GenEvalLine

CONFIDENCE = 0.3
COUNTING_CONFIDENCE = 0.9  # of prompts that ask for a number of objects
MOST_OBJECTS = 16  # of a class
OVERLAP = 0.1  # share of both objects' sizes that counts as no offset
DIRECTION = 0.5  # of the offset's norm: an object is left, right, … from this on


class Detection(NamedTuple):
    """An object in an image."""

    box: Sequence[float]  # x1, y1, x2, y2 in pixels, y downwards
    confidence: float
    mask: np.ndarray | None = None  # bool [H, W]


# the objects of a class, and its name -> the colour of each object
Colours = Callable[[list[Detection], str], list[str]]


def confident(objects: Iterable[Detection], tag: str) -> list[Detection]:
    """Return the detections of one class that count for prompts with this tag, best first."""
    threshold = COUNTING_CONFIDENCE if tag == "counting" else CONFIDENCE
    found = [detection for detection in objects if detection.confidence > threshold]
    found.sort(key=lambda detection: -detection.confidence)
    return found[:MOST_OBJECTS]


def relations(a: Sequence[float], b: Sequence[float]) -> set[str]:
    """Return where box a lies, seen from box b: any of "left of", "right of", "above", "below"."""
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


def all_stand(objects: list[Detection], relation: str, others: list[Detection]) -> bool:
    """Return whether each object stands in a relation to each of the others."""
    pairs = product(objects, others)
    return all(relation in relations(a.box, b.box) for a, b in pairs)


def correct(line: GenEvalLine, objects: Mapping[str, list[Detection]], colours: Colours) -> bool:
    """Return whether an image with these objects (by class, best first) satisfies a line of the
    metadata.
    """
    groups: list[list[Detection]] = []  # the objects that satisfy each requirement so far
    for wanted in line.include:
        best = objects.get(wanted.name, [])[: wanted.count]
        if len(best) < wanted.count:
            return False
        if wanted.color and colours(best, wanted.name).count(wanted.color) < wanted.count:
            return False
        if wanted.position:
            relation, group = wanted.position
            if not all_stand(best, relation, groups[group]):
                return False
        groups.append(best)
    return all(len(objects.get(no.name, [])) < no.count for no in line.exclude)
