"""Names and ranges of axes, points, intervals and legends, which plots of rows share."""

import statistics
from collections.abc import Sequence
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.summary import Row
from lanternbench.report import style
from lanternbench.report.columns import Column
from lanternbench.report.load import ReportRow
from lanternbench.report.style import Fill, Sign, colour, family
from lanternbench.utils.text import one_line

SPEED_NAMES = {
    "speedup": "speedup over AR",
    "robust_speedup": "robust speedup over AR",
    "step_compression": "step compression (tokens / steps)",
}
Range = tuple[float, float]


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
    estimates = [column.figure(row) for row in rows]
    values = [*also, *(estimate.value or 0.0 for estimate in estimates)]
    intervals = [(e.lo, e.hi) for e in estimates if e.lo is not None and e.hi is not None]
    low = min(values)
    high = max(values)
    reach = max((high - low) / 3, 1.5 * usual_half_width(intervals))
    ends = [low, high, *chain.from_iterable(intervals)]
    first = max(min(ends), low - reach)
    last = min(max(ends), high + reach)
    span = (last - first) or max(abs(high), 1.0)
    return first - 0.06 * span, last + 0.06 * span


def usual_half_width(intervals: Sequence[Range]) -> float:
    """Return the median half-width of the intervals that have a width, 0 without any."""
    half_widths = [(end - begin) / 2 for begin, end in intervals if end > begin]
    return statistics.median_low(half_widths) if half_widths else 0.0


def ticks(limits: Range) -> list[float]:
    """Return about five round numbers within a range."""
    low, high = limits
    numbers = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(number) for number in numbers if low <= number <= high]


def number_axis(axis: Axis, limits: Range) -> None:
    """Put numbers along an axis within its limits."""
    numbers = ticks(limits)
    axis.set_ticks(numbers, labels=[f"{number:g}" for number in numbers])


def shape(row: Row) -> str:
    """Return the shape of a row's point: lossless methods are circles, all others diamonds."""
    return "circle" if row.lossless is True or row.method == BASELINE else "diamond"


def fill_of(place: int) -> Fill:
    """Return how points of a run are filled, by its place."""
    return style.FILLS[place % len(style.FILLS)]


def row_marker(axes: Axes, row: ReportRow, x: float, y: float) -> Line2D:
    """Draw a row's point, filled as its run's are."""
    point = style.marker(x, y, shape(row), colour(row.method), fill_of(row.place))
    return axes.add_line(point)


def interval(
    axes: Axes, column: Column, row: Row, across: float, upright: bool = False
) -> list[Line2D]:
    """Draw the interval of a figure at ``across`` on the other axis, with an arrow head at
    an end that the limits of the axis cut off.
    """
    _, low, high, *_ = column.figure(row)
    if low is None or high is None:
        return []
    first, last = axes.get_ylim() if upright else axes.get_xlim()
    look = {"color": colour(row.method)} | style.LINES["interval"]

    def draw(ends: list[float], head: str = "") -> list[Line2D]:
        places = [across] * len(ends)
        x, y = (places, ends) if upright else (ends, places)
        return axes.plot(x, y, marker=head, markersize=3, clip_on=not head, **look)

    artists = draw([max(low, first), min(high, last)])
    if low < first:
        artists += draw([first], "v" if upright else "<")
    if high > last:
        artists += draw([last], "^" if upright else ">")
    return artists


def legend_signs(rows: Sequence[ReportRow], signs: Sequence[Sign]) -> list[Sign]:
    """Return the families of methods, then ``signs``, then the runs if there are several."""
    families = {family(row.method): colour(row.method) for row in rows}
    swatches = [Sign(name, "swatch", shade) for name, shade in families.items()]
    runs = {row.place: row.run for row in rows if row.run is not None}
    fills = []
    for place, run in sorted(runs.items()):
        text = f"({place + 1}) {one_line(run, 40)}"
        fills.append(Sign(text, "circle", fill=fill_of(place)))
    return [*swatches, *signs, *fills]
