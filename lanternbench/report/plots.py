"""The pictures of a report: speeds with intervals, trade-offs, acceptance by position, and the
phases of a step.

Each is drawn for a wide page, and for a phone or one column of a paper.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lanternbench.measure.figures import BASELINE, Steps
from lanternbench.measure.summary import Row
from lanternbench.report import style
from lanternbench.report.columns import COLUMN, Column, name_of, run_of, runs_of
from lanternbench.report.labels import Box, Label, Point, place_labels
from lanternbench.report.style import (
    INK,
    LINE,
    MARGIN,
    NARROW,
    PHASES,
    QUIET,
    WIDE,
    Plot,
    Sign,
    colour,
    family,
    put_lines,
    text_width,
    wrap,
)
from lanternbench.report.tables import position_rates, positions
from lanternbench.report.tradeoff import (
    TradeOff,
    quality_columns,
    short_names,
    speed_column,
    trade_off,
)
from lanternbench.utils.text import one_line

LOSS = COLUMN["fidelity_loss"]
STRIP = 9.0  # height of a bar, and of the strip below a name in a narrow list
PANEL = 43.0  # height of a small plot
SPEED_NAMES = {
    "speedup": "speedup over AR",
    "robust_speedup": "robust speedup over AR",
    "step_compression": "step compression (tokens / steps)",
}
Range = tuple[float, float]


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


def picture(key: str, title: str, draw: Callable[[float], Plot | None]) -> list[Picture]:
    """Return the picture that ``draw`` makes for a width, if any."""
    wide = draw(WIDE)
    narrow = draw(NARROW)
    return [Picture(key, title, wide, narrow)] if wide and narrow else []


def speed_pictures(rows: Sequence[Row]) -> list[Picture]:
    """Return speed as a forest plot, and against every quality that a relaxed method traded."""
    name = speed_name(speed_column(rows))
    pictures = picture("speed", name[0].upper() + name[1:], partial(forest, rows))
    for quality in quality_columns(rows):
        # the metric's name comes from a file: nothing but a file name may come of it
        key = "pareto-" + re.sub(r"[^A-Za-z0-9_-]+", "_", quality.key)[:60]
        draw = partial(scatter, trade_off(rows, quality))
        pictures += picture(key, f"Speed against {quality.title}", draw)
    return pictures


def step_pictures(rows: Sequence[Row], steps: Sequence[Steps | None]) -> list[Picture]:
    """Return acceptance by position, and the time of a step by phase, from each row's steps."""
    runs = runs_of(rows)
    times = []
    for row, row_steps in zip(rows, steps):
        count = 0 if row_steps is None else sum(row_steps.histogram())
        if row_steps is not None and count:
            ms = {phase: 1000 * row_steps.phases.get(phase, 0.0) / count for phase in PHASES}
            times.append((name_of(row, runs), ms))
    acceptance = picture(
        "acceptance", "Acceptance by position of the draft", partial(panels, rows)
    )
    return acceptance + picture("phases", "Time of a step by phase", partial(phases, times))


def write_pictures(pictures: Sequence[Picture], out: Path) -> list[Path]:
    """Write each as .png, .svg and .pdf, as wide as a column of a paper."""
    files = []
    for one in pictures:
        files += style.save(
            lambda one=one: one.narrow.figure, out / one.key, ("png", "svg", "pdf")
        )
    return files


# --- what the pictures of rows share ---


def speed_name(column: Column) -> str:
    """Return a column's name in a sentence."""
    return one_line(SPEED_NAMES.get(column.key, column.title), 60)


def axis_title(column: Column) -> str:
    better = f"  ({column.better} is better)" if column.better else ""
    return speed_name(column) + better


def axis_range(column: Column, rows: Sequence[Row], also: Sequence[float] = ()) -> Range:
    """Return a range that holds a column's values, the values ``also``, and their intervals
    unless a few wide ones would stretch it.

    An interval is cut if it goes further beyond all values than a third of their span or 1.5
    times the median half-width of the intervals, whichever is more.
    """
    figures = [column.figure(row) for row in rows]
    values = [*also, *(figure.value or 0.0 for figure in figures)]
    ends = [(f.lo, f.hi) for f in figures if f.lo is not None and f.hi is not None]
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    half_widths = [(end - begin) / 2 for begin, end in ends if end > begin]
    usual = 1.5 * statistics.median_low(half_widths) if half_widths else 0.0
    reach = max((high - low) / 3, usual)
    first = max(min([low, *(begin for begin, _ in ends)]), low - reach)
    last = min(max([high, *(end for _, end in ends)]), high + reach)
    span = (last - first) or max(abs(high), 1.0)
    return first - 0.06 * span, last + 0.06 * span


