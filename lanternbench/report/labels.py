"""Labels beside points without overlaps: a greedy choice among places around each point."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation

Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels

# (dx, dy) in points from the marker, horizontal and vertical alignment: near places first, then far ones
PLACES = [
    (dx * far, dy * far, ha, va)
    for far in (1.0, 2.2, 3.6, 5.2)
    for dx, dy, ha, va in (
        (7, 0, "left", "center"), (0, 7, "center", "bottom"), (0, -7, "center", "top"), (-7, 0, "right", "center"),
        (6, 5, "left", "bottom"), (6, -5, "left", "top"), (-6, 5, "right", "bottom"), (-6, -5, "right", "top"),
    )
]  # fmt: skip


def overlap(a: Box, b: Box) -> float:
    """Area that two boxes share, in pixels²."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, width) * max(0.0, height)


def cost(box: Box, taken: list[Box], frame: Box) -> float:
    """How bad a place is: the area that it shares with what is there, and twenty times its area outside the frame."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    return sum(overlap(box, other) for other in taken) + 20.0 * max(0.0, area - overlap(box, frame))


def place_labels(axes: Axes, points: list[dict[str, Any]], frontiers: list[list[int]]) -> None:
    """Write each point's name where it covers least of markers, bars, the frontiers, other labels and the outside.

    The figure must be drawn and its layout final: places are measured in pixels.
    """
    renderer = axes.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    extent = axes.get_window_extent(renderer)
    frame = (extent.x0, extent.y0, extent.x1, extent.y1)
    taken = [box for point in points for box in _obstacles(axes, point)]
    for frontier in frontiers:
        taken += _steps(axes, [(points[i]["x"], points[i]["y"]) for i in frontier])
    for point in points:
        label = axes.annotate(
            point["name"], (point["x"], point["y"]), textcoords="offset points", fontsize=7.5, color="#222222",
            parse_math=False, zorder=4, arrowprops={"arrowstyle": "-", "color": "#b0b4b9", "linewidth": 0.6,
                                                    "shrinkA": 0, "shrinkB": 3},
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip
        best, box = min(
            ((cost(candidate, taken, frame) + rank * 0.5, rank, candidate) for rank, candidate in
             enumerate(_try(label, place, renderer) for place in PLACES)),
            key=lambda found: found[:2],
        )[1:]  # fmt: skip
        _move(label, PLACES[best])
        if best < 8 and label.arrow_patch is not None:
            label.arrow_patch.set_visible(False)  # next to its point a label needs no leader
        taken.append(box)


def _obstacles(axes: Axes, point: dict[str, Any]) -> list[Box]:
    to_pixels = axes.transData.transform
    x, y = to_pixels((point["x"], point["y"]))
    left, low = to_pixels((point["x"] - point["x_minus"], point["y"] - point["y_minus"]))
    right, high = to_pixels((point["x"] + point["x_plus"], point["y"] + point["y_plus"]))
    return [(x - 5, y - 5, x + 5, y + 5), (left, y - 1, right, y + 1), (x - 1, low, x + 1, high)]


def _steps(axes: Axes, corners: list[tuple[float, float]]) -> list[Box]:
    """The frontier's stairs as thin boxes: up or down at the earlier point, then across to the later one."""
    pixels = [tuple(axes.transData.transform(corner)) for corner in corners]
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(pixels):
        boxes += [(x0 - 1, min(y0, y1), x0 + 1, max(y0, y1)), (x0, y1 - 1, x1, y1 + 1)]
    return boxes


def _move(label: Annotation, place: tuple[float, float, str, str]) -> None:
    label.set_position(place[:2])
    label.set(horizontalalignment=place[2], verticalalignment=place[3])


def _try(label: Annotation, place: tuple[float, float, str, str], renderer: Any) -> Box:
    _move(label, place)
    label.update_positions(renderer)
    # the text's own extent: an Annotation's would include the leader
    box = super(Annotation, label).get_window_extent(renderer)
    return box.x0 - 1, box.y0 - 1, box.x1 + 1, box.y1 + 1
