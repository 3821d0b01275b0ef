"""Images that other code made, whatever files they came in."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanternbench.errors import UserError
from lanternbench.metrics.reference import images_in

LAYOUTS = "a .jsonl, .npz or .safetensors file, or a folder of images (docs/import.md)"


class Entry(NamedTuple):
    """One image: its ``tokens`` [L], or an ``image`` (a file, or pixels [H, W, 3]).

    ``number``: of its prompt from 0, where no caption is given.  ``steps``, ``seconds``: as its maker states them;
    ``per_step``: tokens a step, in place of ``steps``.
    """

    where: str
    caption: str | None = None
    tokens: NDArray[np.int64] | None = None
    image: Path | NDArray[np.uint8] | None = None
    steps: int | None = None
    seconds: float | None = None
    id: str | None = None
    number: int | None = None
    per_step: float | None = None


def images_of(folder: Path) -> list[Path]:
    """Raises UserError for a folder without any."""
    if not (found := images_in(folder)):
        more = ": .pt files may run code when they are read; save them as .npz" if [*folder.glob("*.pt")] else ""
        raise UserError(f"{folder} has no images{more}: give {LAYOUTS}.")
    return found
