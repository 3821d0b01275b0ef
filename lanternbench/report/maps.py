"""Maps over the image: each token coloured by the step that produced it; and images as data URIs."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from lanternbench.measure.statistics import bootstrap_mean
from lanternbench.utils.text import one_line

LARGEST = 256  # pixels a side of an image in the page; larger ones are scaled down
COLOURS = {"accept": "viridis", "depth": "magma"}


def token_map(
    per_step: list[int], accept_lengths: list[int], grid: tuple[int, int], before: int = 0
) -> NDArray[np.float64]:
    """float [h, w]: the value `per_step` of the step that committed each image token; NaN: unknown.

    `before`: tokens of other grids, which come first.
    """
    flat = np.full(grid[0] * grid[1], np.nan)
    steps = min(len(per_step), len(accept_lengths))
    repeats = np.clip(np.asarray(accept_lengths[:steps], dtype=np.int64), 0, before + flat.size)
    values = np.repeat(np.asarray(per_step[:steps], dtype=np.float64), repeats)[before:][: flat.size]
    flat[: len(values)] = values
    return flat.reshape(grid)


def colours(values: NDArray[np.float64], low: float, high: float, kind: str) -> NDArray[np.uint8]:
    """uint8 [..., 3] RGB of values between low and high."""
    scaled = (values - low) / max(high - low, 1.0)
    return matplotlib.colormaps[COLOURS[kind]](scaled, bytes=True)[..., :3]


def image_and_map(
    image: Image.Image | None, accept_lengths: list[int], grid: tuple[int, int], before: int = 0
) -> Figure:
    """The image, if there is one, beside the map of its steps' accepted lengths."""
    figure = Figure(figsize=(6.4, 3), layout="constrained")
    *left, right = figure.subplots(1, 2 if image else 1, squeeze=False)[0]
    for axes in left:
        axes.imshow(image)
    drawn = right.imshow(token_map(accept_lengths, accept_lengths, grid, before), cmap=COLOURS["accept"], vmin=1)
    figure.colorbar(drawn, ax=right, label="tokens of the step")
    for axes in (*left, right):
        axes.set_axis_off()
    return figure


def loss_records(losses: Mapping[str, Mapping[str, list[list[float]]]]) -> list[dict[str, Any]]:
    """The mean fidelity loss of every row and column of the image, with 95 % intervals over samples."""
    records = []
    for label, axes in losses.items():
        for axis, samples in axes.items():
            for place, values in enumerate(zip(*samples)):
                mean = bootstrap_mean(values)
                records.append({"method": label, "axis": axis, "place": place, "fidelity_loss": mean.value,
                                "lo": mean.lo, "hi": mean.hi, "n": len(values)})  # fmt: skip
    return records


def loss_figure(records: list[dict[str, Any]]) -> Figure:
    """Where in the image left-out context costs: the loss by row and by column, a curve per method."""
    figure = Figure(figsize=(6.8, 2.6), layout="constrained")
    for axes, axis in zip(figure.subplots(1, 2, sharey=True), ("row", "column")):
        for label in dict.fromkeys(record["method"] for record in records):
            curve = [record for record in records if (record["method"], record["axis"]) == (label, axis)]
            place, loss, low, high = ([r[name] for r in curve] for name in ("place", "fidelity_loss", "lo", "hi"))
            axes.plot(place, loss, label=one_line(label, 60), linewidth=1.4)
            axes.fill_between(place, low, high, alpha=0.2)
        axes.set(xlabel=f"{axis} of the image", ylim=(0, None))
    figure.axes[0].set_ylabel("fidelity loss")
    for text in figure.axes[1].legend(frameon=False, fontsize=7).get_texts():
        text.set_parse_math(False)  # a label is anyone's
    return figure


def map_uri(values: NDArray[np.float64], low: int, high: int, kind: str) -> str:
    """A PNG data URI with one pixel per token, transparent where unknown; the page scales it up without smoothing."""
    step = max(1, -(-(high - low + 1) // 255))  # a palette has 256 colours, the last of them transparent
    levels = np.arange(low, high + 1, step, dtype=np.float64)
    index = np.where(np.isnan(values), len(levels), np.clip(np.nan_to_num(values) - low, 0, high - low) // step)
    image = Image.fromarray(index.astype(np.uint8), "P")
    image.putpalette([int(c) for c in colours(levels, low, high, kind).ravel()] + [0, 0, 0])
    return data_uri(image, "PNG", optimize=True, transparency=len(levels))


def legend(low: int, high: int, kind: str) -> list[tuple[int, str]]:
    """(value, #rrggbb) for every whole value from low to high, thinned out to about twelve."""
    values = list(range(low, high + 1, max(1, -(-(high - low + 1) // 12))))
    rgb = colours(np.asarray(values, dtype=np.float64), low, high, kind)
    return [(value, f"#{bytes(pixel).hex()}") for value, pixel in zip(values, rgb)]


def open_image(path: Path | None, side: int = 0) -> Image.Image | None:
    """The image, as RGB, a JPEG in no more than it takes for ``side`` pixels; None when missing or not readable."""
    if path is None:
        return None
    try:
        with Image.open(path, formats=("PNG", "JPEG", "WEBP")) as image:
            image.draft("RGB", (side, side) if side else None)
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def image_uri(path: Path | None, most: int = 1 << 20) -> str | None:
    """The image as a data URI of about ``most`` bytes; None when it is missing or no readable image.

    A small image stays as it is where that is not too long, others are scaled down, at most LARGEST pixels a side.
    """
    if (picture := open_image(path, LARGEST)) is None:
        return None
    if max(picture.size) <= LARGEST and len(uri := data_uri(picture, "PNG", optimize=True)) <= most:
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