def ticks(limits: Range) -> list[float]:
    """Return about five round numbers within a range."""
    low, high = limits
    numbers = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(number) for number in numbers if low <= number <= high]


def number_axis(axes: Axes, which: str, limits: Range) -> None:
    """Set the limits and numbers of one axis, "x" or "y"."""
    numbers = ticks(limits)
    names = [f"{number:g}" for number in numbers]
    if which == "x":
        axes.set_xlim(limits)
        axes.set_xticks(numbers, names)
    else:
        axes.set_ylim(limits)
        axes.set_yticks(numbers, names)


def shape(row: Row) -> str:
    """Return the shape of a row's point: lossless methods are circles, all others diamonds."""
    return "circle" if row.lossless is True or row.method == BASELINE else "diamond"


def row_marker(
    axes: Axes, row: Row, x: float, y: float, runs: Sequence[str | None]
) -> list[Line2D]:
    """Draw a row's point, filled as its run's are."""
    fill = style.FILLS[runs.index(run_of(row)) % len(style.FILLS)]
    artists = style.marker(x, y, shape(row), colour(row.method), fill)
    for artist in artists:
        axes.add_line(artist)
    return artists


def interval(
    axes: Axes, column: Column, row: Row, across: float, limits: Range, upright: bool = False
) -> list[Line2D]:
    """Draw the interval of a figure at ``across`` on the other axis, with arrow heads where it
    is cut.
    """
    value, low, high, *_ = column.figure(row)
    if value is None or low is None or high is None:
        return []
    low = min(low, value)
    high = max(high, value)
    begin = max(low, limits[0])
    end = min(high, limits[1])
    look = {"color": colour(row.method)} | style.LINES["interval"]
    artists = axes.plot(*turned([begin, end], [across, across], upright), **look)
    heads = {"<": (low < limits[0], begin), ">": (high > limits[1], end)}
    for sign, (is_cut, place) in heads.items():
        if is_cut:
            sign = {"<": "v", ">": "^"}[sign] if upright else sign
            head = turned([place], [across], upright)
            artists += axes.plot(*head, marker=sign, markersize=3, clip_on=False, **look)
    return artists


def turned(x: list[float], y: list[float], upright: bool) -> tuple[list[float], list[float]]:
    return (y, x) if upright else (x, y)


def legend_signs(
    rows: Sequence[Row], runs: Sequence[str | None], signs: Sequence[Sign]
) -> list[Sign]:
    """Return the families of methods, then ``signs``, then the runs if there are several."""
    families = {family(row.method): colour(row.method) for row in rows}
    swatches = [Sign(name, "swatch", shade) for name, shade in families.items()]
    fills: list[Sign] = []
    if len(runs) > 1:
        for number, (run, fill) in enumerate(zip(runs, cycle(style.FILLS)), 1):
            fills.append(Sign(f"({number}) {one_line(run or '', 40)}", "circle", fill=fill))
    return [*swatches, *signs, *fills]


# --- lists: a line of text for each method, and a drawing next to it or below it ---


class Entry(NamedTuple):
    """A line of a list: a name, and texts at the right.  A heading has no drawing."""

    name: str
    texts: tuple[str, ...] = ()
    is_heading: bool = False


