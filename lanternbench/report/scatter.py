"""The plot of a trade-off: speed against a quality, with frontiers and labels."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from numpy.typing import ArrayLike

from lanternbench.report import style
from lanternbench.report.labels import Box, Label, Placed, Point, place_labels
from lanternbench.report.marks import (
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
from lanternbench.report.style import LINE, NARROW, Plot, Sign, colour, text_width, wrap
from lanternbench.report.tradeoff import TradeOff, short_names

TOP = 3.0  # points above a plot


@style.styled()
def scatter(data: TradeOff, width: float) -> Plot:
    """Draw a trade-off, ``width`` points wide."""
    figure, axes = scatter_axes(data, width)
    plot = Plot(figure, f"{data.y.title} against {axis_title(data.x)}")
    draw_lines(axes, data)
    points = [draw_point(axes, data, index) for index in range(len(data.rows))]
    placed = placed_labels(axes, data)
    for index, row in enumerate(data.rows):
        label = draw_label(axes, placed.labels[index], data.points[index])
        speed = f"{speed_name(data.x)} {data.x.cell(row)}"
        hint = f"{row.name}: {speed}, {data.y.title} {data.y.cell(row)}"
        plot.mark([*points[index], *label], hint)
    numbered = [Sign(f"{number}  {name}") for number, name in placed.numbered]
    style.add_legend(figure, [*scatter_signs(data), *numbered])
    return plot


def scatter_axes(data: TradeOff, width: float) -> tuple[Figure, Axes]:
    """Return a new figure and its axes, with limits, numbers and titles."""
    x_limits = axis_range(data.x, data.rows)
    y_limits = axis_range(data.y, data.rows)
    plot_height = 220.0 if width > NARROW else 200.0
    y_title = wrap(axis_title(data.y), plot_height)
    number_width = max(text_width(f"{number:g}") for number in ticks(y_limits))
    left = LINE * len(y_title) + number_width + 10.0
    plot_width = width - 8.0 - left
    x_title = wrap(axis_title(data.x), plot_width + 28.0)
    figure = style.new_figure(width, TOP + plot_height + LINE * (len(x_title) + 1) + 9.0)
    axes = style.add_axes(figure, left, TOP, plot_width, plot_height)
    axes.set(xlim=x_limits, ylim=y_limits)
    number_axis(axes.xaxis, x_limits)
    number_axis(axes.yaxis, y_limits)
    axes.set_xlabel("\n".join(x_title), labelpad=2)
    axes.set_ylabel("\n".join(y_title), labelpad=2)
    return figure, axes


def draw_lines(axes: Axes, data: TradeOff) -> None:
    """Draw the frontiers, and a line along each knob."""
    for frontier in data.frontiers:
        if len(frontier) > 1:
            x, y = zip(*(data.points[index] for index in frontier))
            # up or down at the slower point, then across
            axes.step(x, y, where="pre", **style.LINES["frontier"])
    for knob in data.knobs:
        x, y = zip(*(data.points[index] for index in knob))
        axes.plot(x, y, color=colour(data.rows[knob[0]].method), **style.LINES["knob"])


def draw_point(axes: Axes, data: TradeOff, index: int) -> list[Line2D]:
    """Draw a row's point and intervals."""
    row = data.rows[index]
    x, y = data.points[index]
    across = interval(axes, data.x, row, y)
    upright = interval(axes, data.y, row, x, upright=True)
    return [*across, *upright, row_marker(axes, row, x, y)]


def placed_labels(axes: Axes, data: TradeOff) -> Placed:
    """Return the labels of the points, in points.

    They keep clear of each other, of all points and, if they can, of lines.
    """
    lines = [in_points(axes, line.get_path().vertices) for line in axes.lines]
    lower_left, upper_right = in_points(axes, [*zip(axes.get_xlim(), axes.get_ylim())])
    frame = Box(*lower_left, *upper_right)
    return place_labels(in_points(axes, data.points), short_names(data), lines, frame)


def in_points(axes: Axes, places: ArrayLike) -> list[Point]:
    """Return places of data in points from the lower left corner of the figure."""
    scale = 72 / axes.figure.dpi
    points: list[Point] = (scale * axes.transData.transform(places)).tolist()
    return points


def draw_label(axes: Axes, label: Label, data_point: Point) -> list[Annotation]:
    """Draw the label of a point, and its leader line if it has one."""
    ((x, y),) = in_points(axes, [data_point])
    text = axes.annotate(
        label.text,
        data_point,
        (label.x - x, label.y - y),
        textcoords="offset points",
        ha=label.anchor,
        va="baseline",
        zorder=7,
        annotation_clip=False,
    )
    if label.leader_end is None:
        return [text]
    end_x, end_y = label.leader_end
    leader = axes.annotate(
        "",
        data_point,
        (end_x - x, end_y - y),
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "shrinkA": 0, "shrinkB": 0} | style.LINES["leader"],
        annotation_clip=False,
    )
    return [text, leader]


def scatter_signs(data: TradeOff) -> list[Sign]:
    """Return the legend: families, shapes, lines and runs, if they are drawn."""
    shapes = {shape(row) for row in data.rows}
    lower_ends = [column.figure(row).lo for row in data.rows for column in (data.x, data.y)]
    signs = {
        Sign("lossless", "circle"): "circle" in shapes,
        Sign("relaxed", "diamond"): "diamond" in shapes,
        Sign("Pareto frontier", "frontier"): any(len(path) > 1 for path in data.frontiers),
        Sign("one method, other settings", "knob"): bool(data.knobs),
        Sign("95 % interval", "interval"): any(end is not None for end in lower_ends),
    }
    drawn = [sign for sign, is_drawn in signs.items() if is_drawn]
    return legend_signs(data.rows, drawn)
