"""Images of a run: side by side on the page and for a paper, as data URIs, and maps of the step
behind each token.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.samples import Sample
from lanternbench.measure.statistics import bootstrap_mean
from lanternbench.report import style
from lanternbench.report.columns import MISSING, metric_column
from lanternbench.report.findings import ShownRun
from lanternbench.report.load import Contents
from lanternbench.report.style import LINE, put_lines, wrap
from lanternbench.report.tradeoff import speed_column
from lanternbench.utils.text import one_line

LARGEST = 256  # pixels a side of an image in the page; larger ones are scaled down
ACCEPT, DEPTH = "viridis", "magma"  # colours of maps
PROMPTS = 32
PAGE_BYTES = 3_000_000  # for all images of a page
WIDTH = 6.9 * 72  # points: both columns of a two-column paper
CAPTION, GAP = 70.0, 3.0  # points
ACROSS = 8  # images of a row in a paper; more continue below


class Cell(NamedTuple):
    """One image (None: missing) with its maps by kind, as data URIs, and its facts."""

    label: str
    is_baseline: bool
    image: str | None
    maps: dict[str, str]
    facts: list[tuple[str, str]]


class Grid(NamedTuple):
    """Prompts × labels: ``lines`` of (caption, cells), in which a cell is None if it was not run;
    a legend per map.
    """

    labels: list[str]
    lines: list[tuple[str, list[Cell | None]]]
    legends: dict[str, list[tuple[int, str]]]
    notes: list[str]


def image_grid(run: ShownRun) -> Grid:
    """Return the grid of one run, within about ``PAGE_BYTES`` of images."""
    contents = run.contents
    scales = map_scales([cell for cell in contents.cells.values() if cell.label in run.names])
    most_bytes = PAGE_BYTES // max(len(contents.cells), 1)
    captions = dict(islice(contents.captions.items(), PROMPTS))
    lines = []
    for prompt, caption in captions.items():
        samples = [contents.cells.get((prompt, label)) for label in run.names]
        cells = [grid_cell(run, sample, scales, most_bytes) for sample in samples]
        lines.append((caption, cells))
    legends = {}
    if run.record.target.grid:
        legends = {kind: legend(scale) for kind, scale in scales.items()}
    return Grid(list(run.names.values()), lines, legends, grid_notes(contents, len(captions)))


def map_scales(samples: Sequence[Sample]) -> dict[str, ScalarMappable]:
    """Return the colours of each kind of map, from its least to its largest value."""
    lengths = [2, *chain.from_iterable(sample.accept_lengths for sample in samples)]
    depths = [1, 2, *chain.from_iterable(sample.tree_depths for sample in samples)]
    return {
        "accept": ScalarMappable(Normalize(1, max(lengths)), ACCEPT),
        "depth": ScalarMappable(Normalize(min(depths), max(depths)), DEPTH),
    }


def grid_notes(contents: Contents, shown: int) -> list[str]:
    """Return what a reader has to know of a grid of so many prompts."""
    notes = []
    prompts = len(contents.figures.prompts)
    if prompts > shown:
        notes.append(f"The image grid shows the first {shown} of {prompts} prompts.")
    if contents.more_seeds:
        notes.append("The image grid shows one seed per prompt; the tables use all seeds.")
    return notes


def grid_cell(
    run: ShownRun, sample: Sample | None, scales: dict[str, ScalarMappable], most_bytes: int
) -> Cell | None:
    if sample is None:
        return None
    grid = run.record.target.grid
    before = run.record.target.tokens_before
    per_step = {"accept": sample.accept_lengths, "depth": sample.tree_depths}
    in_raster_order = sample.commit_steps is None and sample.step_of_each_token() is not None
    maps: dict[str, str] = {}
    for kind, values in per_step.items():
        if grid and values and in_raster_order:  # rows drawn at once share their steps
            steps = token_map(values, sample.accept_lengths, grid, before)
            pixels = scales[kind].to_rgba(steps, bytes=True)  # transparent where unknown
            maps[kind] = data_uri(Image.fromarray(pixels), "PNG", optimize=True)
    image = image_uri(run.image_path(sample), most_bytes)
    name = run.names[sample.label]
    return Cell(name, sample.label == BASELINE, image, maps, sample_facts(sample))


def sample_facts(sample: Sample) -> list[tuple[str, str]]:
    loss = sample.fidelity_loss
    untimed = "" if sample.timed else " (not timed)"
    facts = [
        ("τ", mean_of_drafting(sample.accept_lengths)),
        ("steps", str(sample.steps)),
        ("mean tree depth", mean_of_drafting(sample.tree_depths)),
        ("decode", f"{sample.decode_s:.3f} s{untimed}"),
        ("fidelity loss", MISSING if loss is None else f"{loss:.4f}"),
        ("seed", str(sample.seed)),
    ]
    for key, value in sample.metrics.items():
        column = metric_column(key)
        facts.append((one_line(column.title, 32), column.print(value)))
    return facts


def mean_of_drafting(per_step: Sequence[int]) -> str:
    """Return the mean over steps without the first one, the prefill, which drafts nothing."""
    drafting = per_step[1:]
    return f"{fmean(drafting):.2f}" if drafting else MISSING


def grid_figure(run: ShownRun, prompts: int) -> Figure:
    """Draw the first ``prompts`` prompts of a run by its methods, each under its name and
    speedup.
    """
    cells = run.contents.cells
    captions = dict(islice(run.contents.captions.items(), prompts))
    drawn = {label for prompt, label in cells if prompt in captions}
    rows = [row for row in run.rows if row.label in drawn]
    speed = speed_column(run.rows)
    heads = []
    for row in rows:
        name = one_line(run.names[row.label], 60)
        heads.append(f"{name}\n{speed.value(row)}")
    lines = []
    for prompt in captions:
        samples = [cells.get((prompt, row.label)) for row in rows]
        paths = [run.image_path(sample) if sample else None for sample in samples]
        lines.append([open_image(path) for path in paths])
    return images_figure(heads, lines, list(captions.values()))


@style.styled()
def images_figure(
    heads: Sequence[str], rows: Sequence[Sequence[Image.Image | None]], captions: Sequence[str]
) -> Figure:
    """Draw images [captions][heads] side by side, at most ``ACROSS``, each row next to its
    caption; None: missing.
    """
    blocks = ceil(len(heads) / ACROSS) or 1
    across = ceil(len(heads) / blocks)  # equally long rows, such as 5 and 4 of 9 images
    figure = style.new_figure(WIDTH, GAP)
    side = (WIDTH - CAPTION) / max(across, 3) - GAP
    for first in range(0, len(heads), across):
        columns = slice(first, first + across)
        add_titles(figure, heads[columns], side)
        for images, caption in zip(rows, captions):
            add_images(figure, images[columns], caption, side)
        style.grow(figure, 2 * GAP)
    return figure


def add_titles(figure: Figure, heads: Sequence[str], side: float) -> None:
    """Add a line of titles at the bottom of a figure of images."""
    titles = []
    for head in heads:
        titles.append([line for piece in head.split("\n") for line in wrap(piece, side)])
    title_height = LINE * max(map(len, titles)) + 4.0
    top = style.grow(figure, title_height)
    for column, lines in enumerate(titles):
        middle = CAPTION + column * (side + GAP) + side / 2
        baseline = top + title_height - 5.0 - LINE * (len(lines) - 1)
        put_lines(figure, middle, baseline, lines, ha="center")


def add_images(
    figure: Figure, images: Sequence[Image.Image | None], caption: str, side: float
) -> None:
    """Add a row of images and its caption at the bottom of a figure."""
    lines = wrap(one_line(caption, 120), CAPTION - 6.0)
    top = style.grow(figure, max(side, LINE * len(lines)) + GAP)
    put_lines(figure, 2.0, top + LINE - 2.0, lines)
    for column, image in enumerate(images):
        axes = style.add_axes(figure, CAPTION + column * (side + GAP), top, side, side)
        axes.set(xticks=[], yticks=[], facecolor="#f3f4f2")
        if image is None:
            axes.text(0.5, 0.5, "missing", ha="center", va="center")
        else:
            axes.imshow(image, interpolation="none")


# --- maps over the image, and images as data URIs ---


def token_map(
    per_step: Sequence[int], accept_lengths: Sequence[int], grid: tuple[int, int], before: int = 0
) -> NDArray[np.float64]:
    """Return float [h, w]: the value ``per_step`` of the step that committed each image token.

    NaN: unknown; ``before``: tokens of other grids, which come first.
    """
    tokens = before + grid[0] * grid[1]
    steps = min(len(per_step), len(accept_lengths))
    repeats = np.clip(np.asarray(accept_lengths[:steps], dtype=np.int64), 0, tokens)
    values = np.repeat(np.asarray(per_step[:steps], dtype=np.float64), repeats)[:tokens]
    flat = np.full(tokens, np.nan)
    flat[: len(values)] = values
    return flat[before:].reshape(grid)


def image_and_map(
    image: Image.Image | None,
    accept_lengths: Sequence[int],
    grid: tuple[int, int],
    before: int = 0,
) -> Figure:
    """Draw the image, if there is one, next to the map of its steps' accepted lengths."""
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    *left, right = figure.subplots(1, 2 if image else 1, squeeze=False)[0]
    for axes in left:
        axes.imshow(image)
    lengths = token_map(accept_lengths, accept_lengths, grid, before)
    drawn = right.imshow(lengths, cmap=ACCEPT, vmin=1)
    figure.colorbar(drawn, ax=right, label="tokens of the step")
    for axes in (*left, right):
        axes.set_axis_off()
    return figure


