"""Recognises what replaces a published file: pointers, web pages and truncated downloads."""

import json
import re
import zipfile
from pathlib import Path

from lanternbench.utils.files import open_file

LFS = b"version https://git-lfs.github.com/spec/"
HTML = (b"<!doctype", b"<html", b"<head", b"<?xml")
MAX_HEADER = 10**8  # bytes of a safetensors header


def damage(path: Path) -> str | None:
    """Return what is wrong with a file, and the fix, as the end of a sentence; None if fine."""
    if path.is_symlink() and not path.exists():
        return f"is a link to {path.readlink()}, which does not exist: download it again"
    try:
        size = path.stat().st_size
        with open_file(path) as file:
            start = file.read(1024)
    except OSError:
        return None  # its reader says why it cannot be read
    if not start:
        return "is empty: download it again"
    if start.startswith(LFS):
        size_there = _pointed_size(start)
        return f"is a git-LFS pointer{size_there}, not the file: run `git lfs pull` in its clone"
    if start.lstrip().lower().startswith(HTML):
        return "is a web page, perhaps a login or an error, not the file: download it again"
    if path.suffix == ".safetensors":
        return _short_safetensors(path, size)
    if start.startswith(b"PK\x03\x04") and not zipfile.is_zipfile(path):
        return f"is truncated: its end is missing after {_gigabytes(size)}: download it again"
    return None


def _pointed_size(start: bytes) -> str:
    size = re.search(rb"^size (\d+)$", start, re.MULTILINE)
    return f" to {_gigabytes(int(size[1]))}" if size else ""


def _short_safetensors(path: Path, size: int) -> str | None:
    """Return what is wrong if a file is shorter than its header says."""
    try:
        with open_file(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= MAX_HEADER or 8 + length > size:
                return "is truncated or damaged: download it again"
            header = json.loads(file.read(length))
        ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
        whole = 8 + length + max(ends, default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return "is truncated or damaged: download it again"
    if size < whole:
        found = f"{_gigabytes(size)} of {_gigabytes(whole)} are there"
        return f"is truncated ({found}): download it again"
    return None


def _gigabytes(size: int) -> str:
    if size < 10**7:
        return f"{size:,} bytes"
    return f"{size / 1e9:.2f} GB"
