"""The trade-off of speed and quality: the Pareto frontier, a line per method along its knob, and
their picture.

Each point has its label beside it where that touches no other label and no point, else a number
with a key.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise
from typing import NamedTuple

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.summary import Row
from lanternbench.report import scene
from lanternbench.report.columns import (
    COLUMN,
    Column,
    disturbed,
    metric_column,
    metric_keys,
    name_of,
    run_of,
    runs_of,
)
from lanternbench.report.scene import (
    LINE,
    Anchor,
    Axis,
    Group,
    Item,
    Line,
    Mark,
    Point,
    Sign,
    Text,
    colour,
    family,
)
from lanternbench.utils.text import one_line

NUMBERS = (int, float)  # and no booleans
NEAR = 34.0  # pixels: a label further from its point than this has a leader line to it
CLEAR = 6.5  # half the side of the square around a point that no label covers
Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels
Label = tuple[Text, list[Line]]  # with a leader line to its point, where it is far from it


class TradeOff(NamedTuple):
    """What a trade-off picture shows; `frontiers` (one a setup) and `knobs` (one a method) are
    indices of `rows`.
    """

    x: Column
    y: Column
    rows: list[Row]
    frontiers: list[list[int]]
    knobs: list[list[int]]
    runs: list[str | None]  # [None] if there is only one


def pareto_frontier(x: list[float], y: list[float], lower_is_better: bool) -> list[int]:
    """Indices of the points that no other point beats, by growing x, of which more is better.  A
    point is beaten by another that is at least as good on both axes and better on one (equal ones
    stay); points with NaN never count."""
    points = [
        (a, -b if lower_is_better else b, i)
        for i, (a, b) in enumerate(zip(x, y))
        if math.isfinite(a + b)
    ]
    points.sort(key=lambda p: (p[0], -p[1]))
    return [
        i
        for a, b, i in points
        if not any(c >= a and d >= b and (c, d) != (a, b) for c, d, _ in points)
    ]


def speed_column(rows: Sequence[Row]) -> Column:
    """The speed that pictures show: speedup, robust if the clock was disturbed; tokens / steps
    where no row has one.
    """
    timed = [row for row in rows if row.value("speedup") is not None]
    if any(map(disturbed, timed)) and all(
        row.value("robust_speedup") is not None for row in timed
    ):
        return COLUMN["robust_speedup"]
    return COLUMN["speedup" if timed else "step_compression"]


def quality_columns(rows: Sequence[Row]) -> list[Column]:
    """The y axes worth a picture: fidelity loss and every metric that a method with a speed trades
    for it.
    """
    x = speed_column(rows).key
    every = [COLUMN["fidelity_loss"], *map(metric_column, metric_keys(rows))]
    relaxed = [row for row in rows if row.lossless is not True and row.method != BASELINE]
    return [
        c
        for c in every
        if any(r.value(c.key) is not None and r.value(x) is not None for r in relaxed)
    ]


def trade_off(rows: Sequence[Row], quality: Column) -> TradeOff:
    """The relaxed rows with both figures and, of each run, the baseline and the fastest lossless
    row beside them.
    """
    speed, runs = speed_column(rows), runs_of(rows)
    rows = [row for row in rows if None not in (row.value(speed.key), row.value(quality.key))]
    lossless = [row for row in reversed(rows) if row.lossless is True and row.method != BASELINE]
    fastest = {
        run_of(row): row for row in sorted(lossless, key=lambda row: row.value(speed.key) or 0.0)
    }
    rows = [row for row in rows if row not in lossless or row in fastest.values()]
    frontiers, setups = [], [getattr(row, "setup", 1) for row in rows]
    # what was measured otherwise beats nothing
    for setup in dict.fromkeys(setups) if quality.better else ():
        group = [i for i in range(len(rows)) if setups[i] == setup]
        x, y = ([rows[i].value(key) or 0.0 for i in group] for key in (speed.key, quality.key))
        frontiers.append([group[i] for i in pareto_frontier(x, y, quality.better == "lower")])
    return TradeOff(speed, quality, rows, frontiers, knobs(rows), runs)


def knobs(rows: Sequence[Row]) -> list[list[int]]:
    """Rows that are one method at several values of one number, in its order: indices, two or more
    each.
    """
    lines: list[list[int]] = []
    for key in dict.fromkeys(
        k for row in rows for k, v in row.options.items() if type(v) in NUMBERS
    ):
        groups = defaultdict[object, list[int]](list)
        for i, row in enumerate(rows):
            if type(row.options.get(key)) in NUMBERS:
                others = sorted((k, str(v)) for k, v in row.options.items() if k != key)
                groups[run_of(row), row.method, str(others)].append(i)
        taken = {i for line in lines for i in line}
        for line in groups.values():
            if len({rows[i].options[key] for i in line}) > 1 and not taken & set(line):
                lines.append(sorted(line, key=lambda i: rows[i].options[key]))
    return lines


def short_names(data: TradeOff) -> list[str]:
    """Names for the picture: of points along an option, the last has the full name, the others
    only their value.
    """
    names = [name_of(row, data.runs) for row in data.rows]
    for line in data.knobs:
        parts = [names[i].split() for i in line]
        for i, part in zip(line[:-1], parts):
            names[i] = (
                " ".join(word for word in part if any(word not in other for other in parts))
                or names[i]
            )
    return names


def scatter(data: TradeOff, width: int) -> scene.Scene:
    """The picture of `trade_off`, ``width`` pixels wide."""
    title, quality = axis_title(data.x), axis_title(data.y)
    y = fitted(data.y, data.rows, (), 330 if width > scene.NARROW else 300, 8)
    numbers = max(scene.text_width(text) for _, text in y.ticks)
    turned = LINE * (len(scene.wrap(quality, y.begin - y.end + 10)) - 1)
    x = fitted(data.x, data.rows, (), 14 + turned + numbers + 10, width - 12)
    points = [
        (x(data.x.figure(row).value or 0.0), y(data.y.figure(row).value or 0.0))
        for row in data.rows
    ]
    stairs = [_stairs([points[i] for i in frontier]) for frontier in data.frontiers]
    lines = [tuple(points[i] for i in line) for line in data.knobs]
    bars = [error_bars(x, data.x, row, p[1]) + error_bars(y, data.y, row, p[0], True)
            for row, p in zip(data.rows, points)]  # fmt: skip
    drawn = [bar.points for items in bars for bar in items if isinstance(bar, Line)]
    inside = (x.begin + 1, 3, width - 3, y.begin - 2)
    labels, key = place_labels(points, short_names(data), [*stairs, *lines, *drawn], inside)
    groups = [Group(scene.frame(x, y, title, quality))]
    groups += [Group((Line(path, "frontier"),)) for path in stairs if len(path) > 1]
    groups += [
        Group((Line(path, "knob"),), colour(data.rows[i[0]].method))
        for path, i in zip(lines, data.knobs)
    ]
    for row, place, (text, leader), items in zip(data.rows, points, labels, bars):
        figures = f"{speed_name(data.x)} {data.x.cell(row)}, {data.y.title} {data.y.cell(row)}"
        items = [*items, *leader, mark(row, *place, data.runs), text]
        groups.append(Group(items, colour(row.method), f"{name_of(row, data.runs)}: {figures}"))
    top = y.begin + 36 + LINE * (len(scene.wrap(title, x.end - x.begin + 30)) - 1)
    signs = _signs(data) + [Sign(f"{number}  {name}") for number, name in key]
    return scene.with_legend(f"{data.y.title} against {title}", width, top, groups, signs)


def _stairs(corners: Sequence[Point]) -> tuple[Point, ...]:
    """The frontier: up or down at the earlier point, then across to the later one."""
    return (
        *corners[:1],
        *(corner for (x0, _), (x1, y1) in pairwise(corners) for corner in ((x0, y1), (x1, y1))),
    )


def _signs(data: TradeOff) -> list[Sign]:
    """The legend: families, shapes, lines and runs, as far as they are drawn."""
    rows, shapes = data.rows, {shape(row) for row in data.rows}
    intervals = any(
        column.figure(row).lo is not None for row in rows for column in (data.x, data.y)
    )
    signs = {
        Sign("lossless", "circle"): "circle" in shapes,
        Sign("relaxed", "diamond"): "diamond" in shapes,
        Sign("Pareto frontier", "frontier"): any(len(frontier) > 1 for frontier in data.frontiers),
        Sign("one method, other settings", "knob"): bool(data.knobs),
        Sign("95 % interval", "interval"): intervals,
    }
    return legend(rows, data.runs, [sign for sign, drawn in signs.items() if drawn])


# --- what the pictures of rows share ---


def speed_name(column: Column) -> str:
    """A column as a sentence names it."""
    names = {"speedup": "speedup over AR", "robust_speedup": "robust speedup over AR",
             "step_compression": "step compression (tokens / steps)"}  # fmt: skip
    return one_line(names.get(column.key, column.title), 60)


def axis_title(column: Column) -> str:
    return speed_name(column) + (f"  ({column.better} is better)" if column.better else "")


def fitted(
    column: Column, rows: Sequence[Row], also: tuple[float, ...], begin: float, end: float
) -> Axis:
    """An axis on pixels begin … end for a column's values and intervals, and for the values
    ``also``.
    """
    figures = [column.figure(row) for row in rows]
    ends = [(f.lo, f.hi) for f in figures if f.lo is not None and f.hi is not None]
    return scene.axis([*also, *(f.value or 0.0 for f in figures)], ends, begin, end)


def shape(row: Row) -> str:
    """Lossless methods are circles, all others diamonds."""
    return "circle" if row.lossless is True or row.method == BASELINE else "diamond"


def mark(row: Row, x: float, y: float, runs: Sequence[str | None]) -> Mark:
    """A row's point, filled as its run's are."""
    return Mark(x, y, shape(row), scene.FILLS[runs.index(run_of(row)) % len(scene.FILLS)])


def speed_mark(
    speed: Column, runs: Sequence[str | None], row: Row, at: Axis, y: float
) -> list[Item]:
    """A row's speed and its interval, at the height ``y``."""
    return [*error_bars(at, speed, row, y), mark(row, at(row.value(speed.key) or 0.0), y, runs)]


