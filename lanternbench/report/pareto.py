"""The trade-off of speed and quality: the Pareto frontier, a line per method along its knob, and their picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summaries import Row
from lanternbench.report.columns import BASE, Column, disturbed, metric_column, metric_keys
from lanternbench.report.labels import place_labels
from lanternbench.report.palette import colour, family
from lanternbench.report.scene import (
    FILLS,
    LINE,
    NARROW,
    Axis,
    Group,
    Item,
    Line,
    Mark,
    Point,
    Scene,
    Sign,
    Text,
    axis,
    frame,
    interval,
    legend,
    point,
    round_numbers,
    stroke,
    swatch,
    text_width,
    upright,
    wrap,
)  # fmt: skip
from lanternbench.utils.text import one_line

COLUMN = {column.key: column for column in BASE}


class Spot(NamedTuple):
    """A row of the picture: its name, the run it is of (from 0), and its two figures."""

    row: Row
    name: str
    run: int
    x: Estimate
    y: Estimate


class TradeOff(NamedTuple):
    """What a trade-off picture shows; `frontiers` (one a setup) and `knobs` (one a method) are indices of `spots`."""

    x: Column
    y: Column
    spots: list[Spot]
    frontiers: list[list[int]]
    knobs: list[list[int]]
    runs: list[str | None]  # one without a name if there is only one


def pareto_frontier(x: list[float], y: list[float], lower_is_better: bool) -> list[int]:
    """Indices of the points that no other point beats, by growing x.

    x is better when higher; y when higher, or lower if `lower_is_better`. A point is beaten by another that is at
    least as good on both axes and better on one; equal points stay together. Points with NaN never count.
    """
    sign = -1.0 if lower_is_better else 1.0
    points = [(a, sign * b, i) for i, (a, b) in enumerate(zip(x, y)) if math.isfinite(a) and math.isfinite(b)]

    def beaten(a: float, b: float) -> bool:
        return any(c >= a and d >= b and (c > a or d > b) for c, d, _ in points)

    return [i for a, b, i in sorted(points, key=lambda p: (p[0], -p[1])) if not beaten(a, b)]


def speed_column(rows: Sequence[Row]) -> Column:
    """The speed that pictures show: speedup; the robust one if the clock was disturbed; else step compression.

    Without a speedup on any row (no baseline, or nothing was timed) that is tokens / steps.
    """
    timed = [row for row in rows if row.value("speedup") is not None]
    if any(map(disturbed, timed)) and all(row.value("robust_speedup") is not None for row in timed):
        return COLUMN["robust_speedup"]
    return COLUMN["speedup" if timed else "step_compression"]


def quality_columns(rows: Sequence[Row]) -> list[Column]:
    """The y axes worth a picture: fidelity loss and every metric that a method with a speed trades for it."""
    x = speed_column(rows).key
    every = [COLUMN["fidelity_loss"], *map(metric_column, metric_keys(rows))]
    relaxed = [row for row in rows if row.lossless is not True and row.method != BASELINE]
    return [c for c in every if any(r.value(c.key) is not None and r.value(x) is not None for r in relaxed)]


def trade_off(rows: Sequence[Row], quality: Column) -> TradeOff:
    """The relaxed rows with both figures and, of each run, the baseline and the fastest lossless row beside them."""
    speed, runs = speed_column(rows), runs_of(rows)
    there = [r for r in rows if r.value(speed.key) is not None and r.value(quality.key) is not None]
    best: dict[str | None, Row] = {}
    for row in there:
        if row.lossless is True and row.method != BASELINE:
            run = getattr(row, "run", None)
            best[run] = max(best.get(run, row), row, key=lambda r: r.value(speed.key) or 0.0)
    shown = [r for r in there if r.lossless is not True or r.method == BASELINE or r in best.values()]
    spots = [
        Spot(row, name_of(row, runs), runs.index(getattr(row, "run", None)),
             row.figure(speed.key), row.figure(quality.key))
        for row in shown
    ]  # fmt: skip
    frontiers = []
    setups = [getattr(row, "setup", 1) for row in shown]
    for setup in dict.fromkeys(setups) if quality.better else ():  # what was measured otherwise beats nothing
        own = [i for i, one in enumerate(setups) if one == setup]
        x, y = ([float(getattr(spots[i], a).value) for i in own] for a in "xy")
        frontiers.append([own[i] for i in pareto_frontier(x, y, quality.better == "lower")])
    return TradeOff(speed, quality, spots, frontiers, knobs(shown), runs)


def name_of(row: Row, runs: Sequence[str | None]) -> str:
    """A row's label, with its run's number where there are several."""
    number = f" ({runs.index(getattr(row, 'run', None)) + 1})" if len(runs) > 1 else ""
    return one_line(row.label, 60) + number


def knobs(rows: Sequence[Row]) -> list[list[int]]:
    """Rows that are one method at several values of one number, in its order: indices, two or more each."""
    found: list[list[int]] = []
    for key in dict.fromkeys(k for row in rows for k, v in row.options.items() if _number(v)):
        groups: dict[object, list[int]] = {}
        for i, row in enumerate(rows):
            if _number(row.options.get(key)):
                rest = sorted((k, str(v)) for k, v in row.options.items() if k != key)
                groups.setdefault((getattr(row, "run", None), row.method, str(rest)), []).append(i)
        taken = {i for line in found for i in line}
        for line in groups.values():
            if len({rows[i].options[key] for i in line}) > 1 and not taken & set(line):
                found.append(sorted(line, key=lambda i: rows[i].options[key]))
    return found


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def short_names(data: TradeOff) -> list[str]:
    """Names as the picture has them: along a knob the last point has the whole name, the others their own part."""
    names = [spot.name for spot in data.spots]
    for line in data.knobs:
        parts = [data.spots[i].name.split() for i in line]
        for i, words in zip(line[:-1], parts):
            names[i] = " ".join(w for w in words if any(w not in other for other in parts)) or names[i]
    return names


def scatter(data: TradeOff, width: int) -> Scene:
    """The picture of `trade_off`, ``width`` pixels wide."""
    x, y = _axes(data, width)
    points: list[Point] = [(x(s.x.value or 0.0), y(s.y.value or 0.0)) for s in data.spots]
    stairs = [_stairs([points[i] for i in frontier]) for frontier in data.frontiers]
    lines = [tuple(points[i] for i in line) for line in data.knobs]
    bars = [_bars(spot, place, x, y) for spot, place in zip(data.spots, points)]
    drawn = [line.points for items in bars for line in items if isinstance(line, Line)]
    labels, key = place_labels(points, short_names(data), [*stairs, *lines, *drawn],
                               (x.begin + 1, 3, width - 3, y.begin - 2))  # fmt: skip
    titles = [axis_title(column) for column in (data.x, data.y)]
    groups = [Group(tuple(frame(x, y, *titles)))]
    groups += [Group((Line(path, "frontier"),)) for path in stairs if len(path) > 1]
    groups += [Group((Line(path, "knob"),), colour(data.spots[i[0]].row.method)) for path, i in zip(lines, data.knobs)]
    for spot, place, label, items in zip(data.spots, points, labels, bars):
        leader: list[Item] = [Line(label.leader, "leader")] if label.leader else []
        figures = f"{titles[0].split('  ')[0]} {data.x.cell(spot.row)}, {data.y.title} {data.y.cell(spot.row)}"
        mark = Mark(*place, shape(spot.row), FILLS[spot.run % len(FILLS)])
        text = Text(label.x, label.y, label.text, "label", label.anchor)
        groups.append(Group((*items, *leader, mark, text), colour(spot.row.method), f"{spot.name}: {figures}"))
    top = y.begin + 36 + LINE * (len(wrap(titles[0], x.end - x.begin + 30)) - 1)
    below, bottom = legend(_signs(data) + [(f"{n}  {name}", "", None) for n, name in key], 6, width - 6, top)
    return Scene(f"{data.y.title} against {titles[0]}", width, bottom + 6, (*groups, *below))


def axis_title(column: Column) -> str:
    """A column as the title of an axis."""
    names = {"speedup": "speedup over AR", "robust_speedup": "robust speedup over AR",
             "step_compression": "step compression (tokens / steps)"}  # fmt: skip
    arrow = {"higher": "  (higher is better)", "lower": "  (lower is better)", "": ""}[column.better]
    return one_line(names.get(column.key, column.title), 60) + arrow


def shape(row: Row) -> str:
    """Lossless methods are circles, all others diamonds."""
    return "circle" if row.lossless is True or row.method == BASELINE else "diamond"


def _axes(data: TradeOff, width: int) -> tuple[Axis, Axis]:
    height = 330 if width > NARROW else 300
    ends = [[(s.lo, s.hi) for s in part if s.lo is not None and s.hi is not None]
            for part in ([s.x for s in data.spots], [s.y for s in data.spots])]  # fmt: skip
    y = axis([s.y.value or 0.0 for s in data.spots], ends[1], height, 8)
    room = max(text_width(f"{tick:g}") for tick in round_numbers(y.low, y.high))
    lines = len(wrap(axis_title(data.y), y.begin - y.end + 10))
    return axis([s.x.value or 0.0 for s in data.spots], ends[0], 14 + LINE * (lines - 1) + room + 10, width - 12), y


def _bars(spot: Spot, place: Point, x: Axis, y: Axis) -> list[Item]:
    """The intervals of both figures, as far as they are known; one need not hold its value."""
    found: list[Item] = []
    for at, figure, across, draw in ((x, spot.x, place[1], interval), (y, spot.y, place[0], upright)):
        if figure.lo is not None and figure.hi is not None and figure.value is not None:
            found += draw(at, min(figure.lo, figure.value), max(figure.hi, figure.value), across)
    return found


def _stairs(corners: Sequence[Point]) -> tuple[Point, ...]:
    """The frontier: up or down at the earlier point, then across to the later one."""
    path = list(corners[:1])
    for (x0, _), (x1, y1) in pairwise(corners):
        path += [(x0, y1), (x1, y1)]
    return tuple(path)


def _signs(data: TradeOff) -> list[Sign]:
    """The legend: families, shapes, lines and runs, as far as they are drawn."""
    shapes = {shape(s.row) for s in data.spots}
    lines = {
        "frontier": any(len(frontier) > 1 for frontier in data.frontiers),
        "knob": bool(data.knobs),
        "interval": any(s.x.lo is not None or s.y.lo is not None for s in data.spots),
    }
    names = {"circle": "lossless", "diamond": "relaxed", "frontier": "Pareto frontier",
             "knob": "one method, other settings", "interval": "95 % interval"}  # fmt: skip
    found = [point(names[form], form) for form in ("circle", "diamond") if form in shapes]
    found += [stroke(names[role], role) for role, drawn in lines.items() if drawn]
    return family_signs([s.row for s in data.spots]) + found + run_signs(data.runs)


def family_signs(rows: Sequence[Row]) -> list[Sign]:
    """The legend's entries of the families of methods."""
    return [swatch(name, shade) for name, shade in {family(r.method): colour(r.method) for r in rows}.items()]


def run_signs(runs: Sequence[str | None]) -> list[Sign]:
    """The legend's entries of several runs."""
    named = enumerate(runs if len(runs) > 1 else [])
    return [point(f"({i + 1}) {one_line(run or '', 40)}", "circle", FILLS[i % len(FILLS)]) for i, run in named]


def runs_of(rows: Sequence[Row]) -> list[str | None]:
    """The names of the runs that rows are of, in their order."""
    return list(dict.fromkeys(getattr(row, "run", None) for row in rows))
