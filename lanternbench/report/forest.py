"""Methods as lines of a picture: speeds with intervals, sorted (a forest plot), and the time of a step by phase."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.summaries import Row
from lanternbench.report import pareto, scene
from lanternbench.report.columns import COLUMN, name_of, runs_of
from lanternbench.report.palette import PHASES, colour
from lanternbench.report.scene import LINE, Axis, Bar, Group, Item, Line, Scene, Sign, Text, paragraph, text_width, wrap

LOSS = COLUMN["fidelity_loss"]


class Entry(NamedTuple):
    """A line of a list: its name, the text right of it, its colour, its description on the page, and its drawing.

    draw: from the axis and the height of its middle, and None a heading's.
    """

    name: str
    texts: tuple[str, ...] = ()
    colour: str = ""
    hint: str = ""
    draw: Callable[[Axis, float], list[Item]] | None = None


def forest(rows: Sequence[Row], width: int) -> Scene | None:
    """Every method's speed with its interval, fastest first, lossless above relaxed; None without a speed."""
    speed, runs = pareto.speed_column(rows), runs_of(rows)
    rows = [r for r in rows if r.value(speed.key) is not None and BASELINE not in (r.method, r.label)]
    rows = sorted(rows, key=lambda row: -(row.value(speed.key) or 0.0))
    if not rows:
        return None
    relaxed = [row for row in rows if row.lossless is not True]
    losses = any(row.value(LOSS.key) is not None for row in relaxed)
    heading = "relaxed" if all(row.lossless is not None for row in relaxed) else "relaxed or not stated"
    entries = []
    for name, group in (("lossless", [row for row in rows if row.lossless is True]), (heading, relaxed)):
        with_loss = losses and group is relaxed
        entries += [Entry(name, ("", LOSS.title) if with_loss else ())] if group else []
        for row in group:
            hint = f"{name_of(row, runs)}: {pareto.speed_name(speed)} {speed.cell(row)}"
            if with_loss and row.value(LOSS.key) is not None:
                hint += f", fidelity loss {LOSS.cell(row)}"
            loss = (LOSS.value(row) if with_loss else "",) if losses else ()

            def draw(at: Axis, y: float, row: Row = row) -> list[Item]:
                return [
                    *pareto.error_bars(at, speed, row, y),
                    pareto.mark(row, at(row.value(speed.key) or 0.0), y, runs),
                ]

            entries.append(Entry(name_of(row, runs), (speed.cell(row), *loss), colour(row.method), hint, draw))
    values = [float(row.value(speed.key) or 0.0) for row in rows]
    ends = [(f.lo, f.hi) for row in rows if (f := row.figure(speed.key)).lo is not None and f.hi is not None]
    signs = [*pareto.family_signs(rows), scene.stroke("ar = 1", "reference"), *pareto.run_signs(runs)]
    return listed(entries, partial(scene.axis, [1.0, *values], ends), 1.0, pareto.axis_title(speed), signs, width)


def phases(rows: Sequence[tuple[str, str, dict[str, float]]], width: int) -> Scene | None:
    """The mean step of every method as a bar of its phases: rows of (name, method, milliseconds by phase)."""
    rows = [row for row in rows if sum(row[2].values()) > 0]
    if not rows:
        return None
    entries = []
    for name, method, parts in rows:
        each = ", ".join(f"{phase} {ms:.2f} ms" for phase, ms in parts.items())
        whole = f"{sum(parts.values()):.1f} ms"
        entries.append(Entry(name, (whole,), colour(method), f"{name}: {whole} a step: {each}", partial(_stack, parts)))
    most = max(sum(parts.values()) for _, _, parts in rows)
    signs = [scene.swatch(phase, shade, phase) for phase, shade in PHASES.items()]
    return listed(entries, partial(Axis, 0.0, 1.04 * most), None, "milliseconds of a step, mean", signs, width)


def _stack(parts: dict[str, float], at: Axis, y: float) -> list[Item]:
    bars: list[Item] = []
    begin = 0.0
    for phase, ms in parts.items():
        bars.append(Bar(at(begin), y - 5, at(begin + ms) - at(begin), 10, phase))
        begin += ms
    return bars


def listed(entries: Sequence[Entry], to_axis: Callable[[float, float], Axis], reference: float | None, title: str,
           signs: list[Sign], width: int) -> Scene:  # fmt: skip
    """Entries below each other: beside their drawing on a wide picture, above it on a narrow one."""
    stacked = width <= scene.NARROW
    columns = max(len(entry.texts) for entry in entries)
    widths = [max(text_width(e.texts[i]) for e in entries if e.draw and len(e.texts) > i) + 14 for i in range(columns)]
    ends = [width - 6 - sum(widths[i + 1 :]) for i in range(columns)]
    left = min(max(text_width(entry.name) for entry in entries) + 8, 0.34 * width)
    at = to_axis(14.0, width - 14.0) if stacked else to_axis(left + 16, width - sum(widths) - 8)
    groups, strips, y = [], [], 6.0  # the stretches of the axis that its lines cross
    for entry in entries:
        lines, heading = wrap(entry.name, width - 12 - sum(widths) if stacked else left), entry.draw is None
        items = paragraph(lines, 6, y + LINE - 3, "heading" if heading else "name")
        high = len(lines) * LINE
        base = y + (LINE if stacked else (high + LINE) / 2) - 3
        items += [Text(end, base, text, "legend" if heading else "name", "end") for text, end in zip(entry.texts, ends)]
        if entry.draw:
            items += entry.draw(at, y + high + 6 if stacked else y + high / 2 + 1)
            strips.append((y + high - 1, y + high + 13) if stacked else (y - 2, y + high + 5))
            high += 14 if stacked else 3
        groups.append(Group(items, entry.colour, entry.hint))
        y += high + 4
    items = []
    for x, text in at.ticks:
        items += [*(Line(((x, a), (x, b)), "grid") for a, b in strips), Text(x, y + 13, text, "tick", "middle")]
    if reference is not None:
        items += [Line(((at(reference), a), (at(reference), b)), "reference") for a, b in strips]
    middle = (at.begin + at.end) / 2
    lines = wrap(title, min(middle, width - middle) * 2 - 12)
    items += paragraph(lines, middle, y + 30, "title", "middle")
    return scene.with_legend(title, width, y + 36 + LINE * (len(lines) - 1), [Group(items), *groups], signs)
