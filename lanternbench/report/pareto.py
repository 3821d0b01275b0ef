"""The trade-off of speed and quality: the Pareto frontier, its data, and the plot for a paper."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lanternbench.analysis.summaries import Row
from lanternbench.report.columns import BASE, Column, metric_column, metric_keys
from lanternbench.report.labels import place_labels
from lanternbench.report.palette import colour, family, marker
from lanternbench.utils.files import OUT, replacing
from lanternbench.utils.text import one_line

COLUMN = {column.key: column for column in BASE}
STYLE: Any = {
    "font.size": 8.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.labelcolor": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "pdf.fonttype": 42,  # editable text: venues reject Type 3 fonts
    "svg.hashsalt": "lanternbench",  # the same data gives the same file
}


def pareto_frontier(x: list[float], y: list[float], lower_is_better: bool) -> list[int]:
    """Indices of the points that no other point beats, by growing x.

    x is better when higher; y when higher, or lower if `lower_is_better`. A point is beaten by another that is at
    least as good on both axes and better on one; equal points stay together. Points with NaN never count.
    """
    sign = -1.0 if lower_is_better else 1.0
    points = [(a, sign * b, i) for i, (a, b) in enumerate(zip(x, y)) if math.isfinite(a) and math.isfinite(b)]

    def beaten(a: float, b: float) -> bool:
        return any(c >= a and d >= b and (c > a or d > b) for c, d, _ in points)

    return [i for a, b, i in sorted(points, key=lambda p: (p[0], -p[1])) if not beaten(a, b)]


def speed_column(rows: Sequence[Row]) -> Column:
    """The x axis: speedup, or step compression where no row has a speedup (no baseline, or nothing was timed)."""
    timed = any(row.value("speedup") is not None for row in rows)
    return COLUMN["speedup" if timed else "step_compression"]


def quality_columns(rows: Sequence[Row]) -> list[Column]:
    """The y axes worth a plot: fidelity loss and every metric with a value on a row that also has a speed."""
    x = speed_column(rows).key
    every = [COLUMN["fidelity_loss"], *map(metric_column, metric_keys(rows))]
    return [c for c in every if any(r.value(c.key) is not None and r.value(x) is not None for r in rows)]


def pareto_data(rows: Sequence[Row], quality: Column) -> dict[str, Any]:
    """Points (name, method, family, x, y, their bounds or None) and each setup's frontier as indices; plain JSON."""
    speed = speed_column(rows)
    points, labels = [], [row.label for row in rows]
    for row in rows:
        if row.value(speed.key) is None or row.value(quality.key) is None:
            continue
        name, run = one_line(row.label, 40), getattr(row, "run", None)
        if run and labels.count(row.label) > 1:
            name += f" · {one_line(run, 24)}"
        point: dict[str, Any] = {"name": name, "method": row.method, "family": family(row.method)}
        point |= {"colour": colour(row.method), "setup": getattr(row, "setup", 1), "lossless": row.lossless}
        for axis, column in (("x", speed), ("y", quality)):
            value, low, high, *_ = row.figure(column.key)
            assert value is not None
            # the interval of a ratio or of FID need not hold its point estimate: an error bar cannot be negative
            point |= {axis: value, f"{axis}_minus": max(0.0, value - low) if low is not None else 0.0}
            point |= {f"{axis}_plus": max(0.0, high - value) if high is not None else 0.0}
            point[f"{axis}_text"] = column.cell(row)
        points.append(point)
    lower, frontiers = quality.better == "lower", []
    # what was measured otherwise beats nothing
    for setup in dict.fromkeys(p["setup"] for p in points if quality.better):
        own = [i for i, p in enumerate(points) if p["setup"] == setup]
        best = pareto_frontier([points[i]["x"] for i in own], [points[i]["y"] for i in own], lower)
        frontiers.append([own[i] for i in best])
    return {"key": quality.key, "title": quality.title, "better": quality.better, "x_title": _axis(speed),
            "y_title": _axis(quality), "points": points, "frontiers": frontiers}  # fmt: skip


def pareto_figure(data: dict[str, Any]) -> Figure:
    """The static plot of `pareto_data`: error bars, frontier, labelled points, a colour per family."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 3.7), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        for frontier in data["frontiers"]:
            x, y = ([data["points"][i][axis] for i in frontier] for axis in ("x", "y"))
            axes.plot(x, y, drawstyle="steps-pre", color="#9aa0a6", linewidth=1.1, linestyle=(0, (4, 2)), zorder=1)
        for i, point in enumerate(data["points"]):
            _draw_point(axes, point, any(i in frontier for frontier in data["frontiers"]))
        axes.set_xlabel(data["x_title"], parse_math=False)
        axes.set_ylabel(data["y_title"], parse_math=False)
        axes.margins(0.12, 0.14)
        _legend(axes, data["points"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a label with signs that the font lacks shows boxes
            figure.canvas.draw()
            figure.set_layout_engine("none")  # else every later drawing would move the axes under the labels
            place_labels(axes, data["points"], data["frontiers"])
    return figure


def write_pareto(rows: Sequence[Row], out: Path) -> list[Path]:
    """`pareto-<metric>.png/.svg/.pdf` in `out` for every quality column; returns the files."""
    files = []
    for quality in quality_columns(rows):
        figure = pareto_figure(pareto_data(rows, quality))
        # the metric's name comes from a file: nothing but a file name may come of it
        stem = "pareto-" + re.sub(r"[^A-Za-z0-9_-]+", "_", quality.key)[:60]
        for kind, metadata in (("png", {}), ("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
            files.append(out / f"{stem}.{kind}")
            with matplotlib.rc_context(STYLE), warnings.catch_warnings(), replacing(files[-1], OUT) as file:
                warnings.simplefilter("ignore", UserWarning)
                figure.savefig(file, format=kind, dpi=200, metadata=metadata)
    return files


def _axis(column: Column) -> str:
    names = {"speedup": "speedup over AR", "step_compression": "step compression (tokens / steps)"}
    arrow = {"higher": "  (higher is better)", "lower": "  (lower is better)", "": ""}[column.better]
    return one_line(names.get(column.key, column.title), 60) + arrow


def _draw_point(axes: Axes, point: dict[str, Any], on_frontier: bool) -> None:
    axes.errorbar(
        point["x"], point["y"],
        xerr=[[point["x_minus"]], [point["x_plus"]]], yerr=[[point["y_minus"]], [point["y_plus"]]],
        fmt="none", ecolor=point["colour"], elinewidth=0.9, capsize=2, alpha=0.55, zorder=2,
    )  # fmt: skip
    face = point["colour"] if on_frontier or point["method"] == "ar" else "white"
    axes.plot(point["x"], point["y"], marker=marker(point["method"]), markersize=6.5, markerfacecolor=face,
              markeredgecolor=point["colour"], markeredgewidth=1.3, linestyle="none", zorder=3)  # fmt: skip


def _legend(axes: Axes, points: list[dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    shown = {p["family"]: p["colour"] for p in points}
    handles = [Line2D([], [], marker="o", linestyle="none", color=c, label=name) for name, c in shown.items()]
    handles.append(Line2D([], [], color="#9aa0a6", linestyle=(0, (4, 2)), label="Pareto frontier"))
    axes.figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5), frameon=False,
                       fontsize=7.5, handletextpad=0.3, columnspacing=1.2)  # fmt: skip
