"""Lists of methods: a line of text for each, and a drawing next to it, or below it in a narrow
plot: speeds with intervals (a forest plot), and the phases of a step.
"""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from lanternbench.measure.figures import BASELINE
from lanternbench.report import style
from lanternbench.report.columns import COLUMN, Column
from lanternbench.report.load import ReportRow
from lanternbench.report.marks import (
    Range,
    axis_range,
    axis_title,
    interval,
    legend_signs,
    number_axis,
    row_marker,
    speed_name,
    ticks,
)
from lanternbench.report.style import (
    INK,
    LINE,
    MARGIN,
    NARROW,
    PHASES,
    QUIET,
    Plot,
    Sign,
    put_lines,
    text_width,
    wrap,
)
from lanternbench.report.tradeoff import speed_column

LOSS = COLUMN["fidelity_loss"]
STRIP = 9.0  # height of a bar, and of the strip below a name in a narrow list


class Entry(NamedTuple):
    """A line of a list: a name, texts at the right, and the row that is drawn, if it is one.  A
    heading has no drawing.
    """

    name: str
    texts: tuple[str, ...] = ()
    is_heading: bool = False
    row: ReportRow | None = None


class Listing:
    """A figure with one line per entry, and one axis for the drawings of all of them.

    In a narrow figure the drawing is below the name, else between the name and the texts.
    """

    def __init__(self, entries: Sequence[Entry], width: float, title: str):
        self.entries = entries
        self.width = width
        self.stacked = width <= NARROW
        columns = zip(*(entry.texts for entry in entries if not entry.is_heading))
        self.text_widths = [max(map(text_width, texts)) + 9.0 for texts in columns]
        name_width, left, right = self.widths()
        self.names = [wrap(entry.name, name_width) for entry in entries]
        self.tops = [MARGIN]
        for entry, lines in zip(entries, self.names):
            height = LINE * len(lines) + 3.0
            if not entry.is_heading:
                height += STRIP if self.stacked else 2.0
            self.tops.append(self.tops[-1] + height)
        title_lines = wrap(title, right - left)
        title_height = LINE * (len(title_lines) + 1) + 6.0
        bottom = self.tops[-1]
        self.figure = style.new_figure(width, bottom + title_height)
        # y is in points from the top of the figure
        self.axes = style.add_axes(self.figure, left, 0.0, right - left, bottom)
        self.axes.set(ylim=(bottom, 0.0), yticks=[])
        self.axes.grid(visible=False)
        self.axes.set_xlabel("\n".join(title_lines), labelpad=2)
        self.put_texts()

    def widths(self) -> tuple[float, float, float]:
        """Return the width of names, and where the axis begins and ends, in points from the left."""
        texts_width = sum(self.text_widths)
        if self.stacked:
            return self.width - 2 * MARGIN - texts_width, 9.0, self.width - 9.0
        longest = max(text_width(entry.name) for entry in self.entries)
        name_width = min(longest + 5.0, 0.34 * self.width)
        return name_width, name_width + MARGIN + 10.0, self.width - texts_width - 5.0

    def y_of(self, index: int) -> float:
        """Return the height of an entry's drawing, in points from the top of the figure."""
        text_height = LINE * len(self.names[index])
        offset = text_height + STRIP / 2 if self.stacked else text_height / 2 + 0.7
        return self.tops[index] + offset

    def set_range(self, limits: Range, reference: float | None = None) -> None:
        """Set the axis, with vertical lines that cross the drawings but no name in a narrow list."""
        self.axes.set_xlim(limits)
        number_axis(self.axes.xaxis, limits)
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
            middle = LINE if self.stacked else (LINE * len(lines) + LINE) / 2
            shade = QUIET if entry.is_heading else INK
            end = self.width - MARGIN
            for text, column in zip(reversed(entry.texts), reversed(self.text_widths)):
                put_lines(self.figure, end, top + middle - 2.0, [text], ha="right", color=shade)
                end -= column


