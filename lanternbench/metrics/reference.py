"""The folder of real images that metrics compare with."""

import hashlib
from pathlib import Path
from typing import Any

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}


def images_in(folder: Path | None) -> list[Path]:
    """The image files of a folder, sorted by name; an empty list without a folder."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder and folder.is_dir() else []


def missing(what: str, folder: Path | None) -> str | None:
    """None when there are at least two real images, else one sentence."""
    if len(images_in(folder)) >= 2:
        return None
    where = f"{folder} holds fewer than two images" if folder else "no folder of them was given"
    return f"{what} compares with real images and {where}; give one: lanternbench score --reference FOLDER"


def described(folder: Path | None) -> dict[str, Any] | None:
    """The real images as results record them: folder name, count, and SHA-256 over their names and sizes."""
    if folder is None:
        return None
    paths = images_in(folder)
    digest = sha256([f"{path.name} {path.stat().st_size}" for path in paths])
    return {"folder": folder.resolve().name, "images": len(paths), "hash": digest}


def sha256(lines: list[str]) -> str:
    """SHA-256 (hex) of lines of text."""
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()
