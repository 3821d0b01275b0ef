"""Checkpoint files -> named tensors: memory-mapped, nothing executed, every failure named."""

import argparse
import pickle
import re
from pathlib import Path

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
from lanternbench.utils.files import open_file
from lanternbench.utils.memory import is_out_of_memory

State = dict[str, Tensor]
_INNER = ("model", "module", "state_dict")  # the entries of training scripts for their weights
_ORDER = (".safetensors", ".pt", ".bin", ".pth", ".ckpt")  # preferred files for the same weights
# parts of names by DistributedDataParallel, torch.compile, FSDP and activation checkpoints
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
    """Return the tensors of a checkpoint: a file, or a folder with one file or with shards.

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
    shards = [file for file in found if SHARD.fullmatch(file.name)]
    for suffix in _ORDER:
        files = [file for file in shards or found if file.suffix == suffix]
        if len(files) > 1 and not shards:
            names = f"{files[0].name}, {files[1].name}"
            raise UserError(f"{path} holds several checkpoints ({names}): name one of the files")
        if files:
            return files
    raise UserError(f"{path} holds no checkpoint: put a {', '.join(WEIGHTS)} file there")


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


def _tensors(state: object, path: Path) -> State:
    """Return the named tensors that a training script saved, without its wrappers' names."""
    if not isinstance(state, dict):
        raise UserError(f"{path} holds no named tensors: use the official file")
    for name in _INNER:
        if isinstance(state.get(name), dict):
            return _tensors(state[name], path)
    tensors = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            tensors[_WRAPPED.sub("", str(name))] = value
    return tensors


def _unpickle(path: Path) -> object:
    """Read a file of torch.save, with stand-ins for settings of training libraries."""
    is_mappable = mappable(path)
    stand_ins: list[type | tuple[type, str]] = [argparse.Namespace]
    if is_mappable:
        for name in get_unsafe_globals_in_checkpoint(path):
            if name.partition(".")[0] in _TRAINING:
                stand_ins.append((Inert, name))
    with safe_globals(stand_ins):  # type: ignore[arg-type]  # it takes names too
        return torch.load(path, map_location="cpu", mmap=is_mappable, weights_only=True)


def mappable(path: Path) -> bool:
    """Return whether tensors can stay on disk until they are read: torch wrote no zip archives
    before 1.6.
    """
    with open_file(path) as file:
        return path.suffix == ".safetensors" or file.read(2) == b"PK"