class PlaceLoss(NamedTuple):
    """The mean fidelity loss of one row or column of the image, with its 95 % interval."""

    method: str
    axis: str
    place: int
    fidelity_loss: float | None
    lo: float | None
    hi: float | None
    n: int


def loss_records(
    losses: Mapping[str, Sequence[tuple[list[float], list[float]]]],
) -> list[PlaceLoss]:
    """Return the mean over samples of every method's loss, by row and by column."""
    records = []
    for label, samples in losses.items():
        for axis, of_samples in zip(("row", "column"), zip(*samples)):
            for place, values in enumerate(zip(*of_samples)):
                mean = bootstrap_mean(values)
                bounds = (mean.value, mean.lo, mean.hi)
                records.append(PlaceLoss(label, axis, place, *bounds, len(values)))
    return records


@style.styled()
def loss_figure(records: Sequence[PlaceLoss]) -> Figure:
    """Draw where in the image left-out context costs: the loss by row and by column, a curve per
    method.
    """
    figure = Figure(figsize=(6.8, 2.6), layout="constrained")
    by_row, by_column = figure.subplots(1, 2, sharey=True)
    frame = pd.DataFrame(records)
    for axes, axis in ((by_row, "row"), (by_column, "column")):
        for label, curve in frame[frame["axis"] == axis].groupby("method", sort=False):
            axes.plot(curve.place, curve.fidelity_loss, label=one_line(str(label), 60), lw=1.4)
            axes.fill_between(curve.place, curve.lo, curve.hi, alpha=0.2)
        axes.set(xlabel=f"{axis} of the image", ylim=(0, None))
    by_row.set_ylabel("fidelity loss")
    for text in by_column.legend(frameon=False, fontsize=7).get_texts():
        text.set_parse_math(False)  # a label may hold any text
    return figure