def error_bars(
    at: Axis, column: Column, row: Row, across: float, upright: bool = False
) -> list[Item]:
    """The interval of a figure with its value, at ``across`` of the other axis; arrow heads where
    it is cut.
    """
    value, low, high, *_ = column.figure(row)
    if value is None or low is None or high is None:
        return []
    low, high = min(low, value), max(high, value)
    paths = [[(at(min(max(end, at.low), at.high)), across) for end in (low, high)]]
    for beyond, end, other in (
        (low < at.low, at.begin, at.end),
        (high > at.high, at.end, at.begin),
    ):
        if beyond:
            back = end + math.copysign(5, other - end)
            paths.append([(back, across - 3), (end, across), (back, across + 3)])
    return [
        Line(tuple((y, x) if upright else (x, y) for x, y in path), "interval") for path in paths
    ]


def legend(rows: Sequence[Row], runs: Sequence[str | None], signs: Sequence[Sign]) -> list[Sign]:
    """The families of methods, then ``signs``, then the runs where there are several."""
    families = {family(row.method): colour(row.method) for row in rows}
    names = (
        [f"({i}) {one_line(run or '', 40)}" for i, run in enumerate(runs, 1)]
        if len(runs) > 1
        else []
    )
    fills = [Sign(name, "circle", fill=fill) for name, fill in zip(names, cycle(scene.FILLS))]
    return [*(Sign(name, "swatch", shade) for name, shade in families.items()), *signs, *fills]


