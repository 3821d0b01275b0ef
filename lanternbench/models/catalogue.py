"""Targets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lanternbench.errors import UserError
from lanternbench.models import tiny
from lanternbench.models.target import Target


class Entry(NamedTuple):
    """A catalogue row: what the target is and how it is loaded."""

    about: str
    load: Callable[[str], Target]  # device -> target
    ready: Callable[[], bool]


def _tiny_ready() -> bool:
    return (tiny.WEIGHTS / "target.safetensors").is_file()


CATALOGUE: dict[str, Entry] = {
    "tiny": Entry(
        "embedded LlamaGen-format text-to-image model, 64×64 scenes, 16×16 tokens of 1,024; comes with the package",
        lambda device: tiny.load(device=device),
        _tiny_ready,
    ),
}


def load_target(name: str, device: str = "cpu") -> Target:
    """A target by catalogue name, or the embedded format from a local folder (as ``train tiny`` writes it).

    Raises UserError for a name that is neither.
    """
    if name in CATALOGUE:
        return CATALOGUE[name].load(device)
    folder = Path(name)
    if (folder / "target.safetensors").is_file():
        return tiny.load(folder, device)
    raise UserError(
        f"unknown target '{name}': it is neither in the catalogue ({', '.join(CATALOGUE)}) nor a folder with a "
        "target.safetensors"
    )