def legend(scale: ScalarMappable) -> list[tuple[int, str]]:
    """Return (value, #rrggbb) for the whole values of a scale, about twelve at most."""
    low, high = map(int, scale.get_clim())
    values = range(low, high + 1, ceil((high - low + 1) / 12))
    colours = scale.to_rgba(np.array(values))
    return [(value, to_hex(tuple(colour))) for value, colour in zip(values, colours)]


def open_image(path: Path | None, side: int = 0) -> Image.Image | None:
    """Return the image in RGB; None if it is missing or not readable.

    A JPEG is decoded no larger than it takes for ``side`` pixels.
    """
    if path is None:
        return None
    try:
        with Image.open(path, formats=("PNG", "JPEG", "WEBP")) as image:
            image.draft("RGB", (side, side) if side else None)
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def image_uri(path: Path | None, most_bytes: int = 1 << 20) -> str | None:
    """Return the image as a data URI of about ``most_bytes``; None if it is missing or not
    readable.
    """
    picture = open_image(path, LARGEST)
    return None if picture is None else picture_uri(picture, most_bytes)


def picture_uri(picture: Image.Image, most_bytes: int) -> str:
    """Return an image as a data URI of about ``most_bytes``.

    A small one stays as it is if that is not too long; others are scaled down, to at most
    ``LARGEST`` pixels a side.
    """
    if max(picture.size) <= LARGEST:
        uri = data_uri(picture, "PNG", optimize=True)
        if len(uri) <= most_bytes:
            return uri
    side = 128
    if most_bytes >= 12_000:
        side = 192
    if most_bytes >= 24_000:
        side = LARGEST
    small = picture.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    uri = data_uri(small, "WEBP", quality=85, method=2)
    return uri if len(uri) <= most_bytes else data_uri(small, "WEBP", quality=50, method=2)


def data_uri(image: Image.Image, kind: str, **options: Any) -> str:
    """Return the image as a data URI in a format of Pillow's."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()