class Listing:
    """A figure with one line per entry, and one axis for the drawings of all of them.

    In a narrow figure the drawing is below the name, else between the name and the texts.
    """

    def __init__(self, entries: Sequence[Entry], width: float, title: str, signs: Sequence[Sign]):
        self.entries = entries
        self.width = width
        self.stacked = width <= NARROW
        columns = zip(*(entry.texts for entry in entries if not entry.is_heading))
        self.text_widths = [max(map(text_width, texts)) + 9.0 for texts in columns]
        self.left, self.right = self.edges()
        self.names = [wrap(entry.name, self.name_width) for entry in entries]
        self.title = wrap(title, self.right - self.left)
        heights = map(self.height_of, entries, self.names)
        self.tops = [MARGIN]
        for height in heights:
            self.tops.append(self.tops[-1] + height)
        below = LINE * (len(self.title) + 1) + 6 + style.legend_height(signs, width)
        self.height = self.tops[-1] + below
        self.figure = Figure(figsize=(width / 72, self.height / 72))
        self.axes = self.add_axes()
        self.put_texts()
        style.draw_legend(self.figure, signs)

    @property
    def name_width(self) -> float:
        if self.stacked:
            return self.width - 2 * MARGIN - sum(self.text_widths)
        longest = max(text_width(entry.name) for entry in self.entries)
        return min(longest + 5.0, 0.34 * self.width)

    def edges(self) -> Range:
        """Return where the axis begins and ends, in points from the left."""
        if self.stacked:
            return 9.0, self.width - 9.0
        return self.name_width + MARGIN + 10.0, self.width - sum(self.text_widths) - 5.0

    def height_of(self, entry: Entry, lines: Sequence[str]) -> float:
        strip = 0.0 if entry.is_heading else (STRIP if self.stacked else 2.0)
        return LINE * len(lines) + strip + 3.0

    def y_of(self, index: int) -> float:
        """Return the height of an entry's drawing, in points from the top of the figure."""
        text_height = LINE * len(self.names[index])
        offset = text_height + STRIP / 2 if self.stacked else text_height / 2 + 0.7
        return self.tops[index] + offset

    def add_axes(self) -> Axes:
        """Add an axis whose y is in points from the top of the figure."""
        bottom = 1 - self.tops[-1] / self.height
        place = (self.left / self.width, bottom, (self.right - self.left) / self.width, 1 - bottom)
        axes = self.figure.add_axes(place)
        axes.set_ylim(self.tops[-1], 0.0)
        axes.set_yticks([])
        axes.grid(visible=False)
        middle = (self.left + self.right) / 2
        baseline = self.tops[-1] + 2 * LINE + 3
        put_lines(self.figure, middle, baseline, self.title, ha="center", color=QUIET)
        return axes

    def set_range(self, limits: Range, reference: float | None = None) -> None:
        """Set the axis, with upright lines that cross the drawings but no name in a narrow list."""
        number_axis(self.axes, "x", limits)
        for index, entry in enumerate(self.entries):
            if entry.is_heading:
                continue
            y = self.y_of(index)
            half = STRIP / 2 + 1 if self.stacked else (self.tops[index + 1] - self.tops[index]) / 2
            ends = (y - half, y + half)
            self.axes.vlines(ticks(limits), *ends, color=style.GRID, linewidth=0.6, zorder=0.5)
            if reference is not None:
                self.axes.plot([reference, reference], ends, **style.LINES["reference"])

    def put_texts(self) -> None:
        for entry, top, lines in zip(self.entries, self.tops, self.names):
            weight = "bold" if entry.is_heading else "normal"
            put_lines(self.figure, MARGIN, top + LINE - 2.0, lines, weight=weight)
            first = LINE if self.stacked else (LINE * len(lines) + LINE) / 2
            shade = QUIET if entry.is_heading else INK
            end = self.width - MARGIN
            for text, column in zip(reversed(entry.texts), reversed(self.text_widths)):
                put_lines(self.figure, end, top + first - 2.0, [text], ha="right", color=shade)
                end -= column


