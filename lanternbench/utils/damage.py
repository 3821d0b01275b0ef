"""What lies on a disk in place of a published file, told by its first bytes and its length."""

import json
import zipfile
from pathlib import Path

LFS = b"version https://git-lfs.github.com/spec/"
HTML = (b"<!doctype", b"<html", b"<head", b"<?xml")
MAX_HEADER = 10**8  # bytes of a safetensors header


def damage(path: Path) -> str | None:
    """Return what is wrong with a file and how to mend it, as the end of a sentence; None if
    nothing shows.
    """
    if path.is_symlink() and not path.exists():
        return f"is a link to {path.readlink()}, which does not exist: download it again"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(1024)
    except OSError:
        return None  # whoever reads it says why it cannot be read
    if not start:
        return "is empty: download it again"
    if start.startswith(LFS):
        return f"is a git-LFS pointer{_pointed_size(start)}, not the file: run `git lfs pull` in its clone"
    if start.lstrip().lower().startswith(HTML):
        return "is a web page, perhaps of a login or an error, not the file: download it again"
    if path.suffix == ".safetensors":
        return _short_safetensors(path, size)
    if start.startswith(b"PK\x03\x04") and not zipfile.is_zipfile(path):
        return f"is truncated, as its end is missing after {_gigabytes(size)}: download it again"
    return None


def _pointed_size(start: bytes) -> str:
    for line in start.splitlines():
        name, _, value = line.partition(b" ")
        if name == b"size" and value.isdigit():
            return f" to {_gigabytes(int(value))}"
    return ""


def _short_safetensors(path: Path, size: int) -> str | None:
    """Compare a file's length with what its header says."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= MAX_HEADER or 8 + length > size:
                return "is truncated or damaged: download it again"
            header = json.loads(file.read(length))
        ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
        whole = 8 + length + max(ends, default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return "is truncated or damaged: download it again"
    if size < whole:
        said = f"{_gigabytes(size)} of {_gigabytes(whole)} are there"
        return f"is truncated ({said}): download it again"
    return None


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 10**7 else f"{size:,} bytes"
