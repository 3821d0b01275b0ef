"""The pictures of a report, each for a wide page, and for a phone or one column of a paper."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lanternbench.measure.steps import Steps
from lanternbench.measure.summaries import Row
from lanternbench.report import scene
from lanternbench.report.columns import name_of, runs_of
from lanternbench.report.drawing import save, scene_figure
from lanternbench.report.forest import forest, phases
from lanternbench.report.palette import PHASES, colour
from lanternbench.report.pareto import quality_columns, scatter, speed_column, speed_name, trade_off
from lanternbench.report.scene import (
    LINE,
    NARROW,
    WIDE,
    Bar,
    Group,
    Item,
    Line,
    Mark,
    Scene,
    Sign,
    Text,
    paragraph,
    wrap,
)
from lanternbench.report.tables import position_rates, positions

HEIGHT = 64  # pixels of a small plot


class Picture(NamedTuple):
    """``key`` is its file's name, ``title`` what the page's choice calls it."""

    key: str
    title: str
    wide: Scene
    narrow: Scene


def _picture(key: str, title: str, draw: Callable[[int], Scene | None]) -> list[Picture]:
    """The picture that ``draw`` makes so many pixels wide; nothing where it has nothing to show."""
    wide, narrow = draw(WIDE), draw(NARROW)
    return [Picture(key, title, wide, narrow)] if wide and narrow else []


def speed_pictures(rows: Sequence[Row]) -> list[Picture]:
    """Speed as a forest plot, and speed against every quality that a relaxed method traded for it."""
    name = speed_name(speed_column(rows))
    pictures = _picture("speed", name[0].upper() + name[1:], partial(forest, rows))
    for quality in quality_columns(rows):
        # the metric's name comes from a file: nothing but a file name may come of it
        stem = "pareto-" + re.sub(r"[^A-Za-z0-9_-]+", "_", quality.key)[:60]
        pictures += _picture(stem, f"Speed against {quality.title}", partial(scatter, trade_off(rows, quality)))
    return pictures


def step_pictures(rows: Sequence[tuple[Row, Steps | None]]) -> list[Picture]:
    """Acceptance by position, and the time of a step by phase, from the seconds of each row's steps."""
    names, times = runs_of([row for row, _ in rows]), []
    for row, steps in rows:
        if steps is not None and (count := sum(steps.histogram())):
            parts = {phase: 1000 * steps.phases.get(phase, 0.0) / count for phase in PHASES}
            times.append((name_of(row, names), row.method, parts))
    title, drawn = "Acceptance by position of the draft", partial(panels, [row for row, _ in rows])
    return [
        *_picture("acceptance", title, drawn),
        *_picture("phases", "Time of a step by phase", partial(phases, times)),
    ]


def panels(rows: Sequence[Row], width: int) -> Scene | None:
    """A small plot per method: bars of per-position rates, a line of conditional ones; None if no row drafts."""
    drafting, runs = [row for row in rows if row.acceptance], runs_of(rows)
    if not drafting:
        return None
    across = 2 if width <= NARROW else 4
    each = (width - 12 - 14 * (across - 1)) / across
    groups: list[Group] = []
    y = 4.0
    for begin in range(0, len(drafting), across):
        line = drafting[begin : begin + across]
        titles = [wrap(name_of(row, runs), each) for row in line]
        top = y + LINE * max(map(len, titles)) + 10
        groups += [
            _panel(row, title, 6 + i * (each + 14), each, top) for i, (row, title) in enumerate(zip(line, titles))
        ]
        y = top + HEIGHT + 24
    signs: list[Sign] = [scene.swatch("accepted, with all before it (joint)", scene.QUIET, "share"),
                         scene.stroke("accepted, given all before it were (conditional)", "curve"),
                         ("across: position in the draft", "", None)]  # fmt: skip
    return scene.with_legend("acceptance by position of the draft", width, y, groups, signs)


def _panel(row: Row, title: Sequence[str], left: float, width: float, top: float) -> Group:
    def height(share: float) -> float:
        return round(top + (1 - share) * HEIGHT, 1)

    count = max(5, positions([row]))  # across
    rates = position_rates(row)[:count]
    items = paragraph(title, left, top - 11 - LINE * (len(title) - 1), "name")
    for share, text in ((0.0, "0"), (0.5, "½"), (1.0, "1")):
        y = top + (1 - share) * HEIGHT
        items += [Line(((left + 12, y), (left + width, y)), "grid"), Text(left + 9, y + 4, text, "tick", "end")]
    step = (width - 12) / count
    at = [left + 12 + step * (i + 0.5) for i in range(count)]
    for x, (joint, _) in zip(at, rates):
        items.append(
            Bar(round(x - 0.36 * step, 1), height(joint), round(0.72 * step, 1), round(joint * HEIGHT, 1), "share")
        )
    points = tuple((round(x, 1), height(conditional)) for x, (_, conditional) in zip(at, rates))
    curve: list[Item] = [Line(points, "curve")] if len(points) > 1 else []
    items += [*curve, *(Mark(*point, "small") for point in points)]
    every = max(1, -(-count * (12 if count < 10 else 20) // int(width - 12)))
    items += [Text(round(at[i], 1), top + HEIGHT + 14, str(i + 1), "tick", "middle") for i in range(0, count, every)]
    each = ", ".join(f"{i}: {joint:.0%} ({conditional:.0%})" for i, (joint, conditional) in enumerate(rates, 1))
    return Group(items, colour(row.method), f"{row.label}: {each}")


def write_pictures(pictures: Sequence[Picture], out: Path) -> list[Path]:
    """Each as .png, .svg and .pdf in ``out``, a column of a paper wide."""
    return [
        file
        for picture in pictures
        for file in save(partial(scene_figure, picture.narrow), out / picture.key, ("png", "svg", "pdf"))
    ]