# --- labels ---


def overlap(a: Box, b: Box) -> float:
    """Area that two boxes share, in pixels²."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, width) * max(0.0, height)


def box_of(text: Text) -> Box:
    """The rectangle that a text fills, a pixel of margin included."""
    width = scene.text_width(text.text)
    left = text.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor] * width
    return left - 1, text.y - LINE + 3.5, left + width + 1, text.y + 3.5


def place_labels(
    points: Sequence[Point], names: Sequence[str], lines: Sequence[Sequence[Point]], frame: Box
) -> tuple[list[Label], list[tuple[int, str]]]:
    """A label for every point, and the key: (number, name) of points whose names have no place
    within ``frame``.

    Labels touch neither each other nor a point; of such places they take the nearest that covers
    least of ``lines``.
    """
    marks: list[Box] = [(x - CLEAR, y - CLEAR, x + CLEAR, y + CLEAR) for x, y in points]
    covered = [box for line in lines for box in _boxes(line)]
    taken, labels, key = list(marks), dict[int, Label](), list[tuple[int, str]]()

    def best(i: int, text: str, far: bool = False) -> Label | None:
        """The place of the least price, which is distance and what it covers of lines; ``far``:
        any free place, else one that is nearer to its point than to any other by 4 pixels."""
        (x, y), found, least = points[i], None, math.inf
        for rank, (dx, dy, anchor) in enumerate(_places(far, frame)):
            label = Text(round(x + dx, 1), round(y + dy, 1), text, anchor=anchor)
            box = box_of(label)
            away = _gap(box, marks[i])
            price = 2.0 * away + 0.01 * rank
            inside = (
                box[0] >= frame[0]
                and box[1] >= frame[1]
                and box[2] <= frame[2]
                and box[3] <= frame[3]
            )
            if price >= least or not inside or any(overlap(box, other) > 0 for other in taken):
                continue
            doubtful = any(_gap(box, other) < away + 4 for other in marks[:i] + marks[i + 1 :])
            price += sum(overlap(box, line) for line in covered) + 20.0 * doubtful
            if price < least and (far or not doubtful):
                end = (min(max(x, box[0]), box[2]), min(max(y, box[1] + 2), box[3] - 2))
                leader = [Line(((x, y), end), "leader")] if doubtful or away > NEAR / 3 else []
                found, least = (label, leader), price
        return found

    crowd = [sum(math.dist(p, other) < 60 for other in points) for p in points]
    for i in sorted(range(len(points)), key=lambda i: (crowd[i], i)):
        label = best(i, names[i])
        if label is None:
            key.append((len(key) + 1, names[i]))
            label = best(i, str(len(key)), far=True)
        assert label is not None
        labels[i] = label
        taken.append(box_of(label[0]))
    return [labels[i] for i in range(len(points))], key


def _gap(a: Box, b: Box) -> float:
    """Pixels between two boxes."""
    return math.hypot(max(a[0] - b[2], b[0] - a[2], 0.0), max(a[1] - b[3], b[1] - a[3], 0.0))


def _places(far: bool, frame: Box) -> list[tuple[float, float, Anchor]]:
    """(dx, dy, anchor) of a label's baseline from its point, near places first; ``far``: anywhere
    in the frame.
    """
    middle = LINE / 2 - 3.5
    places: list[tuple[float, float, Anchor]] = []
    for r in (8, 12, 18, 26, NEAR):
        places += [
            (r, middle, "start"),
            (0, -r, "middle"),
            (0, r + LINE - 3.5, "middle"),
            (-r, middle, "end"),
        ]
        for side in (-0.8 * r, 0.8 * r):
            places += [(0.7 * r, middle + side, "start"), (-0.7 * r, middle + side, "end")]
    if far:
        wide, high = int(frame[2] - frame[0]), int(frame[3] - frame[1])
        places += [
            (dx, dy, "middle") for dx in range(-wide, wide, 12) for dy in range(-high, high, 12)
        ]
    return places


def _boxes(line: Sequence[Point]) -> Iterator[Box]:
    """A polyline as small boxes, thin where it is horizontal or upright."""
    for (x0, y0), (x1, y1) in pairwise(line):
        pieces = 1 if x0 == x1 or y0 == y1 else 1 + int(math.dist((x0, y0), (x1, y1)) / 6)
        ends = [
            (x0 + k / pieces * (x1 - x0), y0 + k / pieces * (y1 - y0)) for k in range(pieces + 1)
        ]
        for (xa, ya), (xb, yb) in pairwise(ends):
            yield min(xa, xb) - 1, min(ya, yb) - 1, max(xa, xb) + 1, max(ya, yb) + 1
