"""The memory that a target takes, estimated before anything is loaded.

Estimates are low: activations and metrics are left out, so that no run is refused that could work.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from lanternbench.errors import UserError
from lanternbench.models.drafters.kinds import FILED
from lanternbench.models.entries import Entry, family
from lanternbench.models.network import network
from lanternbench.models.places import WEIGHTS
from lanternbench.models.state_files import read_state
from lanternbench.models.target import StoredFeatures, Target
from lanternbench.utils.device import has_bfloat16
from lanternbench.utils.memory import free_memory

DRAFT_SLOTS = 32  # of a cache, for the nodes of a draft
GB = 1e9


class Demand(NamedTuple):
    """The decodes that a target is loaded for."""

    batch: int = 1
    guidance: float | None = None  # None: the target's
    keeps_distributions: bool = False  # for the figures of a run
    drafters: tuple[str, ...] = ()  # loaded in addition to the target's own


ONE_IMAGE = Demand()


class Footprint(NamedTuple):
    """Bytes by purpose."""

    weights: int
    caches: int = 0  # keys, values, and distributions that are kept
    text_encoder: int = 0  # in memory only until captions are encoded, before there are caches

    @property
    def total(self) -> int:
        return self.weights + max(self.caches, self.text_encoder)

    def largest_batch(self, batch: int, free: int) -> int:
        """Return how many images fit into free memory at once, of a footprint for ``batch``."""
        if self.weights + self.text_encoder > free:
            return 0
        if not self.caches:
            return batch
        return min(batch, batch * (free - self.weights) // self.caches)

    def __str__(self) -> str:
        parts = [f"{self.weights / GB:.1f} GB of weights"]
        if self.caches:
            parts.append(f"{self.caches / GB:.1f} GB of cache")
        if self.text_encoder:
            parts.append(f"{self.text_encoder / GB:.1f} GB of text encoder, which is unloaded")
        return ", ".join(parts)


def of_target(row: Entry, folder: Path | None, dtype: torch.dtype, demand: Demand) -> Footprint:
    """Return the memory of a target from ``folder``, or with random weights.

    A target without published files counts as the size of those in its folder.
    """
    if not row.files:
        return Footprint(0 if folder is None else bytes_of_files(folder))
    sketch = family(row.family).random_target(row, "meta", dtype)
    weights = bytes_of([sketch.model])
    if isinstance(sketch.vq, nn.Module):
        weights += bytes_of([sketch.vq])
    if folder is None:
        weights += bytes_of(sketch.drafters.values())
    else:
        paths = row.locate(folder).paths
        weights += sum(bytes_of_drafter(paths[role], dtype) for role in FILED if role in paths)
    encoder = sketch.text.encoder_weights if isinstance(sketch.text, StoredFeatures) else 0
    return Footprint(weights, bytes_of_caches(sketch, demand), encoder * dtype.itemsize)


def bytes_of(nets: Iterable[nn.Module]) -> int:
    """Return the bytes of weights, also of networks on the device ``meta``."""
    parameters = [p for net in nets for p in net.parameters()]
    return sum(p.numel() * p.element_size() for p in parameters)


def bytes_of_drafter(path: Path, dtype: torch.dtype) -> int:
    """Return the bytes of a drafter's file once it is loaded in this dtype."""
    return sum(value.numel() for value in read_state(path).values()) * dtype.itemsize


def bytes_of_files(folder: Path) -> int:
    """Return the bytes of the weights in a folder; of several formats, the largest one's."""
    files = filter(Path.is_file, folder.rglob("*"))
    sizes = dict.fromkeys(WEIGHTS, 0)
    for path in files:
        if path.suffix in sizes:
            sizes[path.suffix] += path.stat().st_size
    return max(sizes.values())


def bytes_of_caches(target: Target, demand: Demand) -> int:
    """Return the bytes of keys and values of one batch, and of the distributions that are kept."""
    guidance = target.sampling.guidance if demand.guidance is None else demand.guidance
    rows = demand.batch if guidance == 1.0 else 2 * demand.batch
    model = target.model
    slots = model.prompt_positions + target.image_slots + DRAFT_SLOTS
    cached = network(model, model, model.layers).cached
    caches = rows * slots * cached * model.dtype.itemsize
    if demand.keeps_distributions:  # the target's and the drafter's, in float32
        caches += 2 * demand.batch * target.length * target.vocab * 4
    return caches


def refuse(what: str, need: Footprint, half: Footprint, device: str, batch: int) -> None:
    """Raise UserError if ``what`` does not fit into the device's free memory.

    ``half``: its footprint in a dtype of two bytes.
    """
    free = free_memory(torch.device(device))
    if free is None or need.total <= free:
        return
    remedies = []
    if largest := need.largest_batch(batch, free):
        remedies.append(f"--batch {largest}")
    largest = half.largest_batch(batch, free)
    if half.weights < need.weights and largest:
        dtype = "--dtype bfloat16" if has_bfloat16(device) else "--dtype float16"
        remedies.append(dtype if largest == batch else f"{dtype} --batch {largest}")
    if device != "cpu":
        on_host = free_memory(torch.device("cpu"))
        if on_host is not None and need.total <= on_host:
            remedies.append("--device cpu")
    fix = f"use a device with {need.total / GB:.0f} GB free"
    if remedies:
        fix = f"give {' or '.join(remedies)}"
    raise UserError(f"{what} needs {need}; {free / GB:.1f} GB are free on {device}: {fix}")
