"""The trade-off plot of the page as SVG geometry: axes, frontiers, points with error bars, labels that keep clear."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lanternbench.report.labels import Box, cost

WIDTH, HEIGHT = 640, 430
LEFT, RIGHT, TOP, BOTTOM = 66, 18, 18, 54
CHARACTER, LINE = 6.6, 14  # pixels of a label's letter, and of its height
# (dx, dy) of a label from its point, and the SVG anchor
PLACES = [
    (10 * far, 4, "start") if side == "right" else (-10 * far, 4, "end") if side == "left"
    else (0, -9 * far, "middle") if side == "above" else (0, 7 + 12 * far, "middle")
    for far in (1, 2, 3) for side in ("right", "above", "below", "left")
]  # fmt: skip


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that cover low … high, about five of them."""
    raw = (high - low) / 5 or 1.0
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def plot(data: dict[str, Any]) -> dict[str, Any]:
    """What the template draws of `pareto_data`: sizes in pixels of a WIDTH × HEIGHT picture."""
    points = data["points"]
    x_range, to_x = _axis(points, "x", LEFT, WIDTH - RIGHT)
    y_range, to_y = _axis(points, "y", HEIGHT - BOTTOM, TOP)
    drawn = []
    front = {i for frontier in data["frontiers"] for i in frontier}
    for i, point in enumerate(points):
        ends = {
            f"{axis}{side}": to(point[axis] + sign * point[f"{axis}_{name}"])
            for axis, to in (("x", to_x), ("y", to_y))
            for side, sign, name in ((0, -1, "minus"), (1, 1, "plus"))
        }
        drawn.append(point | {"x": to_x(point["x"]), "y": to_y(point["y"]), "front": i in front} | ends)
    _place(drawn)
    return {
        "key": data["key"],
        "title": data["title"],
        "x_title": data["x_title"],
        "y_title": data["y_title"],
        "width": WIDTH,
        "height": HEIGHT,
        "box": (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
        "x_ticks": [(to_x(t), f"{t:g}") for t in map(_tidy, ticks(*x_range))],
        "y_ticks": [(to_y(t), f"{t:g}") for t in map(_tidy, ticks(*y_range))],
        "points": drawn,
        "frontiers": [_stairs([(drawn[i]["x"], drawn[i]["y"]) for i in frontier]) for frontier in data["frontiers"]],
        "families": {point["family"]: point["colour"] for point in points},
    }


def _tidy(value: float) -> float:
    return float(f"{value:.10g}")


def _axis(points: list[dict[str, Any]], axis: str, begin: float, end: float) -> tuple[Any, Callable[[float], float]]:
    """The range of values with a margin, and the map from values to pixels."""
    low = min((p[axis] - p[f"{axis}_minus"] for p in points), default=0.0)
    high = max((p[axis] + p[f"{axis}_plus"] for p in points), default=1.0)
    span = (high - low) or max(abs(high), 1.0)
    low, high = low - 0.08 * span, high + 0.08 * span
    return (low, high), lambda value: round(begin + (value - low) / (high - low) * (end - begin), 1)


def _stairs(corners: list[tuple[float, float]]) -> str:
    """The frontier as an SVG path: up or down at the earlier point, then across to the later one."""
    return " ".join([f"M{x} {y}" if i == 0 else f"V{y} H{x}" for i, (x, y) in enumerate(corners)])


def _place(points: list[dict[str, Any]]) -> None:
    """Give each point the place of its label that covers least of points, bars, other labels and the outside."""
    taken: list[Box] = []
    for p in points:
        taken += [(p["x"] - 6, p["y"] - 6, p["x"] + 6, p["y"] + 6), (p["x0"], p["y"] - 1, p["x1"], p["y"] + 1)]
        taken.append((p["x"] - 1, p["y1"], p["x"] + 1, p["y0"]))
    frame = (0.0, 0.0, float(WIDTH), float(HEIGHT - BOTTOM))
    for p in sorted(points, key=lambda p: not p["front"]):
        width = CHARACTER * len(p["name"])
        options = []
        for rank, (dx, dy, anchor) in enumerate(PLACES):
            left = p["x"] + dx - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
            box = (left, p["y"] + dy - LINE + 3, left + width, p["y"] + dy + 3)
            options.append((cost(box, taken, frame) + rank, rank, box))
        _, rank, box = min(options)
        taken.append(box)
        dx, dy, anchor = PLACES[rank]
        p["label"] = {"x": round(p["x"] + dx, 1), "y": round(p["y"] + dy, 1), "anchor": anchor}