@style.styled
def forest(rows: Sequence[Row], width: float) -> Plot | None:
    """Draw every method's speed with its interval, fastest first, lossless above relaxed; None
    without a speed.
    """
    speed = speed_column(rows)
    runs = runs_of(rows)
    timed = [row for row in rows if row.value(speed.key) is not None]
    timed = [row for row in timed if BASELINE not in (row.method, row.label)]
    timed.sort(key=lambda row: row.value(speed.key) or 0.0, reverse=True)
    if not timed:
        return None
    lossless = [row for row in timed if row.lossless is True]
    relaxed = [row for row in timed if row.lossless is not True]
    all_known = all(row.lossless is not None for row in relaxed)
    heading = "relaxed" if all_known else "relaxed or not reported"
    shows_loss = any(row.value(LOSS.key) is not None for row in relaxed)
    lines: list[tuple[Entry, Row | None]] = []
    if lossless:
        lines.append((Entry("lossless", is_heading=True), None))
        lines += [(forest_entry(row, speed, runs, shows_loss, False), row) for row in lossless]
    if relaxed:
        titles = ("", LOSS.title) if shows_loss else ()
        lines.append((Entry(heading, titles, is_heading=True), None))
        lines += [(forest_entry(row, speed, runs, shows_loss, True), row) for row in relaxed]
    signs = legend_signs(timed, runs, [Sign("ar = 1", "reference")])
    listing = Listing([entry for entry, _ in lines], width, axis_title(speed), signs)
    limits = axis_range(speed, timed, (1.0,))
    listing.set_range(limits, reference=1.0)
    hints = {}
    for index, (_, row) in enumerate(lines):
        if row is not None:
            hints[f"point-{index}"] = forest_hint(row, speed, runs)
            y = listing.y_of(index)
            artists = interval(listing.axes, speed, row, y, limits)
            artists += row_marker(listing.axes, row, row.value(speed.key) or 0.0, y, runs)
            style.set_gid(artists, f"point-{index}")
    return Plot(listing.figure, axis_title(speed), hints)


def forest_entry(
    row: Row, speed: Column, runs: Sequence[str | None], shows_loss: bool, is_relaxed: bool
) -> Entry:
    texts = [speed.cell(row)]
    if shows_loss:
        texts.append(LOSS.value(row) if is_relaxed else "")
    return Entry(name_of(row, runs), tuple(texts))


def forest_hint(row: Row, speed: Column, runs: Sequence[str | None]) -> str:
    hint = f"{name_of(row, runs)}: {speed_name(speed)} {speed.cell(row)}"
    if row.lossless is not True and row.value(LOSS.key) is not None:
        hint += f", fidelity loss {LOSS.cell(row)}"
    return hint


@style.styled
def phases(times: Sequence[tuple[str, dict[str, float]]], width: float) -> Plot | None:
    """Draw the mean step of every method as a bar of its phases: (name, milliseconds by phase)."""
    times = [(name, ms) for name, ms in times if sum(ms.values()) > 0]
    if not times:
        return None
    title = "milliseconds of a step, mean"
    entries = [Entry(name, (f"{sum(ms.values()):.1f} ms",)) for name, ms in times]
    signs = [Sign(phase, "swatch", shade) for phase, shade in PHASES.items()]
    listing = Listing(entries, width, title, signs)
    longest = max(sum(ms.values()) for _, ms in times)
    listing.set_range((0.0, 1.04 * longest))
    hints = {}
    for index, (name, ms) in enumerate(times):
        parts = ", ".join(f"{phase} {value:.2f} ms" for phase, value in ms.items())
        hints[f"point-{index}"] = f"{name}: {sum(ms.values()):.1f} ms a step: {parts}"
        begin = 0.0
        for phase, value in ms.items():
            y = listing.y_of(index)
            bar = listing.axes.barh(y, value, 6.7, begin, color=PHASES[phase], linewidth=0)
            style.set_gid(bar.patches, f"point-{index}")
            begin += value
    return Plot(listing.figure, title, hints)


# --- acceptance by position ---


@style.styled
def panels(rows: Sequence[Row], width: float) -> Plot | None:
    """Draw a small plot per method: bars of joint rates, a line of conditional ones; None if no
    row drafts.
    """
    drafting = [row for row in rows if row.acceptance]
    if not drafting:
        return None
    runs = runs_of(rows)
    per_line = 2 if width <= NARROW else 4
    panel_width = (width - 2 * MARGIN - 9.0 * (per_line - 1)) / per_line
    signs = [
        Sign("accepted, with all before it (joint)", "swatch", "#b9bdc2"),
        Sign("accepted, given all before it were (conditional)", "curve"),
        Sign("across: position in the draft"),
    ]
    titles = [wrap(name_of(row, runs), panel_width) for row in drafting]
    tops = []
    y = MARGIN
    for begin in range(0, len(drafting), per_line):
        text_height = LINE * max(map(len, titles[begin : begin + per_line]))
        tops += [y + text_height] * per_line
        y += text_height + PANEL + 17.0
    height = y + style.legend_height(signs, width)
    figure = Figure(figsize=(width / 72, height / 72))
    hints = {}
    for index, (row, title) in enumerate(zip(drafting, titles)):
        left = MARGIN + index % per_line * (panel_width + 9.0)
        first = tops[index] - LINE * (len(title) - 1) - 2.5
        put_lines(figure, left, first, title)
        inner = ((left + 8.0) / width, 1 - (tops[index] + 3 + PANEL) / height)
        axes = figure.add_axes((*inner, (panel_width - 8.0) / width, PANEL / height))
        gid = f"point-{index}"
        hints[gid] = draw_rates(axes, row, panel_width, gid)
    style.draw_legend(figure, signs)
    return Plot(figure, "acceptance by position of the draft", hints)


