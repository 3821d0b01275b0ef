"""The picture of a trade-off: speed against a quality, with frontiers and labels."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lanternbench.report import style
from lanternbench.report.columns import name_of
from lanternbench.report.labels import Box, Label, Point, place_labels
from lanternbench.report.marks import (
    Range,
    axis_range,
    axis_title,
    interval,
    legend_signs,
    number_axis,
    row_marker,
    shape,
    speed_name,
    ticks,
)
from lanternbench.report.style import (
    LINE,
    NARROW,
    QUIET,
    Plot,
    Sign,
    colour,
    put_lines,
    text_width,
    wrap,
)
from lanternbench.report.tradeoff import TradeOff, short_names


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
        look: dict[str, Any] = {"rotation": 90, "ha": "right", "va": "center", "color": QUIET}
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
