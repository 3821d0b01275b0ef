"""The least time of a forward pass and of a step of speculative decoding: the roofline model.

Each part of a forward pass takes the longer of two times: moving its bytes at bandwidth β, or its
products at peak π.

    weights     max(w·(W + H) / β,            2·(R·n·W + B·n·g·H) / π)     read once for a batch
    cache       max(w·R·K·(s + n) / β,        4·R·n·A·(s + n) / π)         of every row
    vocabulary  4·B·n·g·V·PASSES / β                                       distributions, float32
    launches    κ·g_k

with B prompts, R rows (2B with guidance), n positions, s cached ones, w bytes a weight; W, H, K,
A, V, g of ``models.network.Network`` (weights, head, cached, attended, vocab, guesses); κ kernels,
counted by ``costs.operators``.  Activations count as free.  The head follows guidance, so it sees
half the rows.  Source: Williams et al. 2009 (roofline); the parts are those of this engine.
Arguments are numbers or arrays of one shape; all times are seconds.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from lanternbench.errors import UserError, unknown
from lanternbench.models.network import Network
from lanternbench.utils.files import packaged_yaml

THIS = "this"  # stands for this machine, among the names of devices
Values = NDArray[np.float64]
Numbers = Values | float
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# how often a step's distributions are read or written: temperature, top-k, softmax, acceptance,
# draws
PASSES = 10
HELD = 10  # distributions of all nodes that a step holds at once
SLACK = 1.15  # of caches and distributions, for activations and the allocator's blocks
CONTEXT = 1.0  # GB that CUDA and its libraries take


class Operators(NamedTuple):
    """Operators of a method's step, each of which launches about one kernel on a GPU.

    ``layer``: of one layer of a network.  ``forward``: of the target's forward pass outside its
    layers.  ``level``: of each forward pass of the drafter outside its layers, draws included.
    ``rest``: verification, commit, and drafting without a drafter.
    """

    layer: float
    forward: float
    level: float
    rest: float


class DeviceModel(BaseModel):
    """``bandwidth`` GB/s, ``memory`` GB, ``tflops`` by dtype of the weights.

    ``gap``: µs that a kernel takes in addition to its bytes and products; ``issue``: µs in which
    the host issues one without CUDA graphs (0: it waits for each, as a CPU does).
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
        """Return the FLOP/s with weights of this dtype.  Raises UserError for one that the model
        does not have.
        """
        if dtype not in self.tflops:
            raise UserError(
                f"the device model '{self.name}' has no FLOP/s for {dtype}: use {' or '.join(self.tflops)}"
            )
        return 1e12 * self.tflops[dtype]

    def sentence(self, graphs: bool) -> str:
        """Describe the model, with its source."""
        kernel = (
            f"{self.gap:g} µs a kernel in a graph"
            if graphs
            else f"{self.issue:g} µs to issue a kernel"
        )
        size = f"{self.bandwidth:g} GB/s, {self.memory:g} GB ({self.source})"
        return f"{self.name}: {self.about}, {size}; {kernel}, an estimate"


@cache
def device_models() -> dict[str, DeviceModel]:
    """Return the models of ``devices.yaml`` by name."""
    rows = packaged_yaml(__file__, "devices.yaml")
    return {name: DeviceModel(name=name, **row) for name, row in rows.items()}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def device_model(name: str) -> DeviceModel:
    """Return a device model by its name or the beginning of it, in any spelling: ``A100`` is
    ``a100-40g``.  Raises UserError with all names.
    """
    models = device_models()
    letters = _letters(name)
    for full, model in models.items():
        if letters and _letters(full).startswith(letters):
            return model
    raise unknown(f"unknown device '{name}'", name.lower(), [*models, THIS])


class Load(NamedTuple):
    """The size of a forward pass: B prompts, R rows, n new positions, s cached ones."""

    batch: Numbers
    rows: Numbers
    new: Numbers
    cached: Numbers


class Execution(NamedTuple):
    """The machine that steps run on; without ``graphs`` the host issues every kernel."""

    device: DeviceModel
    dtype: str  # of the weights
    graphs: bool = True


class Decoder(NamedTuple):
    """The networks of a method and the operators of its step."""

    target: Network
    drafter: Network | None
    operators: Operators


class Parts(NamedTuple):
    """Seconds by what they are spent on; see the module."""

    weights: Numbers
    cache: Numbers
    arithmetic: Numbers
    vocabulary: Numbers
    launches: Numbers

    def plus(self, other: "Parts") -> "Parts":
        return Parts(*(a + b for a, b in zip(self, other, strict=True)))


def forward(net: Network, load: Load, execution: Execution, kernels: float = 0.0) -> Parts:
    """Return the time of one forward pass of ``net`` that launches ``kernels``."""
    device = execution.device
    beta = 1e9 * device.bandwidth
    peak = device.peak(execution.dtype)
    width = BYTES[execution.dtype]
    guesses = load.batch * load.new * net.guesses
    span = load.cached + load.new
    weights = width * (net.weights + net.head) / beta
    products = 2 * (load.rows * load.new * net.weights + guesses * net.head) / peak
    cached = width * load.rows * net.cached * span / beta
    attention = 4 * load.rows * load.new * net.attended * span / peak
    return Parts(
        weights=np.where(products > weights, 0.0, weights),
        cache=np.where(attention > cached, 0.0, cached),
        arithmetic=np.where(products > weights, products, 0.0)
        + np.where(attention > cached, attention, 0.0),
        vocabulary=4 * guesses * net.vocab * PASSES / beta,
        launches=kernels * device.gap * 1e-6 + np.zeros_like(cached),
    )


def step(decoder: Decoder, load: Load, drafted: Sequence[Numbers], execution: Execution) -> Parts:
    """Return the time of one step, in which the target reads ``load.new`` nodes.

    ``drafted``: what each forward pass of the drafter reads, the first what the last step
    committed, the others the nodes of a level.

    Without graphs the device waits for the host whenever it issues kernels slower than they run:
    that is launch overhead.
    """
    target, drafter, operators = decoder
    kernels = operators.layer * target.layers + operators.forward + operators.rest
    spent = forward(target, load, execution, kernels)
    if drafter is not None:
        of_pass = operators.layer * drafter.layers + operators.level
        for new in drafted:
            spent = spent.plus(forward(drafter, load._replace(new=new), execution, of_pass))
            load = load._replace(cached=load.cached + new)
            kernels += of_pass
    if execution.graphs:
        return spent
    issuing = kernels * execution.device.issue * 1e-6
    waited = np.maximum(0.0, issuing - sum(spent))
    return spent._replace(launches=spent.launches + waited)


def memory(target: Network, drafter: Network | None, load: Load, dtype: str) -> float:
    """Return the GB of a decode: weights, caches of ``load.cached`` + ``load.new`` positions and
    the distributions of a step.
    """
    nets = [target] if drafter is None else [target, drafter]
    weights = BYTES[dtype] * sum(net.stored for net in nets)
    positions = load.rows * (load.cached + load.new)
    caches = BYTES[dtype] * positions * sum(net.cached for net in nets)
    distributions = HELD * 4 * load.batch * load.new * target.vocab
    return float((weights + SLACK * (caches + distributions)) / 1e9 + CONTEXT)
