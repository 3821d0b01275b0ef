"""How long a forward, and a step of speculative decoding, takes at best: the roofline model, as
pure functions.

Each part of a forward takes the longer of two times: moving its bytes at bandwidth β, or its
products at peak π.

    weights     max(w·(W + H) / β,            2·(R·n·W + B·n·g·H) / π)     read once, whatever the
      batch
    cache       max(w·R·K·(s + n) / β,        4·R·n·A·(s + n) / π)         keys and values of every
      row
    vocabulary  4·B·n·g·V·PASSES / β                                       distributions, float32
    launches    κ·g_k

with B prompts, R rows (2B with guidance), n positions, s cached ones, w bytes a weight; W, H, K,
A, V, g of ``models.network.Network`` (weights, head, cached, attended, vocab, guesses); κ kernels.
Activations count as free. The head follows guidance, so it sees half the rows.  Source: Williams
et al. 2009 (roofline); the parts are those of this engine.  All arguments are numbers or arrays of
one shape; all times are seconds.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from lanternbench.errors import UserError, unknown
from lanternbench.models.network import Network

THIS = "this"  # stands for this machine, among the names of devices
Values = NDArray[np.float64]
BYTES = {"bfloat16": 2, "float32": 4}
# how often a step's distributions are read or written: temperature, top-k, softmax, acceptance,
# draws
PASSES = 10
SLACK = 1.15  # of caches and distributions, for activations and the allocator's blocks
CONTEXT = 1.0  # GB that CUDA and its libraries take
# kernels, counted from the engine's operations: a layer has 4 products, attention, 2 norms, 2
# sums, 3 to rotate, 1 to
# write the cache, 1 to put heads side by side, 2 of the gate; a lone root's step has STEP beside
# its layers, one that
# drafts TREE more, and each forward of a drafter LEVEL beside its layers
LAYER, STEP, TREE, LEVEL = 16, 30, 50, 25


class DeviceModel(BaseModel):
    """``bandwidth`` GB/s, ``memory`` GB, ``tflops`` by dtype of the weights.

    ``gap``: µs that a kernel takes beside its bytes and products; ``issue``: µs in which the host
    issues one without CUDA graphs (0: it waits for each, as a CPU does).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    about: str
    bandwidth: float = Field(gt=0)
    memory: float = Field(gt=0)
    tflops: dict[str, float]
    gap: float = Field(ge=0)
    issue: float = Field(ge=0)
    source: str

    def peak(self, dtype: str) -> float:
        """FLOP/s with weights of this dtype.  Raises UserError for one that the model does not
        have.
        """
        if dtype not in self.tflops:
            raise UserError(
                f"the device model '{self.name}' has no FLOP/s for {dtype}: use {' or '.join(self.tflops)}"
            )
        return 1e12 * self.tflops[dtype]

    def sentence(self, graphs: bool) -> str:
        """What the model says, with its source."""
        kernel = (
            f"{self.gap:g} µs a kernel in a graph"
            if graphs
            else f"{self.issue:g} µs to issue a kernel"
        )
        size = f"{self.bandwidth:g} GB/s, {self.memory:g} GB ({self.source})"
        return f"{self.name}: {self.about}, {size}; {kernel}, an estimate"


@cache
def device_models() -> dict[str, DeviceModel]:
    """Those of ``devices.yaml`` by name."""
    rows = yaml.safe_load(Path(__file__).with_name("devices.yaml").read_text(encoding="utf-8"))
    return {name: DeviceModel(name=name, **row) for name, row in rows.items()}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def device_model(name: str) -> DeviceModel:
    """By its name or its beginning, in any spelling: ``A100`` is ``a100-40g``.  Raises UserError
    naming all.
    """
    models, letters = device_models(), _letters(name)
    for full in models if letters else ():
        if _letters(full).startswith(letters):
            return models[full]
    raise unknown(f"unknown device '{name}'", name.lower(), [*models, THIS])


class Load(NamedTuple):
    """How a forward is used: B prompts, R rows, n new positions, s cached ones; numbers or arrays."""

    batch: Any
    rows: Any
    new: Any
    cached: Any


class Parts(NamedTuple):
    """Seconds by what they are spent on; see the module."""

    weights: Any
    cache: Any
    arithmetic: Any
    vocabulary: Any
    launches: Any

    def __add__(self, other: Any) -> "Parts":  # type: ignore[override]
        return Parts(*(a + b for a, b in zip(self, other, strict=True)))


def forward(
    net: Network, load: Load, device: DeviceModel, dtype: str, kernels: float = 0.0
) -> Parts:
    """One forward of ``net``; ``kernels`` beside those of its layers."""
    beta, peak, w = 1e9 * device.bandwidth, device.peak(dtype), BYTES[dtype]
    b, r, n, span = load.batch, load.rows, load.new, load.cached + load.new
    weights = w * (net.weights + net.head) / beta
    products = 2 * (r * n * net.weights + b * n * net.guesses * net.head) / peak
    cache = w * r * net.cached * span / beta
    attention = 4 * r * n * net.attended * span / peak
    return Parts(
        weights=np.where(products > weights, 0.0, weights),
        cache=np.where(attention > cache, 0.0, cache),
        arithmetic=np.where(products > weights, products, 0.0)
        + np.where(attention > cache, attention, 0.0),
        vocabulary=4 * b * n * net.guesses * net.vocab * PASSES / beta,
        launches=(LAYER * net.layers + kernels) * device.gap * 1e-6 + 0.0 * np.asarray(cache),
    )


def step(target: Network, drafter: Network | None, load: Load, levels: tuple[int, ...], committed: Any,
         device: DeviceModel, dtype: str, graphs: bool = True) -> Parts:  # fmt: skip
    """One step: the target reads a tree of ``load.new`` nodes, the drafter what was ``committed``,
    then ``levels``.

    Without ``graphs`` the host issues its kernels one by one: what the device waits is launch
    overhead.
    """
    beside = STEP + TREE * (drafter is not None or bool(np.any(np.asarray(load.new) > 1)))
    spent, kernels = forward(target, load, device, dtype, beside), LAYER * target.layers + beside
    if drafter is not None:
        for new in (committed, *levels):
            spent += forward(drafter, load._replace(new=new), device, dtype, LEVEL)
            load = load._replace(cached=load.cached + new)
            kernels += LAYER * drafter.layers + LEVEL
    waited = 0.0 if graphs else np.maximum(0.0, kernels * device.issue * 1e-6 - sum(spent))
    return spent._replace(launches=spent.launches + waited)


def memory(target: Network, drafter: Network | None, load: Load, dtype: str) -> float:
    """GB of a decode: weights, caches of ``load.cached`` + ``load.new`` positions, distributions
    of all nodes.
    """
    nets = [target] if drafter is None else [target, drafter]
    weights = BYTES[dtype] * sum(net.stored for net in nets)
    caches = BYTES[dtype] * load.rows * (load.cached + load.new) * sum(net.cached for net in nets)
    return float(
        (weights + SLACK * (caches + 2 * 4 * load.batch * load.new * target.vocab)) / 1e9 + CONTEXT
    )
