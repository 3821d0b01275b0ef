"""The published weights of metrics (``weights.yaml``): where they lie on this machine, how they
are read, and networks with them; random weights without a file.  No file is opened in a way that
could run code from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic.dataclasses import dataclass

from lanternbench.errors import UserError
from lanternbench.models.entries import content_digest
from lanternbench.utils.download import digest
from lanternbench.utils.files import WEIGHTS, cache_dir, packaged_yaml
from lanternbench.utils.memory import is_out_of_memory
from lanternbench.utils.quiet import quiet_transformers

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PretrainedConfig, PreTrainedModel

Network = TypeVar("Network", bound="nn.Module")
Pretrained = TypeVar("Pretrained", bound="PreTrainedModel")


@dataclass(frozen=True)
class Weights:
    """A published weights file, and the places where it may already lie."""

    name: str
    title: str
    file: str
    url: str  # "": it comes with the package
    # the whole digest, its first digits where only these are published, or nothing if none is
    sha256: str = ""
    # other names in the same folder, and other paths, ~ and $VARIABLES expanded
    elsewhere: tuple[str, ...] = ()
    hub: tuple[str, str] | None = None  # repository and file on the Hugging Face hub
    gigabytes: float = 0.0  # about; 0: unknown, or next to nothing
    is_data: bool = False  # which random networks need too

    @property
    def folder(self) -> Path:
        """The folder of a fetched file, or of one that was put there by hand."""
        return cache_dir() if self.url else WEIGHTS

    def find(self) -> Path | None:
        """The file, or None; looks only on this machine."""
        for place in (self.file, *self.elsewhere):
            path = self.folder / Path(os.path.expandvars(place)).expanduser()
            if path.is_file():
                return path
        if self.hub is None:
            return None
        from huggingface_hub import try_to_load_from_cache

        stored = try_to_load_from_cache(*self.hub)
        return Path(stored) if isinstance(stored, str) else None


CLIP_TINY = Weights("", "CLIP-tiny", "clip.safetensors", "")
FID_TINY = Weights("", "FID net", "fid.safetensors", "")


_ROWS = packaged_yaml(__file__, "weights.yaml")


def published(*names: str) -> tuple[Weights, ...]:
    """Return rows of ``weights.yaml`` by name."""
    return tuple(Weights(name, **_ROWS[name]) for name in names)


def missing(*wanted: Weights) -> str | None:
    """None when all files are present, else a sentence with the command that fetches the missing
    ones, and with their place.
    """
    absent = [w for w in wanted if not w.find()]
    if not absent:
        return None
    if not absent[0].url:
        return (
            f"the bundled {absent[0].title} is not in this installation: `lanternbench train tiny` "
            "makes it"
        )
    titles = " and ".join(w.title for w in absent)
    names = " ".join(w.name for w in absent)
    paths = " and ".join(w.file for w in absent)
    return (
        f"the files of {titles} are not downloaded: `lanternbench fetch {names}` gets them, or put "
        f"{paths} into {cache_dir()}"
    )


@contextmanager
def reading(path: Path, title: str) -> Iterator[None]:
    """Turn errors of code that reads a file into a UserError: it is not the file of this title."""
    try:
        yield
    except (OSError, RuntimeError, LookupError, ValueError, UserError) as error:
        if is_out_of_memory(error):
            raise
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, UserError):  # without what to do, which is said below
            cause = cause.rpartition(": ")[0].replace(str(path), "it")
        name = title.partition(" (")[0]
        raise UserError(
            f"{path} is not the {name} file ({cause[:200]}); download it again."
        ) from None


def tensors(path: Path, title: str, sha256: str = "", script: bool = False) -> dict[str, Tensor]:
    """The state dict of a .safetensors or PyTorch file.  Raises UserError for a wrong, damaged or
    code-running one, and for a PyTorch file whose published ``sha256``, or its start, is another.

    ``script``: it is a TorchScript archive, which holds code.
    """
    import torch

    from lanternbench.models.state_files import read_state

    is_pickled = path.suffix != ".safetensors"
    with reading(path, title):
        found = digest(path) if sha256 and is_pickled else sha256
        if not found.startswith(sha256):
            raise ValueError(f"its SHA-256 is {found[:8]}…, the published one's {sha256[:8]}…")
        if script and is_pickled:
            return torch.jit.load(str(path), map_location="cpu").state_dict()
        return read_state(path)  # refuses a pickle that runs code


def stamp(path: Path) -> str:
    """Name, size and time of a file: differs between files; the name alone of a missing one."""
    if not path.is_file():
        return path.name
    return f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}"


def content(paths: Iterable[Path | None]) -> str:
    """Return a digest of the content of files; "" for no files, or if one is missing."""
    digests = []
    for path in paths:
        if path is None or not path.is_file():
            return ""
        digests.append(content_digest(path)[:16])
    return "-".join(digests)


@contextmanager
def seeded() -> Iterator[None]:
    """Seeds torch's random numbers with a constant; restores the caller's state."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def filled(
    model: Network,
    path: Path | None,
    title: str,
    device: str = "cpu",
    read: Callable[[Path, str], dict[str, Tensor]] = tensors,
) -> Network:
    """``model`` in evaluation mode, with a file's tensors by ``read``, as floats.  Raises
    UserError for another.
    """
    if path is not None:
        state = read(path, title)
        with reading(path, title):
            model.load_state_dict({name: state[name].float() for name in model.state_dict()})
    return model.eval().requires_grad_(False).to(device)


def pretrained(
    kind: type[Pretrained],
    config: PretrainedConfig,
    path: Path | None,
    title: str,
    device: str = "cpu",
    unused: tuple[str, ...] = (),
) -> Pretrained:
    """A transformers model with a file's tensors, which may lack ``unused`` parts.  Raises
    UserError for another.
    """
    if path is None:
        with seeded():
            return filled(kind(config), None, title, device)
    state = tensors(path, title)
    # names of older versions of transformers are translated
    with reading(path, title), quiet_transformers():
        loaded: tuple[Pretrained, dict[str, Iterable[object]]] = kind.from_pretrained(  # type: ignore[assignment]
            None, config=config, state_dict=state, output_loading_info=True
        )
        model, about = loaded
        for key in map(str, [*about["missing_keys"], *about["mismatched_keys"]]):
            if not any(part in key for part in unused):
                raise ValueError(f"{key} is missing or has another shape")
    return filled(model, None, title, device)


def linear_head(width: int) -> nn.Sequential:
    """ImageReward's and LAION's head, [B, width] -> [B, 1]: linear layers, and identities for
    training's dropout.
    """
    from torch import nn

    return nn.Sequential(
        nn.Linear(width, 1024),
        nn.Identity(),
        nn.Linear(1024, 128),
        nn.Identity(),
        nn.Linear(128, 64),
        nn.Identity(),
        nn.Linear(64, 16),
        nn.Linear(16, 1),
    )
