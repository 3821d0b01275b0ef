"""Labels beside points: each where it touches no other label and no point, else as a number with a key."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from lanternbench.report.scene import LINE, Anchor, Point, text_width

Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels
NEAR = 34.0  # pixels: a label further from its point than this has a leader line to it
CLEAR = 6.5  # half the side of the square around a point that no label covers


class Label(NamedTuple):
    """A label's text, the start, end or middle of its baseline, and the ends of its leader line, if any."""

    text: str
    x: float
    y: float
    anchor: Anchor
    leader: tuple[Point, Point] | None = None


def overlap(a: Box, b: Box) -> float:
    """Area that two boxes share, in pixels²."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, width) * max(0.0, height)


def box_of(label: Label) -> Box:
    """The rectangle that a label's text fills, a pixel of margin included."""
    width = text_width(label.text)
    left = label.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * width
    return left - 1, label.y - LINE + 3.5, left + width + 1, label.y + 3.5


def place_labels(
    points: Sequence[Point], names: Sequence[str], lines: Sequence[Sequence[Point]], frame: Box
) -> tuple[list[Label], list[tuple[int, str]]]:
    """A label for every point, and the key: (number, name) of points whose names have no place within ``frame``.

    Labels touch neither each other nor a point; of such places they take the nearest that covers least of ``lines``.
    """
    marks = [_square(point) for point in points]
    covered = [box for line in lines for box in _boxes(line)]
    taken, labels, key = list(marks), dict[int, Label](), list[tuple[int, str]]()
    crowd = [sum(math.dist(p, other) < 60 for other in points) for p in points]
    for i in sorted(range(len(points)), key=lambda i: (crowd[i], i)):
        others = marks[:i] + marks[i + 1 :]
        label = _best(points[i], names[i], taken, covered, others, frame)
        if label is None:
            key.append((len(key) + 1, names[i]))
            label = _best(points[i], str(len(key)), taken, covered, others, frame, far=True)
        assert label is not None
        labels[i] = label
        taken.append(box_of(label))
    return [labels[i] for i in range(len(points))], key


def _best(point: Point, text: str, taken: Sequence[Box], lines: Sequence[Box], others: Sequence[Box], frame: Box,
          far: bool = False) -> Label | None:  # fmt: skip
    """The label's place of the least price: its distance and the lines that it covers; ``far``: any free place.

    Else only a place counts that is nearer to its point than to any other by 4 pixels.
    """
    (x, y), best, least = point, None, math.inf
    for rank, (dx, dy, anchor) in enumerate(_places(far, frame)):
        label = Label(text, round(x + dx, 1), round(y + dy, 1), anchor)
        box = box_of(label)
        away = _gap(box, _square(point))
        price = 2.0 * away + 0.01 * rank
        inside = box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
        if price >= least or not inside or any(overlap(box, other) > 0 for other in taken):
            continue
        doubtful = any(_gap(box, other) < away + 4 for other in others)
        price += sum(overlap(box, line) for line in lines) + 20.0 * doubtful
        if price < least and (far or not doubtful):
            best, least = label, price
            if doubtful or away > NEAR / 3:
                end = (min(max(x, box[0]), box[2]), min(max(y, box[1] + 2), box[3] - 2))
                best = label._replace(leader=((x, y), end))
    return best


def _square(point: Point) -> Box:
    """What no label covers around a point."""
    x, y = point
    return x - CLEAR, y - CLEAR, x + CLEAR, y + CLEAR


def _gap(a: Box, b: Box) -> float:
    """Pixels between two boxes."""
    return math.hypot(max(a[0] - b[2], b[0] - a[2], 0.0), max(a[1] - b[3], b[1] - a[3], 0.0))


def _places(far: bool, frame: Box) -> list[tuple[float, float, Anchor]]:
    """(dx, dy, anchor) of a label's baseline from its point, near places first; ``far``: anywhere in the frame."""
    middle = LINE / 2 - 3.5
    places: list[tuple[float, float, Anchor]] = []
    for r in (8, 12, 18, 26, NEAR):
        places += [(r, middle, "start"), (0, -r, "middle"), (0, r + LINE - 3.5, "middle"), (-r, middle, "end")]
        for side in (-0.8 * r, 0.8 * r):
            places += [(0.7 * r, middle + side, "start"), (-0.7 * r, middle + side, "end")]
    if far:
        wide, high = int(frame[2] - frame[0]), int(frame[3] - frame[1])
        places += [(dx, dy, "middle") for dx in range(-wide, wide, 12) for dy in range(-high, high, 12)]
    return places


def _boxes(line: Sequence[Point]) -> Iterator[Box]:
    """A polyline as small boxes, thin where it is horizontal or upright."""
    for (x0, y0), (x1, y1) in pairwise(line):
        pieces = 1 if x0 == x1 or y0 == y1 else 1 + int(math.dist((x0, y0), (x1, y1)) / 6)
        ends = [(x0 + k / pieces * (x1 - x0), y0 + k / pieces * (y1 - y0)) for k in range(pieces + 1)]
        for (xa, ya), (xb, yb) in pairwise(ends):
            yield min(xa, xb) - 1, min(ya, yb) - 1, max(xa, xb) + 1, max(ya, yb) + 1
