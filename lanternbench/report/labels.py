"""Labels of points in a plot: they touch neither each other nor a point, at any width.

A library such as adjustText moves labels until they overlap less; this module excludes overlap,
and a name that has no place becomes a number with an entry in the legend.  All sizes are in points.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from lanternbench.report.style import LINE, text_width

Anchor = Literal["left", "center", "right"]
Point = tuple[float, float]
DESCENT = 2.4  # of a line of text, below its baseline
FAR = 23.0  # a label further from its point than a third of this has a leader line to it
CLEAR = 4.4  # half the side of the square around a point that no label covers
RADII = (5.4, 8.0, 12.0, 17.5, FAR)  # distances at which labels are tried


class Box(NamedTuple):
    """A rectangle; y grows upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def holds(self, other: "Box") -> bool:
        across = self.left <= other.left and other.right <= self.right
        return across and self.bottom <= other.bottom and other.top <= self.top


class Label(NamedTuple):
    """A text on its baseline, and the end of its leader line, if it has one."""

    text: str
    x: float
    y: float
    anchor: Anchor
    leader_end: Point | None = None

    @property
    def box(self) -> Box:
        """The rectangle that the text fills, with a margin."""
        width = text_width(self.text)
        share = {"left": 0.0, "center": 0.5, "right": 1.0}[self.anchor]
        left = self.x - share * width
        return Box(left - 0.7, self.y - DESCENT, left + width + 0.7, self.y - DESCENT + LINE)


class Placed(NamedTuple):
    """A label for every point, and (number, name) of points that are named in the legend."""

    labels: list[Label]
    numbered: list[tuple[int, str]]


def overlap(a: Box, b: Box) -> float:
    """Return the area that two boxes share."""
    width = min(a.right, b.right) - max(a.left, b.left)
    height = min(a.top, b.top) - max(a.bottom, b.bottom)
    return max(0.0, width) * max(0.0, height)


def gap(a: Box, b: Box) -> float:
    """Return the distance between two boxes."""
    across = max(a.left - b.right, b.left - a.right, 0.0)
    up = max(a.bottom - b.top, b.bottom - a.top, 0.0)
    return math.hypot(across, up)


def box_around(points: Sequence[Point], margin: float) -> Box:
    x, y = zip(*points)
    return Box(min(x) - margin, min(y) - margin, max(x) + margin, max(y) + margin)


def boxes_along(line: Sequence[Point]) -> Iterator[Box]:
    """Yield small boxes that cover a polyline, thin if it is horizontal or vertical."""
    for start, end in pairwise(line):
        is_straight = start[0] == end[0] or start[1] == end[1]
        pieces = 1 if is_straight else 1 + int(math.dist(start, end) / 4)
        corners = np.linspace(start, end, pieces + 1).tolist()
        for piece in pairwise(corners):
            yield box_around(piece, 0.7)


def places_around(point: Point) -> Iterator[tuple[float, float, Anchor]]:
    """Yield (x, y, anchor) of baselines around a point, the nearest first."""
    x, y = point
    middle = y - LINE / 2 + DESCENT
    for radius in RADII:
        yield x + radius, middle, "left"
        yield x, y + radius, "center"
        yield x, y - radius - LINE + DESCENT, "center"
        yield x - radius, middle, "right"
        for side in (-0.8 * radius, 0.8 * radius):
            yield x + 0.7 * radius, middle - side, "left"
            yield x - 0.7 * radius, middle - side, "right"


def places_anywhere(frame: Box) -> Iterator[tuple[float, float, Anchor]]:
    """Yield (x, y, anchor) of baselines on a grid over the whole frame."""
    for column in range(int((frame.right - frame.left) / 8) + 1):
        for row in range(int((frame.top - frame.bottom) / 8) + 1):
            yield frame.left + 8 * column, frame.bottom + 8 * row, "center"


class Placing:
    """Labels that are placed one after another within a frame."""

    def __init__(self, points: Sequence[Point], lines: Sequence[Sequence[Point]], frame: Box):
        self.points = points
        self.frame = frame
        self.marks = [box_around([point], CLEAR) for point in points]
        self.lines = [box for line in lines for box in boxes_along(line)]
        self.taken = list(self.marks)

    def is_free(self, label: Label) -> bool:
        return self.frame.holds(label.box) and self.crowding(label) == 0

    def crowding(self, label: Label) -> float:
        return sum(overlap(label.box, other) for other in self.taken)

    def is_doubtful(self, index: int, box: Box) -> bool:
        """Return whether a label is about as near to another point as to its own."""
        away = gap(box, self.marks[index])
        others = self.marks[:index] + self.marks[index + 1 :]
        return any(gap(box, other) < away + 2.7 for other in others)

    def price(self, index: int, box: Box) -> float:
        """Return the cost of a place: its distance, what it covers of lines, and doubt."""
        covered = sum(overlap(box, line) for line in self.lines)
        doubt = 20.0 if self.is_doubtful(index, box) else 0.0
        return 3.0 * gap(box, self.marks[index]) + 2.2 * covered + doubt

    def best_next_to(self, index: int, text: str) -> Label | None:
        """Return the best place next to a point, nearer to it than to any other; None if there
        is none.
        """
        tried = [Label(text, *place) for place in places_around(self.points[index])]
        free = [label for label in tried if self.is_free(label)]
        clear = [label for label in free if not self.is_doubtful(index, label.box)]
        return min(clear, key=lambda label: self.price(index, label.box), default=None)

    def best_anywhere(self, index: int, text: str) -> Label:
        """Return the best free place in the frame; the least crowded one if none is free."""
        places = [*places_around(self.points[index]), *places_anywhere(self.frame)]
        tried = [Label(text, *place) for place in places]
        free = [label for label in tried if self.is_free(label)]
        if not free:
            return min(tried, key=self.crowding)
        return min(free, key=lambda label: self.price(index, label.box))

    def with_leader(self, index: int, label: Label) -> Label:
        """Add a leader line to a label that is not right next to its point."""
        box = label.box
        is_close = gap(box, self.marks[index]) <= FAR / 3
        if is_close and not self.is_doubtful(index, box):
            return label
        x, y = self.points[index]
        end = (min(max(x, box.left), box.right), min(max(y, box.bottom), box.top))
        return label._replace(leader_end=end)


def place_labels(
    points: Sequence[Point],
    names: Sequence[str],
    lines: Sequence[Sequence[Point]],
    frame: Box,
) -> Placed:
    """Return a label for every point, the least crowded points first.

    ``lines``: polylines that labels should not cover.
    """
    placing = Placing(points, lines, frame)
    crowd = [sum(math.dist(point, other) < 40 for other in points) for point in points]
    labels: dict[int, Label] = {}
    numbered: list[tuple[int, str]] = []
    for index in sorted(range(len(points)), key=lambda i: (crowd[i], i)):
        label = placing.best_next_to(index, names[index])
        if label is None:
            numbered.append((len(numbered) + 1, names[index]))
            label = placing.best_anywhere(index, str(len(numbered)))
        labels[index] = placing.with_leader(index, label)
        placing.taken.append(label.box)
    return Placed([labels[index] for index in range(len(points))], numbered)
