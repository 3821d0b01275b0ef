"""Digests of a target's or drafter's files, so that no run mixes two models of the same name."""

import hashlib
from functools import lru_cache
from pathlib import Path

SUFFIXES = {".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".json", ".model", ".yaml"}
FEATURES = "features"  # the folder of stored text features, which is not part of a target
WHOLE = 2**26  # bytes up to which a file is read whole; of a larger one BLOCKS + 1 blocks from end to end are read
BLOCK, BLOCKS = 2**16, 256


def fingerprints(place: Path) -> dict[str, str]:
    """Digest by part: of a file, by its stem; of a folder, of each file with weights and of each role's folder.

    Empty without such files.  A change of a few weights inside a file over 64 MB may go unseen.
    """
    if place.is_file():
        return {place.stem: _digest([place], place.parent)}
    parts = {}
    for part in sorted(place.iterdir()) if place.is_dir() else []:
        paths = [part] if part.is_file() else sorted(part.rglob("*")) if part.name != FEATURES else []
        if files := [path for path in paths if path.suffix in SUFFIXES and path.is_file()]:
            parts[part.stem if part.is_file() else part.name] = _digest(files, place)
    return parts


def _digest(files: list[Path], root: Path) -> str:
    """16 hex digits over the files' names under ``root``, sizes and content."""
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        content = _content(path.resolve(), stat.st_size, stat.st_mtime_ns)
        digest.update(f"{path.relative_to(root)}\0{stat.st_size}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1024)
def _content(path: Path, size: int, _changed: int) -> str:
    with open(path, "rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        for i in range(BLOCKS + 1):
            file.seek(i * (size - BLOCK) // BLOCKS)
            digest.update(file.read(BLOCK))
        return digest.hexdigest()
