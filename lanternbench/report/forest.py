"""Methods as lines of a picture: speeds with intervals, sorted (a forest plot), and the time of a step by phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.summaries import Row
from lanternbench.report.palette import PHASES, colour
from lanternbench.report.pareto import (
    COLUMN,
    axis_title,
    family_signs,
    name_of,
    run_signs,
    runs_of,
    shape,
    speed_column,
)
from lanternbench.report.scene import (
    FILLS,
    LINE,
    NARROW,
    Axis,
    Bar,
    Group,
    Item,
    Line,
    Mark,
    Scene,
    Sign,
    Text,
    axis,
    interval,
    legend,
    stroke,
    swatch,
    text_width,
    wrap,
)  # fmt: skip

HEADINGS = {True: "lossless", False: "relaxed", None: "relaxed or not stated"}
LOSS = COLUMN["fidelity_loss"]


class Entry(NamedTuple):
    """A line of a list: its name, what stands right of it, its colour, what the page says, and its drawing.

    draw: from the axis and the height of its middle, and None a heading's.
    """

    name: str
    texts: tuple[str, ...] = ()
    colour: str = ""
    said: str = ""
    draw: Callable[[Axis, float], list[Item]] | None = None


def forest(rows: Sequence[Row], width: int) -> Scene | None:
    """Every method's speed with its interval, fastest first, lossless above relaxed; None without a speed."""
    speed, runs = speed_column(rows), runs_of(rows)
    shown = [r for r in rows if r.value(speed.key) is not None and BASELINE not in (r.method, r.label)]
    if not shown:
        return None
    shown.sort(key=lambda row: -(row.value(speed.key) or 0.0))
    lossless = [row for row in shown if row.lossless is True]
    relaxed = [row for row in shown if row.lossless is not True]
    losses = any(row.value(LOSS.key) is not None for row in relaxed)
    entries = []
    for group in (lossless, relaxed):
        if group:
            stated = all(row.lossless is not None for row in group)
            heads = ("", LOSS.title) if losses and group is relaxed else ()
            entries.append(Entry(HEADINGS[group is lossless if stated else None], heads))
        for row in group:
            said = f"{name_of(row, runs)}: {axis_title(speed).split('  ')[0]} {speed.cell(row)}"
            loss = (LOSS.value(row) if group is relaxed else "",) if losses else ()
            if group is relaxed and row.value(LOSS.key) is not None:
                said += f", fidelity loss {LOSS.cell(row)}"
            draw = partial(_estimate, row, speed.key, runs.index(getattr(row, "run", None)))
            entries.append(Entry(name_of(row, runs), (speed.cell(row), *loss), colour(row.method), said, draw))
    values = [float(row.value(speed.key) or 0.0) for row in shown]
    ends = [(f.lo, f.hi) for row in shown if (f := row.figure(speed.key)).lo is not None and f.hi is not None]
    signs = [*family_signs(shown), stroke("ar = 1", "reference"), *run_signs(runs)]
    return listed(entries, partial(axis, [1.0, *values], ends), 1.0, axis_title(speed), signs, width)


def phases(rows: Sequence[tuple[str, str, dict[str, float]]], width: int) -> Scene | None:
    """The mean step of every method as a bar of its phases: rows of (name, method, milliseconds by phase)."""
    shown = [(name, method, parts) for name, method, parts in rows if sum(parts.values()) > 0]
    if not shown:
        return None
    entries = []
    for name, method, parts in shown:
        told = ", ".join(f"{phase} {ms:.2f} ms" for phase, ms in parts.items())
        whole = f"{sum(parts.values()):.1f} ms"
        entries.append(Entry(name, (whole,), colour(method), f"{name}: {whole} a step: {told}", partial(_stack, parts)))
    most = max(sum(parts.values()) for _, _, parts in shown)
    signs = [swatch(phase, shade, phase) for phase, shade in PHASES.items()]
    title = "milliseconds of a step, mean"
    return listed(entries, lambda begin, end: Axis(0.0, 1.04 * most, begin, end), None, title, signs, width)


def listed(entries: Sequence[Entry], to_axis: Callable[[float, float], Axis], reference: float | None, title: str,
           signs: list[Sign], width: int) -> Scene:  # fmt: skip
    """Entries below each other: beside their drawing on a wide picture, above it on a narrow one."""
    stacked = width <= NARROW
    columns = max(len(entry.texts) for entry in entries)
    widths = [max(text_width(e.texts[i]) for e in entries if e.draw and len(e.texts) > i) + 14 for i in range(columns)]
    ends = [width - 6 - sum(widths[i + 1 :]) for i in range(columns)]
    room = min(max(text_width(entry.name) for entry in entries) + 8, 0.34 * width)
    names = [wrap(entry.name, width - 12 - sum(widths) if stacked else room) for entry in entries]
    at = to_axis(14.0, width - 14.0) if stacked else to_axis(room + 16, width - sum(widths) - 8)
    groups, strips, y = [], [], 6.0  # the stretches of the axis that its lines cross
    for entry, lines in zip(entries, names, strict=True):
        role = "heading" if entry.draw is None else "name"
        items: list[Item] = [Text(6, y + (i + 1) * LINE - 3, line, role) for i, line in enumerate(lines)]
        high = len(lines) * LINE
        base = y + (LINE if stacked else (high + LINE) / 2) - 3
        items += [Text(end, base, text, "legend" if entry.draw is None else "name", "end")
                  for text, end in zip(entry.texts, ends)]  # fmt: skip
        if entry.draw is not None:
            items += entry.draw(at, y + high + 6 if stacked else y + high / 2 + 1)
            strips.append((y + high - 1, y + high + 13) if stacked else (y - 2, y + high + 5))
            high += 14 if stacked else 3
        groups.append(Group(tuple(items), entry.colour, entry.said))
        y += high + 4
    axis_items: list[Item] = []
    for x, text in at.ticks:
        axis_items += [*(Line(((x, a), (x, b)), "grid") for a, b in strips), Text(x, y + 13, text, "tick", "middle")]
    if reference is not None:
        axis_items += [Line(((at(reference), a), (at(reference), b)), "reference") for a, b in strips]
    middle = (at.begin + at.end) / 2
    wide = min(middle, width - middle) * 2 - 12
    for i, line in enumerate(wrap(title, wide)):
        axis_items.append(Text(middle, y + 30 + i * LINE, line, "title", "middle"))
    below, bottom = legend(signs, 6, width - 6, y + 36 + LINE * (len(wrap(title, wide)) - 1))
    return Scene(title, width, bottom + 6, (Group(tuple(axis_items)), *groups, *below))


def _estimate(row: Row, key: str, run: int, at: Axis, y: float) -> list[Item]:
    value, low, high, *_ = row.figure(key)
    assert value is not None
    bars = interval(at, min(low, value), max(high, value), y) if low is not None and high is not None else []
    return [*bars, Mark(at(value), y, shape(row), FILLS[run % len(FILLS)])]


def _stack(parts: dict[str, float], at: Axis, y: float) -> list[Item]:
    found: list[Item] = []
    begin = 0.0
    for phase, ms in parts.items():
        found.append(Bar(at(begin), y - 5, at(begin + ms) - at(begin), 10, phase))
        begin += ms
    return found
