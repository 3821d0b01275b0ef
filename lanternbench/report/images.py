"""Images of a run: side by side on the page and for a paper, as data URIs, and maps of the step
behind each token.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from lanternbench.measure.samples import Sample
from lanternbench.measure.statistics import bootstrap_mean
from lanternbench.report.columns import MISSING, metric_column
from lanternbench.report.load import Contents, Run, View
from lanternbench.report.style import INK, wrap
from lanternbench.report.tradeoff import speed_column
from lanternbench.utils.text import one_line

LARGEST = 256  # pixels a side of an image in the page; larger ones are scaled down
COLOURS = {"accept": "viridis", "depth": "magma"}
PROMPTS = 32
MOST = 3_000_000  # bytes for all images of a page
WIDTH = 6.9 * 72  # points: both columns of a two-column paper
CAPTION, GAP, SIZE, LINE = 70.0, 3.0, 7.0, 8.6  # points
ACROSS = 8  # images of a row in a paper; more continue below


class Cell(NamedTuple):
    """One image with its maps, as data URIs (None: missing), and what is known of it."""

    label: str
    image: str | None
    accept: str | None
    depth: str | None
    facts: list[tuple[str, str]]


class Grid(NamedTuple):
    """Prompts × labels: ``lines`` of (caption, cells), where a cell is None if it was not run; a
    legend per map.
    """

    labels: list[str]
    lines: list[tuple[str, list[Cell | None]]]
    legends: dict[str, list[tuple[int, str]]]
    notes: list[str]


def image_grid(run: Run, contents: Contents, view: View) -> Grid:
    """The grid of one run, within about ``MOST`` bytes of images."""
    methods, cells = (
        {label: method for label, (method, _) in contents.figures.methods.items()},
        contents.cells,
    )
    known = [row.label for row in run.rows if row.label in methods]
    names = view.labels(
        {label: methods[label] for label in (known if view.methods else [*known, *methods])}
    )
    samples = [sample for sample in cells.values() if sample.label in names]
    depths = [n for sample in samples for n in sample.tree_depths]
    scales = {
        "accept": (1, max([2, *(n for sample in samples for n in sample.accept_lengths)])),
        "depth": (min([1, *depths]), max([2, *depths])),
    }
    each = MOST // max(len(cells), 1)
    captions = list(contents.captions.items())[:PROMPTS]
    lines = [
        (
            caption,
            [
                _cell(run, cells.get((prompt, label)), name, scales, each)
                for label, name in names.items()
            ],
        )
        for prompt, caption in captions
    ]
    notes = []
    if not captions:
        notes = ["samples.jsonl holds no samples: the image grid is left out."]
    elif len(contents.figures.prompts) > len(captions):
        notes = [
            f"The image grid shows the first {len(captions)} of {len(contents.figures.prompts)} prompts."
        ]
    if captions and contents.more_seeds:
        notes.append("The image grid shows one seed per prompt; the tables use all seeds.")
    legends = {kind: legend(*bounds, kind) for kind, bounds in scales.items()} if run.grid else {}
    return Grid(list(names.values()), lines, legends, notes)


def _cell(
    run: Run, sample: Sample | None, name: str, scales: dict[str, tuple[int, int]], most: int
) -> Cell | None:
    if sample is None:
        return None
    maps: dict[str, str] = {}
    for kind, values in (("accept", sample.accept_lengths), ("depth", sample.tree_depths)):
        if run.grid and values and sample.row_loss is None:  # rows drawn at once share their steps
            maps[kind] = map_uri(
                token_map(values, sample.accept_lengths, run.grid, run.before), *scales[kind], kind
            )
    return Cell(
        name,
        image_uri(run.image_path(sample), most),
        maps.get("accept"),
        maps.get("depth"),
        _facts(sample),
    )


def _facts(sample: Sample) -> list[tuple[str, str]]:
    # without the first step, the prefill, which drafts nothing
    def mean(values: list[int]) -> str:
        return f"{fmean(values[1:]):.2f}" if values[1:] else MISSING

    loss: Any = sample.fidelity_loss
    columns = {metric_column(key): value for key, value in sample.metrics.items()}
    return [
        ("τ", mean(sample.accept_lengths)),
        ("steps", str(sample.steps)),
        ("mean tree depth", mean(sample.tree_depths)),
        ("decode", f"{sample.decode_s:.3f} s" + ("" if sample.timed else " (not timed)")),
        ("fidelity loss", MISSING if loss is None else f"{loss:.4f}"),
        ("seed", str(sample.seed)),
        *(
            (one_line(c.title, 32), MISSING if value is None else c.print(value))
            for c, value in columns.items()
        ),
    ]


def grid_figure(run: Run, contents: Contents, view: View, prompts: int) -> Figure:
    """The first ``prompts`` prompts of a run by its methods, each under its name and speedup."""
    captions = dict(list(contents.captions.items())[:prompts])
    rows = [
        row
        for row in run.rows
        if any((prompt, row.label) in contents.cells for prompt in captions)
    ]
    speed = speed_column(run.rows)
    heads = [
        f"{one_line(view.name(row.label, row.method), 60)}\n{speed.value(row)}" for row in rows
    ]
    samples = [[contents.cells.get((prompt, row.label)) for row in rows] for prompt in captions]
    images = [
        [open_image(run.image_path(sample) if sample else None) for sample in line]
        for line in samples
    ]
    return images_figure(heads, images, list(captions.values()))


def images_figure(
    heads: Sequence[str], rows: Sequence[Sequence[Image.Image | None]], captions: list[str]
) -> Figure:
    """Images [captions][heads] side by side, at most ``ACROSS``, each row beside its caption;
    None: missing.
    """
    # lines alike, as 5 and 4 of 9 images
    across = ceil(len(heads) / ceil(len(heads) / ACROSS)) if heads else 1
    side = (WIDTH - CAPTION) / max(across, 3) - GAP
    titles = [
        "\n".join(line for part in head.split("\n") for line in wrap(part, side, SIZE))
        for head in heads
    ]
    texts = ["\n".join(wrap(one_line(text, 120), CAPTION - 6, SIZE)) for text in captions]
    heights = [max(side, LINE * (text.count("\n") + 1)) + GAP for text in texts]
    blocks = [
        range(first, min(first + across, len(heads))) for first in range(0, len(heads), across)
    ]
    tops = [LINE * (max(titles[i].count("\n") for i in block) + 1) + 4 for block in blocks]
    height = sum(tops) + len(blocks) * (sum(heights) + 2 * GAP) + GAP
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    style: dict[str, Any] = {
        "fontsize": SIZE,
        "color": INK,
        "parse_math": False,
        "family": "DejaVu Sans",
    }
    y = height - GAP  # points from below, of what is drawn next
    for block, top in zip(blocks, tops):
        y -= top
        places = {i: CAPTION + (i - block.start) * (side + GAP) for i in block}
        for i, x in places.items():
            figure.text(
                (x + side / 2) / WIDTH,
                (y + 4) / height,
                titles[i],
                ha="center",
                va="bottom",
                **style,
            )
        for text, images, high in zip(texts, rows, heights):
            figure.text(2 / WIDTH, y / height, text, va="top", **style)
            for i, x in places.items():
                axes = figure.add_axes(
                    (x / WIDTH, (y - side) / height, side / WIDTH, side / height)
                )
                axes.set(xticks=[], yticks=[], facecolor="#f3f4f2")
                axes.spines[:].set_visible(False)
                if (image := images[i]) is None:
                    axes.text(0.5, 0.5, "missing", fontsize=SIZE, ha="center", va="center")
                else:
                    axes.imshow(image, interpolation="none")
            y -= high
        y -= 2 * GAP
    return figure


# --- maps over the image, and images as data URIs ---


def token_map(
    per_step: list[int], accept_lengths: list[int], grid: tuple[int, int], before: int = 0
) -> NDArray[np.float64]:
    """float [h, w]: the value `per_step` of the step that committed each image token; NaN:
    unknown; `before`: tokens of other grids, which come first."""
    flat = np.full(grid[0] * grid[1], np.nan)
    steps = min(len(per_step), len(accept_lengths))
    repeats = np.clip(np.asarray(accept_lengths[:steps], dtype=np.int64), 0, before + flat.size)
    values = np.repeat(np.asarray(per_step[:steps], dtype=np.float64), repeats)[before:][
        : flat.size
    ]
    flat[: len(values)] = values
    return flat.reshape(grid)


def colours(values: NDArray[np.float64], low: float, high: float, kind: str) -> NDArray[np.uint8]:
    """uint8 [..., 3] RGB of values between low and high."""
    return matplotlib.colormaps[COLOURS[kind]]((values - low) / max(high - low, 1.0), bytes=True)[
        ..., :3
    ]


def image_and_map(
    image: Image.Image | None, accept_lengths: list[int], grid: tuple[int, int], before: int = 0
) -> Figure:
    """The image, if there is one, beside the map of its steps' accepted lengths."""
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    *left, right = figure.subplots(1, 2 if image else 1, squeeze=False)[0]
    for axes in left:
        axes.imshow(image)
    drawn = right.imshow(
        token_map(accept_lengths, accept_lengths, grid, before), cmap=COLOURS["accept"], vmin=1
    )
    figure.colorbar(drawn, ax=right, label="tokens of the step")
    for axes in (*left, right):
        axes.set_axis_off()
    return figure


