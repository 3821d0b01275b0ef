"""Where the evaluators' weights lie and how they are read: the embedded in the package, the papers' in local caches.

Nothing is downloaded, and no file is opened in a way that could run code from it.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    url: str
    sha256: str  # the whole digest, its first digits where only these are published, or nothing where none is
    elsewhere: tuple[str, ...] = ()  # other paths, ~ and $VARIABLES expanded
    hub: tuple[str, str] | None = None  # (repository, file) on the Hugging Face hub
    gigabytes: float = 0.0  # about; 0: unknown, or next to nothing

    def find(self) -> Path | None:
        """The file, or None; looks only on this machine."""
        for path in (cache_dir() / self.file, *(Path(os.path.expandvars(p)).expanduser() for p in self.elsewhere)):
            if path.is_file():
                return path
        if self.hub:
            from huggingface_hub import try_to_load_from_cache

            found = try_to_load_from_cache(*self.hub)
            if isinstance(found, str):
                return Path(found)
        return None


class Embedded(Weights):
    """A file of the package's own small networks, which comes with it."""

    def __init__(self, file: str, title: str):
        super().__init__(name="", title=title, file=file, url="", sha256="")

    def find(self) -> Path | None:
        """The file, or None."""
        return embedded(self.file) if embedded(self.file).is_file() else None


def missing(*wanted: Weights) -> str | None:
    """None when all files are here, else one sentence with the one command that gets those that are not."""
    absent = [w for w in wanted if not w.find()]
    if not absent:
        return None
    if isinstance(absent[0], Embedded):
        return f"the embedded {absent[0].title} is not in this installation; make it with `lanternbench train tiny`"
    titles = " and ".join(w.title for w in absent)
    return f"the files of {titles} are not here; get them: lanternbench fetch {' '.join(w.name for w in absent)}"


def tensors(path: Path, title: str) -> dict[str, Tensor]:
    """The state dict of a .safetensors file or of a PyTorch file, also when it lies under "state_dict".

    Raises UserError when the file is another, is damaged, or holds code.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)  # refuses a pickle that runs code
        found = found.get("state_dict", found)
        return {name: tensor for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}
    except (OSError, RuntimeError, EOFError, ValueError, AttributeError, KeyError) as error:
        raise wrong_file(path, title, error) from None
    except (pickle.UnpicklingError, SafetensorError) as error:
        raise wrong_file(path, title, error) from None


def wrong_file(path: Path, title: str, error: Exception) -> UserError:
    """What to say of a file that cannot be used."""
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(f"{path} is not the {title.partition(' (')[0]} file ({cause[:200]}); download it again.")


def embedded(name: str) -> Path:
    """The package's own weights file ``name``."""
    return WEIGHTS / name


def stamp(path: Path) -> str:
    """Name, size and time of a file: another text when the file is another; just the name where there is none."""
    if not path.is_file():
        return path.name
    about = path.stat()
    return f"{path.name} {about.st_size} {about.st_mtime_ns}"