def draw_rates(axes: Axes, row: Row, width: float, gid: str) -> str:
    """Draw the acceptance rates of a method by position; returns them in words."""
    count = max(5, positions([row]))
    rates = position_rates(row)[:count]
    places = list(range(1, len(rates) + 1))
    shade = colour(row.method)
    joint = [rate for rate, _ in rates]
    conditional = [rate for _, rate in rates]
    bars = axes.bar(places, joint, 0.72, color=shade, alpha=0.35, linewidth=0)
    curve = axes.plot(places, conditional, color=shade, **style.LINES["curve"])
    curve += axes.plot(places, conditional, "o", color=shade, markersize=3.3, clip_on=False)
    style.set_gid([*bars.patches, *curve], gid)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0", "½", "1"])
    axes.grid(axis="x", visible=False)
    axes.tick_params(pad=2)
    axes.set_xlim(0.5, count + 0.5)
    label_width = 8 if count < 10 else 13.5
    stride = max(1, -(-count * label_width // int(width - 8)))
    axes.set_xticks(range(1, count + 1, int(stride)))
    words = [f"{i}: {a:.0%} ({b:.0%})" for i, (a, b) in enumerate(rates, 1)]
    return f"{row.label}: {', '.join(words)}"


# --- speed against quality ---


@style.styled
def scatter(data: TradeOff, width: float) -> Plot:
    """Draw a trade-off, ``width`` points wide."""
    x_title = axis_title(data.x)
    y_title = axis_title(data.y)
    x_limits = axis_range(data.x, data.rows)
    y_limits = axis_range(data.y, data.rows)
    plot_height = 220.0 if width > NARROW else 200.0
    y_lines = wrap(y_title, plot_height)
    number_width = max(text_width(f"{number:g}") for number in ticks(y_limits))
    left = 4.0 + LINE * len(y_lines) + number_width + 6.0
    x_lines = wrap(x_title, width - left + 20.0)
    frame = Box(left + 0.7, 0.0, width - 8.0, plot_height)
    values = [
        (data.x.figure(row).value or 0.0, data.y.figure(row).value or 0.0) for row in data.rows
    ]
    to_points = partial(points_in, frame, x_limits, y_limits)
    lines = [*map(stairs, corners(data.frontiers, values)), *corners(data.knobs, values)]
    covered = [*lines, *interval_lines(data, values, x_limits, y_limits)]
    placed = place_labels(
        to_points(values), short_names(data), [to_points(line) for line in covered], frame
    )
    numbered = [Sign(f"{number}  {name}") for number, name in placed.numbered]
    signs = scatter_signs(data) + numbered
    below = LINE * (len(x_lines) + 1) + 9.0 + style.legend_height(signs, width)
    height = 3.0 + plot_height + below
    figure = Figure(figsize=(width / 72, height / 72))
    place = (left / width, below / height, (width - 8.0 - left) / width, plot_height / height)
    axes = figure.add_axes(place)
    number_axis(axes, "x", x_limits)
    number_axis(axes, "y", y_limits)
    x_middle = (left + width - 8.0) / 2
    put_lines(figure, x_middle, height - below + 2 * LINE + 4, x_lines, ha="center", color=QUIET)
    for number, line in enumerate(y_lines):
        place_x = (4.0 + LINE * (number + 0.8)) / width
        middle = (below + plot_height / 2) / height
        look = {"rotation": 90, "ha": "right", "va": "center", "color": QUIET}
        figure.text(place_x, middle, line, **look)
    draw_lines(axes, data, values)
    style.draw_legend(figure, signs)
    hints = {}
    for index, (row, point) in enumerate(zip(data.rows, values)):
        speed = f"{speed_name(data.x)} {data.x.cell(row)}"
        name = name_of(row, data.runs)
        hints[f"point-{index}"] = f"{name}: {speed}, {data.y.title} {data.y.cell(row)}"
        artists = interval(axes, data.x, row, point[1], x_limits)
        artists += interval(axes, data.y, row, point[0], y_limits, upright=True)
        artists += row_marker(axes, row, *point, data.runs)
        style.set_gid(artists, f"point-{index}")
        draw_label(axes, placed.labels[index], point, below, f"point-{index}")
    return Plot(figure, f"{data.y.title} against {x_title}", hints)


def points_in(
    frame: Box, x_limits: Range, y_limits: Range, values: Sequence[Point]
) -> list[Point]:
    """Return values as points within a frame, from its own lower left corner's origin."""
    across = (frame.right - frame.left) / (x_limits[1] - x_limits[0])
    up = (frame.top - frame.bottom) / (y_limits[1] - y_limits[0])
    return [
        (frame.left + (x - x_limits[0]) * across, frame.bottom + (y - y_limits[0]) * up)
        for x, y in values
    ]


def corners(lines: Sequence[Sequence[int]], values: Sequence[Point]) -> list[list[Point]]:
    return [[values[index] for index in line] for line in lines]


def stairs(points: Sequence[Point]) -> list[Point]:
    """Return the frontier through points: up or down at the earlier one, then across."""
    path = list(points[:1])
    for (x0, _), (x1, y1) in pairwise(points):
        path += [(x0, y1), (x1, y1)]
    return path


def interval_lines(
    data: TradeOff, values: Sequence[Point], x_limits: Range, y_limits: Range
) -> list[list[Point]]:
    """Return the intervals that are drawn, as lines that labels should not cover."""
    lines = []
    for row, (x, y) in zip(data.rows, values):
        _, low, high, *_ = data.x.figure(row)
        if low is not None and high is not None:
            lines.append([(max(low, x_limits[0]), y), (min(high, x_limits[1]), y)])
        _, low, high, *_ = data.y.figure(row)
        if low is not None and high is not None:
            lines.append([(x, max(low, y_limits[0])), (x, min(high, y_limits[1]))])
    return lines


def draw_lines(axes: Axes, data: TradeOff, values: Sequence[Point]) -> None:
    """Draw the frontiers, and a line along each knob."""
    for path in map(stairs, corners(data.frontiers, values)):
        if len(path) > 1:
            axes.plot(*zip(*path), **style.LINES["frontier"])
    for indices, path in zip(data.knobs, corners(data.knobs, values)):
        shade = colour(data.rows[indices[0]].method)
        axes.plot(*zip(*path), color=shade, **style.LINES["knob"])


def draw_label(axes: Axes, label: Label, point: Point, bottom: float, gid: str) -> None:
    """Draw a label at its place, which is in points from the left of the figure and from the
    bottom of the plot, ``bottom`` points above that of the figure.
    """
    text = axes.annotate(
        label.text,
        point,
        (label.x, label.y + bottom),
        textcoords="figure points",
        ha=label.anchor,
        va="baseline",
        zorder=7,
        annotation_clip=False,
    )
    text.set_gid(gid)
    if label.leader_end is not None:
        end_x, end_y = label.leader_end
        leader = axes.annotate(
            "",
            point,
            (end_x, end_y + bottom),
            textcoords="figure points",
            arrowprops={"arrowstyle": "-", "shrinkA": 0, "shrinkB": 0} | style.LINES["leader"],
            annotation_clip=False,
        )
        leader.set_gid(gid)


def scatter_signs(data: TradeOff) -> list[Sign]:
    """Return the legend: families, shapes, lines and runs, if they are drawn."""
    shapes = {shape(row) for row in data.rows}
    intervals = [column.figure(row).lo for row in data.rows for column in (data.x, data.y)]
    signs = {
        Sign("lossless", "circle"): "circle" in shapes,
        Sign("relaxed", "diamond"): "diamond" in shapes,
        Sign("Pareto frontier", "frontier"): any(len(path) > 1 for path in data.frontiers),
        Sign("one method, other settings", "knob"): bool(data.knobs),
        Sign("95 % interval", "interval"): any(low is not None for low in intervals),
    }
    drawn = [sign for sign, is_drawn in signs.items() if is_drawn]
    return legend_signs(data.rows, data.runs, drawn)
