"""Digests of downloaded files: taken after the download, stored beside the file, compared ever after."""

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
    """Check a file by its ``published`` digest (or its start), else by the first one taken.  Raises UserError."""
    known = remembered(path)
    unchanged = known is not None and known == _entry(path, known.sha256)
    sha256 = known.sha256 if known and unchanged and not again else digest(path)
    wanted = published or (known.sha256 if known else "")
    if not sha256.startswith(wanted):
        origin = "the published file" if published else "the file that was downloaded"
        raise UserError(
            f"{path} is not {origin} (SHA-256 {sha256[:12]}…, not {wanted[:12]}…): delete it, and `fetch` gets it again"
        )
    if os.access(path.parent, os.W_OK):  # a shared cache may be read alone
        remember(path, sha256)


def remember(path: Path, sha256: str) -> None:
    """Store the digest of a file beside it."""
    if (entry := _entry(path, sha256)) != remembered(path):
        with replacing(_beside(path), HOME, shared=True) as file:
            file.write(json.dumps(entry).encode())


def remembered(path: Path) -> Known | None:
    """The stored digest of a file; None where it is missing or unreadable."""
    try:
        with open_file(_beside(path)) as file:
            known = Known(*json.loads(file.read(1000)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return known if isinstance(known.sha256, str) and len(known.sha256) == 64 else None


def _entry(path: Path, sha256: str) -> Known:
    return Known(sha256, path.stat().st_size, path.stat().st_mtime_ns)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")
