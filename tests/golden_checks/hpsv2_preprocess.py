"""HPSv2: its letterbox preparation of images."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from golden_checks.common import Found, close, read
from lanternbench.metrics.clip import letterbox


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "hpsv2_preprocess.safetensors")
    size = int(vectors.meta["image_size"])
    shapes = ("landscape", "portrait", "square")
    return [
        close(
            name,
            letterbox(Image.fromarray(vectors[f"{name}.uint8"].numpy()), size),
            vectors[f"{name}.preprocessed"],
        )
        for name in shapes
    ]