def loss_records(losses: Mapping[str, Mapping[str, list[list[float]]]]) -> list[dict[str, Any]]:
    """The mean fidelity loss of every row and column of the image, with 95 % intervals over
    samples.
    """
    records = []
    for label, axes in losses.items():
        for axis, samples in axes.items():
            for place, values in enumerate(zip(*samples)):
                mean = bootstrap_mean(values)
                records.append({"method": label, "axis": axis, "place": place, "fidelity_loss": mean.value,
                                "lo": mean.lo, "hi": mean.hi, "n": len(values)})  # fmt: skip
    return records


def loss_figure(records: list[dict[str, Any]]) -> Figure:
    """Where in the image left-out context costs: the loss by row and by column, a curve per
    method.
    """
    figure = Figure(figsize=(6.8, 2.6), layout="constrained")
    for axes, axis in zip(figure.subplots(1, 2, sharey=True), ("row", "column")):
        for label in dict.fromkeys(record["method"] for record in records):
            curve = [
                record for record in records if (record["method"], record["axis"]) == (label, axis)
            ]
            place, loss, low, high = (
                [r[name] for r in curve] for name in ("place", "fidelity_loss", "lo", "hi")
            )
            axes.plot(place, loss, label=one_line(label, 60), linewidth=1.4)
            axes.fill_between(place, low, high, alpha=0.2)
        axes.set(xlabel=f"{axis} of the image", ylim=(0, None))
    figure.axes[0].set_ylabel("fidelity loss")
    for text in figure.axes[1].legend(frameon=False, fontsize=7).get_texts():
        text.set_parse_math(False)  # a label is anyone's
    return figure


