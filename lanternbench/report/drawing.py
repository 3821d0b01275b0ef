"""Scenes as PNG, SVG and PDF files; templates/scene.html draws them inside the page."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from lanternbench.report.scene import PHASES, SIZE, Bar, Item, Line, Mark, Scene
from lanternbench.utils.files import OUT, replacing

STYLE: Any = {
    "font.size": 8.5, "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": "#444444", "axes.labelcolor": "#222222", "xtick.color": "#444444", "ytick.color": "#444444",
    "pdf.fonttype": 42,  # editable text: venues reject Type 3 fonts
    "svg.hashsalt": "lanternbench",  # the same data gives the same file
}  # fmt: skip
DATES: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # left out of files
POINT = 3.35 * 72 / 360  # of one pixel: a narrow picture is as wide as a column of a two-column paper
# role -> colour (None: the group's), width in pixels, dashes, opacity; report.css has the same
LINES: dict[str, tuple[str | None, float, Any, float]] = {
    "grid": ("#e6e6e6", 0.8, "-", 1.0),
    "reference": ("#5f666e", 1.0, (0, (3, 3)), 1.0),
    "frontier": ("#5f666e", 1.2, (0, (5, 4)), 1.0),
    "knob": (None, 2.2, "-", 0.8),
    "curve": (None, 1.8, "-", 1.0),
    "interval": (None, 1.2, "-", 0.65),
    "leader": ("#9aa0a6", 0.8, "-", 1.0),
}
TEXTS = {"tick": "#5f666e", "title": "#3c4248", "legend": "#3c4248"}  # the others are ink
INK = "#1d2126"


def scene_figure(scene: Scene) -> Figure:
    """The figure of a scene, a pixel of which is `POINT` points."""
    figure = Figure(figsize=(scene.width * POINT / 72, scene.height * POINT / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.axis("off")
    for order, group in enumerate(scene.groups, 2):
        for item in group.items:
            _draw(axes, item, group.colour or INK, order)
    return figure


def save(draw: Callable[[], Figure], stem: Path, kinds: Sequence[str], dpi: int = 300) -> list[Path]:
    """The figure in our style as ``stem``.KIND; the same data gives the same bytes."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a label with signs that the font lacks shows boxes
        figure = draw()
        for path, kind in zip(files, kinds):
            with replacing(path, OUT) as file:
                figure.savefig(file, format=kind, dpi=dpi, metadata=DATES.get(kind, {}))
    return files


def _draw(axes: Axes, item: Item, colour: str, order: int) -> None:
    if isinstance(item, Line):
        fixed, width, dashes, alpha = LINES[item.role]
        x, y = zip(*item.points)
        axes.plot(x, y, color=fixed or colour, linewidth=width * POINT, linestyle=dashes, alpha=alpha, zorder=order)
    elif isinstance(item, Bar):
        look: dict[str, Any] = {"color": PHASES.get(item.role, colour), "alpha": 0.35 if item.role == "share" else 1.0}
        axes.add_patch(Rectangle((item.x, item.y), item.width, item.height, linewidth=0, zorder=order, **look))
    elif isinstance(item, Mark):
        marker, size = {"circle": ("o", 10.0), "diamond": ("D", 8.6), "small": ("o", 5.0)}[item.shape]
        face, style = colour if item.fill in ("full", "half") else "white", "left" if item.fill == "half" else "full"
        axes.plot(item.x, item.y, marker, markersize=size * POINT, markerfacecolor=face, markerfacecoloralt="white",
                  markeredgecolor=colour, markeredgewidth=1.8 * POINT, fillstyle=style, zorder=order)  # type: ignore[arg-type]  # fmt: skip
        if item.fill == "dot":
            axes.plot(item.x, item.y, marker="o", markersize=3 * POINT, color=colour, zorder=order)
    else:
        axes.text(
            item.x, item.y, item.text, color=TEXTS.get(item.role, INK), fontsize=SIZE * POINT, parse_math=False,
            ha={"start": "left", "middle": "center", "end": "right"}[item.anchor], va="baseline",
            rotation=90 if item.turned else 0, rotation_mode="anchor",
            fontweight="bold" if item.role == "heading" else "normal", zorder=order,
            path_effects=[withStroke(linewidth=2, foreground="white")] if item.role == "label" else None,
            family="DejaVu Sans",
        )  # fmt: skip
