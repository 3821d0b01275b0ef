"""Checkpoint files -> named tensors: memory-mapped, nothing executed, every failure named."""

import argparse
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from lanternbench.errors import UserError
from lanternbench.models.places import (
    SHARD,
    WEIGHTS,
    absent_shards,
    indexed_shards,
    shard_index,
    snapshot,
    weights_files,
)
from lanternbench.utils.damage import damage
from lanternbench.utils.memory import is_out_of_memory

State = dict[str, Tensor]
_INNER = ("model", "module", "state_dict")  # under which training scripts keep their weights
_ORDER = (".safetensors", ".pt", ".bin", ".pth", ".ckpt")  # of files for the same weights
# what DistributedDataParallel, torch.compile, FSDP and activation checkpoints put into names
_WRAPPED = re.compile(
    r"^(?:module\.)+|_orig_mod\.|_fsdp_wrapped_module\.|_checkpoint_wrapped_module\."
)
# packages whose settings training scripts save next to the weights
_TRAINING = ("argparse", "omegaconf", "pytorch_lightning", "lightning", "deepspeed", "typing")
_BROKEN = (
    SafetensorError,
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    AttributeError,
)


class Inert:
    """Stands for an object of a training library: it holds nothing and does nothing."""

    def __new__(cls, *_: object, **__: object) -> "Inert":
        return super().__new__(cls)

    def __setstate__(self, _: object) -> None:
        pass


def read_state(path: Path) -> State:
    """The tensors of a checkpoint: a file, or a folder with one, or with shards.

    Tensors stay on disk until they are read.  Raises UserError for a file that is missing,
    truncated, not readable or that holds anything but tensors, and for a missing shard.
    """
    state: State = {}
    for file in state_files(path):
        state.update(_read(file))
    return state


def state_files(path: Path) -> list[Path]:
    """Return the files of a checkpoint.  Raises UserError where there is none, or several."""
    if not path.is_dir():
        return [path]
    path = snapshot(path) or path
    found = weights_files(path)
    index = shard_index(path)
    if absent := absent_shards(path):
        named = f" that {index.name} names" if index else ""
        raise UserError(f"{path} lacks the shard {absent[0]}{named}: fetch it again")
    if index:
        return [path / name for name in indexed_shards(index)]
    if shards := [file for file in found if SHARD.fullmatch(file.name)]:
        return _one_set(shards)
    for suffix in _ORDER:
        files = [file for file in found if file.suffix == suffix]
        if len(files) > 1:
            names = f"{files[0].name}, {files[1].name}"
            raise UserError(f"{path} holds several checkpoints ({names}): name one of the files")
        if files:
            return files
    raise UserError(f"{path} holds no checkpoint: put a {', '.join(WEIGHTS)} file there")


def _one_set(shards: list[Path]) -> list[Path]:
    """Return the shards of the first kind of file, where the same weights lie in two."""
    suffixes = {file.suffix for file in shards}
    kind = next(suffix for suffix in _ORDER if suffix in suffixes)
    return [file for file in shards if file.suffix == kind]


def _read(path: Path) -> State:
    if not path.exists() and not path.is_symlink():
        raise UserError(f"{path} does not exist: correct the path")
    if wrong := damage(path):
        raise UserError(f"{path} {wrong}")
    try:
        state = load_file(path) if path.suffix == ".safetensors" else _unpickle(path)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} holds more than tensors; it was not opened: use the official file"
        ) from None
    except (PermissionError, IsADirectoryError) as error:
        raise UserError(
            f"cannot read {path} ({error.strerror}): make it a readable file"
        ) from None
    except _BROKEN as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"{path} is truncated or damaged: fetch it again") from None
    return _tensors(state, path)


def _tensors(state: Any, path: Path) -> State:
    """Return the named tensors of what a training script saved, without its wrappers' names."""
    while isinstance(state, dict):
        inner = next((name for name in _INNER if isinstance(state.get(name), dict)), None)
        if inner is None:
            break
        state = state[inner]
    if not isinstance(state, dict):
        raise UserError(f"{path} holds no named tensors: use the official file")
    return {
        _WRAPPED.sub("", str(name)): value
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def _unpickle(path: Path) -> Any:
    """Read a file of torch.save; settings of training libraries in it are replaced by nothing."""
    try:
        with safe_globals([argparse.Namespace]):
            return _load(path)
    except pickle.UnpicklingError:
        stand_ins = _stand_ins(path)
        if not stand_ins:
            raise
        with safe_globals(stand_ins):
            return _load(path)


def _load(path: Path) -> Any:
    return torch.load(path, map_location="cpu", mmap=mappable(path), weights_only=True)


def _stand_ins(path: Path) -> list[Any]:
    """Return a stand-in for each class of a training library that a file names."""
    if not mappable(path):
        return []
    names = get_unsafe_globals_in_checkpoint(path)
    return [(Inert, name) for name in names if name.partition(".")[0] in _TRAINING]


def mappable(path: Path) -> bool:
    """Return whether tensors can stay on disk until they are read: not in what torch wrote before
    1.6, which is no zip archive.
    """
    with path.open("rb") as file:
        return path.suffix == ".safetensors" or file.read(2) == b"PK"
