"""The pictures of a report: speeds with intervals (a forest plot), trade-offs, acceptance, and the
phases of a step.

Each is drawn for a wide page, and for a phone or one column of a paper.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from lanternbench.measure.figures import BASELINE, Steps
from lanternbench.measure.summary import Row
from lanternbench.report import pareto, scene
from lanternbench.report.columns import COLUMN, name_of, runs_of
from lanternbench.report.scene import (
    LINE,
    PHASES,
    Axis,
    Bar,
    Group,
    Item,
    Line,
    Mark,
    Scene,
    Sign,
    Text,
    colour,
)
from lanternbench.report.tables import position_rates, positions

LOSS = COLUMN["fidelity_loss"]
HEIGHT = 64  # pixels of a small plot


class Picture(NamedTuple):
    """``key`` is its file's name, ``title`` what the page's choice calls it."""

    key: str
    title: str
    wide: Scene
    narrow: Scene


def _picture(key: str, title: str, draw: Callable[[int], Scene | None]) -> list[Picture]:
    """The picture that ``draw`` makes for a width, if any."""
    wide, narrow = draw(scene.WIDE), draw(scene.NARROW)
    return [Picture(key, title, wide, narrow)] if wide and narrow else []


def speed_pictures(rows: Sequence[Row]) -> list[Picture]:
    """Speed as a forest plot, and speed against every quality that a relaxed method traded for it."""
    name = pareto.speed_name(pareto.speed_column(rows))
    pictures = _picture("speed", name[0].upper() + name[1:], partial(forest, rows))
    for quality in pareto.quality_columns(rows):
        # the metric's name comes from a file: nothing but a file name may come of it
        stem = "pareto-" + re.sub(r"[^A-Za-z0-9_-]+", "_", quality.key)[:60]
        draw = partial(pareto.scatter, pareto.trade_off(rows, quality))
        pictures += _picture(stem, f"Speed against {quality.title}", draw)
    return pictures


def step_pictures(rows: Sequence[Row], steps: Sequence[Steps | None]) -> list[Picture]:
    """Acceptance by position, and the time of a step by phase, from the seconds of each row's
    steps.
    """
    runs, times = runs_of(rows), []
    for row, each in zip(rows, steps):
        if each is not None and (count := sum(each.histogram())):
            parts = {phase: 1000 * each.phases.get(phase, 0.0) / count for phase in PHASES}
            times.append((name_of(row, runs), row.method, parts))
    acceptance = _picture(
        "acceptance", "Acceptance by position of the draft", partial(panels, rows)
    )
    return acceptance + _picture("phases", "Time of a step by phase", partial(phases, times))


def panels(rows: Sequence[Row], width: int) -> Scene | None:
    """A small plot per method: bars of per-position rates, a line of conditional ones; None if no
    row drafts.
    """
    drafting, runs = [row for row in rows if row.acceptance], runs_of(rows)
    if not drafting:
        return None
    across = 2 if width <= scene.NARROW else 4
    each = (width - 12 - 14 * (across - 1)) / across
    groups: list[Group] = []
    y = 4.0
    for begin in range(0, len(drafting), across):
        line = drafting[begin : begin + across]
        titles = [scene.wrap(name_of(row, runs), each) for row in line]
        top = y + LINE * max(map(len, titles)) + 10
        lefts = (6 + i * (each + 14) for i in range(across))
        groups += [
            _panel(row, title, left, each, top) for row, title, left in zip(line, titles, lefts)
        ]
        y = top + HEIGHT + 24
    signs = [Sign("accepted, with all before it (joint)", "share"),
             Sign("accepted, given all before it were (conditional)", "curve"),
             Sign("across: position in the draft")]  # fmt: skip
    return scene.with_legend("acceptance by position of the draft", width, y, groups, signs)


def _panel(row: Row, title: Sequence[str], left: float, width: float, top: float) -> Group:
    def height(share: float) -> float:
        return round(top + (1 - share) * HEIGHT, 1)

    count = max(5, positions([row]))  # across
    rates = position_rates(row)[:count]
    items = scene.paragraph(title, left, top - 11 - LINE * (len(title) - 1), "name")
    for share, text in ((0.0, "0"), (0.5, "½"), (1.0, "1")):
        y = top + (1 - share) * HEIGHT
        items += [
            Line(((left + 12, y), (left + width, y)), "grid"),
            Text(left + 9, y + 4, text, "tick", "end"),
        ]
    step = (width - 12) / count
    at = [left + 12 + step * (i + 0.5) for i in range(count)]
    for x, (joint, _) in zip(at, rates):
        size = (round(0.72 * step, 1), round(joint * HEIGHT, 1))
        items.append(Bar(round(x - 0.36 * step, 1), height(joint), *size, "share"))
    points = tuple((round(x, 1), height(conditional)) for x, (_, conditional) in zip(at, rates))
    curve: list[Item] = [Line(points, "curve")] if len(points) > 1 else []
    items += [*curve, *(Mark(*point, "small") for point in points)]
    every = max(1, -(-count * (12 if count < 10 else 20) // int(width - 12)))
    items += [
        Text(round(at[i], 1), top + HEIGHT + 14, str(i + 1), "tick", "middle")
        for i in range(0, count, every)
    ]
    each = ", ".join(
        f"{i}: {joint:.0%} ({conditional:.0%})" for i, (joint, conditional) in enumerate(rates, 1)
    )
    return Group(items, colour(row.method), f"{row.label}: {each}")


def write_pictures(pictures: Sequence[Picture], out: Path) -> list[Path]:
    """Each as .png, .svg and .pdf in ``out``, a column of a paper wide."""
    kinds = ("png", "svg", "pdf")
    return [
        file
        for p in pictures
        for file in scene.save(partial(scene.scene_figure, p.narrow), out / p.key, kinds)
    ]


class Entry(NamedTuple):
    """A line of a list."""

    name: str
    texts: tuple[str, ...] = ()  # right of it
    colour: str = ""
    hint: str = ""  # its description on the page
    # from the axis and its middle's height; a heading has none
    draw: Callable[[Axis, float], list[Item]] | None = None


def forest(rows: Sequence[Row], width: int) -> Scene | None:
    """Every method's speed with its interval, fastest first, lossless above relaxed; None without
    a speed.
    """
    speed, runs = pareto.speed_column(rows), runs_of(rows)
    rows = [
        r for r in rows if r.value(speed.key) is not None and BASELINE not in (r.method, r.label)
    ]
    rows = sorted(rows, key=lambda row: -(row.value(speed.key) or 0.0))
    if not rows:
        return None
    lossless, relaxed = (
        [row for row in rows if (row.lossless is True) is kind] for kind in (True, False)
    )
    losses = any(row.value(LOSS.key) is not None for row in relaxed)
    heading = (
        "relaxed" if all(row.lossless is not None for row in relaxed) else "relaxed or not stated"
    )
    entries = []
    for name, group in (("lossless", lossless), (heading, relaxed)):
        with_loss = losses and group is relaxed
        entries += [Entry(name, ("", LOSS.title) if with_loss else ())] if group else []
        for row in group:
            hint = f"{name_of(row, runs)}: {pareto.speed_name(speed)} {speed.cell(row)}"
            if with_loss and row.value(LOSS.key) is not None:
                hint += f", fidelity loss {LOSS.cell(row)}"
            loss = (LOSS.value(row) if with_loss else "",) if losses else ()
            draw = partial(pareto.speed_mark, speed, runs, row)
            entries.append(
                Entry(name_of(row, runs), (speed.cell(row), *loss), colour(row.method), hint, draw)
            )
    signs = pareto.legend(rows, runs, [Sign("ar = 1", "reference")])
    return listed(
        entries,
        partial(pareto.fitted, speed, rows, (1.0,)),
        1.0,
        pareto.axis_title(speed),
        signs,
        width,
    )


def phases(rows: Sequence[tuple[str, str, dict[str, float]]], width: int) -> Scene | None:
    """The mean step of every method as a bar of its phases: rows of (name, method, milliseconds by
    phase).
    """
    rows = [row for row in rows if sum(row[2].values()) > 0]
    if not rows:
        return None
    entries = []
    for name, method, parts in rows:
        each = ", ".join(f"{phase} {ms:.2f} ms" for phase, ms in parts.items())
        whole = f"{sum(parts.values()):.1f} ms"
        entries.append(
            Entry(
                name,
                (whole,),
                colour(method),
                f"{name}: {whole} a step: {each}",
                partial(_stack, parts),
            )
        )
    most = max(sum(parts.values()) for _, _, parts in rows)
    signs = [Sign(phase, phase, shade) for phase, shade in PHASES.items()]
    return listed(
        entries,
        partial(Axis, 0.0, 1.04 * most),
        None,
        "milliseconds of a step, mean",
        signs,
        width,
    )


def _stack(parts: dict[str, float], at: Axis, y: float) -> list[Item]:
    spans = pairwise(accumulate(parts.values(), initial=0.0))
    return [
        Bar(at(begin), y - 5, at(end) - at(begin), 10, phase)
        for phase, (begin, end) in zip(parts, spans)
    ]


def listed(entries: Sequence[Entry], to_axis: Callable[[float, float], Axis], reference: float | None, title: str,
           signs: list[Sign], width: int) -> Scene:  # fmt: skip
    """Entries below each other: beside their drawing on a wide picture, above it on a narrow one."""
    stacked = width <= scene.NARROW
    widths = [
        max(map(scene.text_width, texts)) + 14
        for texts in zip(*(e.texts for e in entries if e.draw))
    ]
    ends = [width - 6 - sum(widths[i + 1 :]) for i in range(len(widths))]
    left = min(max(scene.text_width(entry.name) for entry in entries) + 8, 0.34 * width)
    at = to_axis(14.0, width - 14.0) if stacked else to_axis(left + 16, width - sum(widths) - 8)
    groups, strips, y = [], [], 6.0  # the stretches of the axis that its lines cross
    for entry in entries:
        lines, heading = (
            scene.wrap(entry.name, width - 12 - sum(widths) if stacked else left),
            entry.draw is None,
        )
        items = scene.paragraph(lines, 6, y + LINE - 3, "heading" if heading else "name")
        high = len(lines) * LINE
        base = y + (LINE if stacked else (high + LINE) / 2) - 3
        items += [
            Text(end, base, text, "legend" if heading else "name", "end")
            for text, end in zip(entry.texts, ends)
        ]
        if entry.draw:
            items += entry.draw(at, y + high + 6 if stacked else y + high / 2 + 1)
            strips.append((y + high - 1, y + high + 13) if stacked else (y - 2, y + high + 5))
            high += 14 if stacked else 3
        groups.append(Group(items, entry.colour, entry.hint))
        y += high + 4
    items = []
    for x, text in at.ticks:
        items += [
            *(Line(((x, a), (x, b)), "grid") for a, b in strips),
            Text(x, y + 13, text, "tick", "middle"),
        ]
    if reference is not None:
        items += [Line(((at(reference), a), (at(reference), b)), "reference") for a, b in strips]
    middle = (at.begin + at.end) / 2
    lines = scene.wrap(title, min(middle, width - middle) * 2 - 12)
    items += scene.paragraph(lines, middle, y + 30, "title", "middle")
    return scene.with_legend(
        title, width, y + 36 + LINE * (len(lines) - 1), [Group(items), *groups], signs
    )