@style.styled()
def forest(rows: Sequence[ReportRow], width: float) -> Plot | None:
    """Draw every method's speed with its interval, fastest first, lossless above relaxed; None
    without a speed.
    """
    speed = speed_column(rows)
    timed = [row for row in rows if row.value(speed.key) is not None]
    timed = [row for row in timed if BASELINE not in (row.method, row.label)]
    timed.sort(key=lambda row: row.value(speed.key) or 0.0, reverse=True)
    if not timed:
        return None
    entries = forest_entries(timed, speed)
    listing = Listing(entries, width, axis_title(speed))
    plot = Plot(listing.figure, axis_title(speed))
    listing.set_range(axis_range(speed, timed, (1.0,)), reference=1.0)
    for index, entry in enumerate(entries):
        row = entry.row
        if row is not None:
            y = listing.y_of(index)
            artists = interval(listing.axes, speed, row, y)
            artists.append(row_marker(listing.axes, row, row.value(speed.key) or 0.0, y))
            plot.mark(artists, forest_hint(row, speed))
    style.add_legend(listing.figure, legend_signs(timed, [Sign("ar = 1", "reference")]))
    return plot


def forest_entries(timed: Sequence[ReportRow], speed: Column) -> list[Entry]:
    """Return the entries of a forest plot, lossless methods first, each kind under its heading."""
    lossless = [row for row in timed if row.lossless is True]
    relaxed = [row for row in timed if row.lossless is not True]
    shows_loss = any(row.value(LOSS.key) is not None for row in relaxed)

    def entry(row: ReportRow, loss: str) -> Entry:
        texts = (speed.cell(row), loss) if shows_loss else (speed.cell(row),)
        return Entry(row.name, texts, row=row)

    entries = []
    if lossless:
        entries.append(Entry("lossless", is_heading=True))
    entries += [entry(row, "") for row in lossless]
    if relaxed:
        all_known = all(row.lossless is not None for row in relaxed)
        heading = "relaxed" if all_known else "relaxed or not reported"
        titles = ("", LOSS.title) if shows_loss else ()
        entries.append(Entry(heading, titles, is_heading=True))
    return entries + [entry(row, LOSS.value(row)) for row in relaxed]


def forest_hint(row: ReportRow, speed: Column) -> str:
    hint = f"{row.name}: {speed_name(speed)} {speed.cell(row)}"
    if row.lossless is not True and row.value(LOSS.key) is not None:
        hint += f", fidelity loss {LOSS.cell(row)}"
    return hint


@style.styled()
def phases(times: Sequence[tuple[str, dict[str, float]]], width: float) -> Plot | None:
    """Draw the mean step of every method as a bar of its phases: (name, milliseconds by phase)."""
    times = [(name, ms) for name, ms in times if sum(ms.values()) > 0]
    if not times:
        return None
    title = "milliseconds of a step, mean"
    entries = [Entry(name, (f"{sum(ms.values()):.1f} ms",)) for name, ms in times]
    listing = Listing(entries, width, title)
    longest = max(sum(ms.values()) for _, ms in times)
    listing.set_range((0.0, 1.04 * longest))
    plot = Plot(listing.figure, title)
    for index, (name, ms) in enumerate(times):
        parts = ", ".join(f"{phase} {value:.2f} ms" for phase, value in ms.items())
        hint = f"{name}: {sum(ms.values()):.1f} ms a step: {parts}"
        plot.mark(draw_phases(listing.axes, listing.y_of(index), ms), hint)
    style.add_legend(
        listing.figure, [Sign(phase, "swatch", shade) for phase, shade in PHASES.items()]
    )
    return plot


def draw_phases(axes: Axes, y: float, ms: dict[str, float]) -> list[Artist]:
    """Draw the phases of a step as bars, one after another."""
    bars: list[Artist] = []
    begin = 0.0
    for phase, value in ms.items():
        bars += axes.barh(y, value, 6.7, begin, color=PHASES[phase], linewidth=0)
        begin += value
    return bars
