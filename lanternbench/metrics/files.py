"""The published weights of metrics (``weights.yaml``): where they lie on this machine, and how they are read.

No file is opened in a way that could run code from it.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from lanternbench.errors import UserError
from lanternbench.utils.files import WEIGHTS, cache_dir

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """A published weights file, and the places where it may already lie."""

    name: str
    title: str
    file: str
    url: str  # "": it comes with the package
    sha256: str = ""  # the whole digest, its first digits where only these are published, or nothing where none is
    elsewhere: tuple[str, ...] = ()  # other paths, ~ and $VARIABLES expanded
    hub: tuple[str, str] | None = None  # (repository, file) on the Hugging Face hub
    gigabytes: float = 0.0  # about; 0: unknown, or next to nothing

    def find(self) -> Path | None:
        """The file, or None; looks only on this machine."""
        folder = cache_dir() if self.url else WEIGHTS
        for path in (folder / self.file, *(Path(os.path.expandvars(p)).expanduser() for p in self.elsewhere)):
            if path.is_file():
                return path
        if self.hub:
            from huggingface_hub import try_to_load_from_cache

            stored = try_to_load_from_cache(*self.hub)
            return Path(stored) if isinstance(stored, str) else None
        return None


CLIP_TINY = Weights("", "CLIP-tiny", "clip.safetensors", "")
FID_TINY = Weights("", "FID net", "fid.safetensors", "")


@cache
def _catalogue() -> dict[str, Weights]:
    rows = yaml.safe_load(Path(__file__).with_name("weights.yaml").read_text(encoding="utf-8"))
    rows = {name: {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for name, row in rows.items()}
    return {name: Weights(name, **row) for name, row in rows.items()}


def published(*names: str) -> tuple[Weights, ...]:
    """The rows of ``weights.yaml`` by name."""
    return tuple(_catalogue()[name] for name in names)


def missing(*wanted: Weights) -> str | None:
    """None when all files are present, else a sentence with the command that fetches the missing ones."""
    absent = [w for w in wanted if not w.find()]
    if not absent:
        return None
    if not absent[0].url:
        return f"the embedded {absent[0].title} is not in this installation; make it with `lanternbench train tiny`"
    titles = " and ".join(w.title for w in absent)
    return f"the files of {titles} are not here; get them: lanternbench fetch {' '.join(w.name for w in absent)}"


def tensors(path: Path, title: str) -> dict[str, Tensor]:
    """The state dict of a .safetensors or PyTorch file.  Raises UserError for a wrong, damaged or code-running one."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    broken = (OSError, RuntimeError, EOFError, ValueError, AttributeError, KeyError)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)  # refuses a pickle that runs code
        state = state.get("state_dict", state)
        return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
    except (*broken, pickle.UnpicklingError, SafetensorError) as error:
        raise wrong_file(path, title, error) from None


def wrong_file(path: Path, title: str, error: Exception) -> UserError:
    """The error for a file that cannot be used."""
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(f"{path} is not the {title.partition(' (')[0]} file ({cause[:200]}); download it again.")


def stamp(path: Path) -> str:
    """Name, size and time of a file: differs between files; only the name of a missing file."""
    if not path.is_file():
        return path.name
    about = path.stat()
    return f"{path.name} {about.st_size} {about.st_mtime_ns}"
