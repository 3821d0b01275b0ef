"""Files of prompts for tests, and what is read from them."""

from __future__ import annotations

from pathlib import Path

from lanternbench import prompts


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def texts(spec: str, **options) -> list[str]:
    return [prompt.text for prompt in prompts.load(spec, **options)]