def map_uri(values: NDArray[np.float64], low: int, high: int, kind: str) -> str:
    """A PNG data URI with one pixel per token, transparent where unknown; the page scales it up
    without smoothing.
    """
    # a palette has 256 colours, the last of them transparent
    step = max(1, -(-(high - low + 1) // 255))
    levels = np.arange(low, high + 1, step, dtype=np.float64)
    index = np.where(
        np.isnan(values), len(levels), np.clip(np.nan_to_num(values) - low, 0, high - low) // step
    )
    image = Image.fromarray(index.astype(np.uint8), "P")
    image.putpalette([int(c) for c in colours(levels, low, high, kind).ravel()] + [0, 0, 0])
    return data_uri(image, "PNG", optimize=True, transparency=len(levels))


def legend(low: int, high: int, kind: str) -> list[tuple[int, str]]:
    """(value, #rrggbb) for every whole value from low to high, thinned out to about twelve."""
    values = list(range(low, high + 1, max(1, -(-(high - low + 1) // 12))))
    rgb = colours(np.asarray(values, dtype=np.float64), low, high, kind)
    return [(value, f"#{bytes(pixel).hex()}") for value, pixel in zip(values, rgb)]


def open_image(path: Path | None, side: int = 0) -> Image.Image | None:
    """The image, as RGB, a JPEG in no more than it takes for ``side`` pixels; None when missing or
    not readable.
    """
    if path is None:
        return None
    try:
        with Image.open(path, formats=("PNG", "JPEG", "WEBP")) as image:
            image.draft("RGB", (side, side) if side else None)
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def image_uri(path: Path | None, most: int = 1 << 20) -> str | None:
    """The image as a data URI of about ``most`` bytes; None when it is missing or no readable
    image.  A small one stays as it is where that is not too long, others are scaled down, at most
    LARGEST pixels a side."""
    if (picture := open_image(path, LARGEST)) is None:
        return None
    if (
        max(picture.size) <= LARGEST
        and len(uri := data_uri(picture, "PNG", optimize=True)) <= most
    ):
        return uri
    side = LARGEST if most >= 24_000 else 192 if most >= 12_000 else 128
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    uri = data_uri(picture, "WEBP", quality=85, method=2)
    return uri if len(uri) <= most else data_uri(picture, "WEBP", quality=50, method=2)


def data_uri(image: Image.Image, kind: str, **options: Any) -> str:
    """The image as a data URI in a format of Pillow's."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()
