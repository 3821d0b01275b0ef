"""The plots of a report: speeds with intervals, trade-offs, acceptance by position, and the
phases of a step.

Each is drawn for a wide page, and for a phone or one column of a paper.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from lanternbench.measure.figures import Steps
from lanternbench.report import style
from lanternbench.report.listing import forest, phases
from lanternbench.report.load import ReportRow
from lanternbench.report.marks import speed_name
from lanternbench.report.scatter import scatter
from lanternbench.report.style import (
    LINE,
    MARGIN,
    NARROW,
    PHASES,
    WIDE,
    Plot,
    Sign,
    colour,
    put_lines,
    wrap,
)
from lanternbench.report.tables import position_rates, positions
from lanternbench.report.tradeoff import quality_columns, speed_column, trade_off

PANEL = 43.0  # height of a small plot


class Picture(NamedTuple):
    """``key`` is its file's name, ``title`` what the page's choice calls it."""

    key: str
    title: str
    wide: Plot
    narrow: Plot

    def svg(self, width: str) -> str:
        """Return the ``wide`` or ``narrow`` plot as an ``<svg>`` element."""
        plot = self.wide if width == "wide" else self.narrow
        return style.page_svg(plot, f"{self.key}-{width}")

    def add_warnings(self, warnings: Sequence[str]) -> None:
        for plot in (self.wide, self.narrow):
            style.add_warnings(plot.figure, warnings)


def picture(key: str, title: str, draw: Callable[[float], Plot | None]) -> list[Picture]:
    """Return the plot that ``draw`` makes for a width, if any."""
    wide = draw(WIDE)
    narrow = draw(NARROW)
    return [Picture(key, title, wide, narrow)] if wide and narrow else []


def speed_pictures(rows: Sequence[ReportRow]) -> list[Picture]:
    """Return speed as a forest plot, and against every quality that a relaxed method traded."""
    name = speed_name(speed_column(rows))
    pictures = picture("speed", name[0].upper() + name[1:], partial(forest, rows))
    for quality in quality_columns(rows):
        # the metric's name comes from a file: nothing but a file name may come of it
        key = "pareto-" + re.sub(r"[^A-Za-z0-9_-]+", "_", quality.key)[:60]
        draw = partial(scatter, trade_off(rows, quality))
        pictures += picture(key, f"Speed against {quality.title}", draw)
    return pictures


def step_pictures(rows: Sequence[ReportRow], steps: Sequence[Steps]) -> list[Picture]:
    """Return acceptance by position, and the time of a step by phase, from each row's steps."""
    times = []
    for row, row_steps in zip(rows, steps):
        count = row_steps.lengths.total()
        if count:
            ms = {phase: 1000 * row_steps.phases.get(phase, 0.0) / count for phase in PHASES}
            times.append((row.name, ms))
    acceptance = picture(
        "acceptance", "Acceptance by position of the draft", partial(panels, rows)
    )
    return acceptance + picture("phases", "Time of a step by phase", partial(phases, times))


def write_pictures(pictures: Sequence[Picture], out: Path) -> list[Path]:
    """Write each as .png, .svg and .pdf, as wide as a column of a paper."""
    files = []
    for one in pictures:
        files += style.save(one.narrow.figure, out / one.key, ("png", "svg", "pdf"))
    return files


@style.styled()
def panels(rows: Sequence[ReportRow], width: float) -> Plot | None:
    """Draw a small plot per method: bars of joint rates, a line of conditional ones; None if no
    row drafts.
    """
    drafting = [row for row in rows if row.acceptance]
    if not drafting:
        return None
    per_line = 2 if width <= NARROW else 4
    panel_width = (width - 2 * MARGIN - 9.0 * (per_line - 1)) / per_line
    titles = [wrap(row.name, panel_width) for row in drafting]
    figure = style.new_figure(width, MARGIN)
    plot = Plot(figure, "acceptance by position of the draft")
    for index, (row, title) in enumerate(zip(drafting, titles)):
        column = index % per_line
        if column == 0:
            title_height = LINE * max(map(len, titles[index : index + per_line]))
            top = style.grow(figure, title_height + PANEL + 17.0) + title_height
        left = MARGIN + column * (panel_width + 9.0)
        put_lines(figure, left, top - LINE * (len(title) - 1) - 2.5, title)
        axes = style.add_axes(figure, left + 8.0, top + 3.0, panel_width - 8.0, PANEL)
        draw_rates(plot, axes, row, panel_width)
    style.add_legend(
        figure,
        [
            Sign("accepted, with all before it (joint)", "swatch", "#b9bdc2"),
            Sign("accepted, given all before it were (conditional)", "curve"),
            Sign("across: position in the draft"),
        ],
    )
    return plot


def draw_rates(plot: Plot, axes: Axes, row: ReportRow, width: float) -> None:
    """Draw the acceptance rates of a method by position."""
    count = max(5, positions([row]))
    rates = position_rates(row)[:count]
    joint, conditional = zip(*rates)
    places = range(1, len(rates) + 1)
    shade = colour(row.method)
    bars = axes.bar(places, joint, 0.72, color=shade, alpha=0.35, linewidth=0)
    look = style.LINES["curve"]
    curve = axes.plot(places, conditional, "o-", color=shade, ms=3.3, clip_on=False, **look)
    number_positions(axes, count, width)
    words = [f"{i}: {a:.0%} ({b:.0%})" for i, (a, b) in zip(places, rates)]
    plot.mark([*bars, *curve], f"{row.label}: {', '.join(words)}")


def number_positions(axes: Axes, count: int, width: float) -> None:
    """Set the axes of so many positions; as many are numbered as fit the width."""
    axes.set(xlim=(0.5, count + 0.5), ylim=(0, 1))
    axes.set_yticks([0, 0.5, 1], ["0", "½", "1"])
    axes.grid(axis="x", visible=False)
    axes.tick_params(pad=2)
    number_width = 8 if count < 10 else 13.5
    stride = math.ceil(count * number_width / (width - 8))
    axes.set_xticks(range(1, count + 1, stride))
