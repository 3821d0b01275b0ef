"""Images of a run side by side for a paper: prompts down, methods across."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from lanternbench.report.drawing import INK, save
from lanternbench.report.load import Contents, Run, image_path
from lanternbench.report.pareto import speed_column
from lanternbench.report.scene import wrap
from lanternbench.report.view import View
from lanternbench.utils.text import one_line

WIDTH = 6.9 * 72  # points: both columns of a two-column paper
CAPTION, GAP, SIZE, LINE = 70.0, 3.0, 7.0, 8.6  # points
ACROSS = 8  # methods; more continue below


def grid_figure(run: Run, contents: Contents, view: View, prompts: int) -> Figure:
    """The first ``prompts`` prompts of a run by its methods, each under its name and speedup."""
    captions = list(contents.picked.captions.items())[:prompts]
    rows = [row for row in run.rows if any((prompt, row.label) in contents.picked.cells for prompt, _ in captions)]
    blocks = [rows[i : i + ACROSS] for i in range(0, len(rows), ACROSS)]
    side = (WIDTH - CAPTION) / max(min(len(rows), ACROSS), 3) - GAP
    speed = speed_column(run.rows)
    heads = [[_head(view.name(r.label, r.method), speed.value(r), side) for r in block] for block in blocks]
    texts = [wrap(one_line(text, 120), CAPTION - 6, SIZE) for _, text in captions]
    highs = [max(side, LINE * len(lines)) + GAP for lines in texts]
    height = sum(LINE * max(map(len, head)) + 4 + sum(highs) + 2 * GAP for head in heads) + GAP
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    FigureCanvasAgg(figure)
    top = height - GAP
    for block, head in zip(blocks, heads):
        deep = LINE * max(map(len, head))
        for i, lines in enumerate(head):
            for k, line in enumerate(lines):
                _text(figure, CAPTION + i * (side + GAP) + side / 2, top - deep + LINE * (len(lines) - 1 - k) + 2, line,
                      height, "center")  # fmt: skip
        top -= deep + 4
        for (prompt, _), lines, high in zip(captions, texts, highs):
            for k, line in enumerate(lines):
                _text(figure, 2, top - LINE * (k + 1), line, height, "left")
            for i, row in enumerate(block):
                sample = contents.picked.cells.get((prompt, row.label))
                path = image_path(run, sample) if sample else None
                place = (CAPTION + i * (side + GAP), top - side, side, side)
                _image(figure, path, place, height)
            top -= high
        top -= 2 * GAP
    return figure


def write_grid(run: Run, contents: Contents, view: View, prompts: int, stem: Path) -> list[Path]:
    """``stem``.png and .pdf."""
    return save(lambda: grid_figure(run, contents, view, prompts), stem, ("png", "pdf"))


def _head(name: str, speed: str, side: float) -> list[str]:
    return [*wrap(one_line(name, 60), side, SIZE), speed]


def _text(figure: Figure, x: float, y: float, text: str, height: float, side: str) -> None:
    figure.text(x / WIDTH, y / height, text, fontsize=SIZE, color=INK, ha=side, va="baseline", parse_math=False,
                family="DejaVu Sans")  # fmt: skip


def _image(figure: Figure, path: Path | None, place: Sequence[float], height: float) -> None:
    x, y, wide, high = place
    axes = figure.add_axes((x / WIDTH, y / height, wide / WIDTH, high / height))
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    try:
        if path is None:
            raise OSError("there is no image")
        with Image.open(path, formats=("PNG", "JPEG", "WEBP")) as image:
            axes.imshow(image.convert("RGB"), interpolation="none")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        axes.text(0.5, 0.5, "missing", fontsize=SIZE, ha="center", va="center", transform=axes.transAxes)
        axes.set_facecolor("#f3f4f2")
