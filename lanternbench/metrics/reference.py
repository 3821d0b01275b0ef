"""The folder of real images that metrics compare with, and a cache of what was computed from image files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanternbench.metrics import files
from lanternbench.utils.files import HOME, cache_dir, replacing, writing

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name; an empty list without a folder."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder.is_dir() else []


def missing(what: str, folder: Path | None) -> str | None:
    """None when there are at least two real images, else one sentence."""
    if folder is not None and len(images_in(folder)) >= 2:
        return None
    where = f"{folder} holds fewer than two images" if folder else "no folder of them was given"
    return f"{what} compares with real images and {where}; give one: lanternbench score --reference FOLDER"


def described(folder: Path | None) -> dict[str, Any] | None:
    """The real images as results record them: folder name, count, and SHA-256 over their names and sizes."""
    if folder is None:
        return None
    paths = images_in(folder)
    digest = _digest([f"{path.name} {path.stat().st_size}" for path in paths])
    return {"folder": folder.resolve().name, "images": len(paths), "hash": digest}


def fingerprint(paths: Sequence[Path], settings: str) -> str:
    """SHA-256 (hex) over the settings and the folder, name, size and time of every file."""
    return _digest([settings, *(f"{path.parent.resolve()} {files.stamp(path)}" for path in paths)])


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()


def cached(
    kind: str,
    paths: Sequence[Path],
    settings: str,
    compute: Callable[[], dict[str, Tensor]],
    valid: Callable[[dict[str, Tensor]], bool] = lambda tensors: True,
) -> dict[str, Tensor]:
    """The result of ``compute`` for the image files, read from the cache or computed and stored.

    ``kind`` is a folder of the cache; ``settings`` names all that the result depends on beside the images; a cached
    file that is damaged or not ``valid`` is replaced.  Raises UserError when the disk is full or not writable.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

    digest = fingerprint(paths, f"{kind} {settings}")
    path = cache_dir() / kind / f"{digest[:16]}.safetensors"
    with suppress(OSError, SafetensorError, KeyError, ValueError):  # absent or damaged
        if valid(stored := load_file(path)):
            return stored
    result = compute()
    with writing(path, HOME):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, HOME, shared=True) as file:
        file.write(save(result, {"settings": settings, "fingerprint": digest}))
    return result
