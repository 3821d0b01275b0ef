"""Digests of downloaded files: taken once after the download, remembered beside the file, compared ever after."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from lanternbench.errors import UserError
from lanternbench.utils.files import HOME, open_file, replacing


class Known(NamedTuple):
    """A file's SHA-256 (hex), and its size and time of change when that was taken."""

    sha256: str
    size: int
    mtime_ns: int


def digest(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked(path: Path, published: str = "", *, again: bool = False) -> None:
    """Check that a file is as it was published, or else as it was when its digest was first taken.

    ``published``: the digest, its first digits, or nothing.  The file is read where it is new here or was changed, and
    where ``again`` asks for it.  Raises UserError for another file.
    """
    known, about = remembered(path), path.stat()
    if known and not again and known[1:] == (about.st_size, about.st_mtime_ns):
        found = known.sha256
    else:
        found = digest(path)
    wanted = published or (known.sha256 if known else "")
    if not found.startswith(wanted):
        origin = "the published file" if published else "the file that was downloaded"
        raise UserError(
            f"{path} is not {origin} (SHA-256 {found[:12]}…, not {wanted[:12]}…): delete it, and `fetch` gets it again"
        )
    if os.access(path.parent, os.W_OK):  # a shared cache may be read alone
        remember(path, found)


def remember(path: Path, found: str) -> None:
    """Keep the digest of a file beside it."""
    about = path.stat()
    now = Known(found, about.st_size, about.st_mtime_ns)
    if now != remembered(path):
        with replacing(_beside(path), HOME, shared=True) as file:
            file.write(json.dumps(now).encode())


def remembered(path: Path) -> Known | None:
    """What is remembered of a file; nothing where that cannot be read."""
    try:
        with open_file(_beside(path)) as file:
            sha256, size, mtime_ns = json.loads(file.read(1000))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return Known(sha256, size, mtime_ns) if isinstance(sha256, str) and len(sha256) == 64 else None


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")
