"""Maps over the image: each token coloured by the step that produced it; and images as data URIs."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

LARGEST = 256  # pixels a side of an image in the page; larger ones are scaled down
COLOURS = {"accept": "viridis", "depth": "magma"}


def token_map(per_step: list[int], accept_lengths: list[int], grid: tuple[int, int]) -> NDArray[np.float64]:
    """float [h, w]: for every image token the value of the step that committed it, in raster order; NaN = unknown.

    `per_step` and `accept_lengths` have one entry per step.
    """
    height, width = grid
    steps = min(len(per_step), len(accept_lengths))
    repeats = np.clip(np.asarray(accept_lengths[:steps], dtype=np.int64), 0, height * width)
    values = np.repeat(np.asarray(per_step[:steps], dtype=np.float64), repeats)
    flat = np.full(height * width, np.nan)
    flat[: len(values)] = values[: len(flat)]
    return flat.reshape(height, width)


def colours(values: NDArray[np.float64], low: float, high: float, kind: str) -> NDArray[np.uint8]:
    """uint8 [..., 4] RGBA of values between low and high; NaN is transparent."""
    scaled = (values - low) / max(high - low, 1.0)
    rgba = matplotlib.colormaps[COLOURS[kind]](np.nan_to_num(scaled), bytes=True)
    rgba[np.isnan(values)] = 0
    return rgba


def map_uri(values: NDArray[np.float64], low: float, high: float, kind: str) -> str:
    """A PNG data URI with one pixel per token; the page scales it up without smoothing."""
    return _uri(Image.fromarray(colours(values, low, high, kind)), "PNG")


def legend(low: int, high: int, kind: str, most: int = 12) -> list[tuple[int, str]]:
    """(value, #rrggbb) for every whole value from low to high, thinned out to about `most`."""
    step = max(1, -(-(high - low + 1) // most))
    values = list(range(low, high + 1, step))
    rgba = colours(np.asarray(values, dtype=np.float64), low, high, kind)
    return [(v, "#{:02x}{:02x}{:02x}".format(*(int(c) for c in pixel[:3]))) for v, pixel in zip(values, rgba)]


def image_uri(path: Path) -> str | None:
    """The image as a data URI, at most LARGEST pixels a side; None when it is no readable image."""
    try:
        with Image.open(path, formats=("PNG", "JPEG", "WEBP")) as image:
            small = max(image.size) <= LARGEST
            image.draft("RGB", (LARGEST, LARGEST))
            picture = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    if small:
        return _uri(picture, "PNG")
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    return _uri(picture, "WEBP")


def _uri(image: Image.Image, kind: str) -> str:
    buffer = io.BytesIO()
    options = {"optimize": True} if kind == "PNG" else {"quality": 88}
    image.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()
