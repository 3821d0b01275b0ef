"""Machines to predict for: the seconds of replayed steps on a device model, or on this machine,
which is probed.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls

from lanternbench.costs import roofline
from lanternbench.costs.forward_cost import bandwidth, lengths_of, medians, seconds_of, step_times
from lanternbench.costs.operators import baseline_operators
from lanternbench.costs.roofline import BYTES, THIS, DeviceModel, Load, Values
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.proposal import AnyProposer
from lanternbench.engine.recording import SPAN
from lanternbench.methods.build import build
from lanternbench.models.catalogue import load_with_drafter
from lanternbench.models.network import Network
from lanternbench.predict.replay import BASE, Case, Steps, baseline, shape_of, sketch
from lanternbench.settings import ModelSpec, Sampling, Sweep
from lanternbench.utils.device import choose, cores, load_average
from lanternbench.utils.memory import total_memory
from lanternbench.utils.progress import Progress, counted

REPEATS = 15  # products of matrices that are timed
STEPS = 16  # steps at each length that are timed
SIDE = 1024  # of the matrices


class Roofline(roofline.Execution):
    """A device model.  With ``graphs`` a batch keeps its size to the end."""

    @property
    def name(self) -> str:
        return self.device.name

    def seconds(self, case: Case, steps: Steps) -> dict[str, Values]:
        """Return the seconds of each step [T], by what they are spent on."""
        decoder = roofline.Decoder(case.shape.network, case.drafter, case.operators)
        rows = case.shape.rows * steps.batch
        cached = case.shape.prompt + steps.start - 1
        if self.graphs:  # recorded forward passes attend to whole spans
            cached = np.ceil((cached + steps.nodes) / SPAN) * SPAN - steps.nodes
        parts = np.zeros((len(roofline.Parts._fields), len(steps.nodes)))
        for levels, at in by_levels(case.measured, steps).items():
            load = Load(steps.batch[at], rows[at], steps.nodes[at], cached[at])
            parts[:, at] = roofline.step(decoder, load, (steps.before[at], *levels), self)
        return dict(zip(roofline.Parts._fields, parts, strict=True))

    def memory(self, case: Case, batch: int, nodes: int) -> float:
        """Return the GB of a batch, text encoder and image tokeniser left out."""
        shape = case.shape
        load = Load(batch, shape.rows * batch, nodes, shape.prompt + shape.length)
        return roofline.memory(shape.network, case.drafter, load, self.dtype)

    def fits(self, case: Case, batch: int, nodes: int) -> bool:
        return self.memory(case, batch, nodes) <= self.device.memory


class MethodCost(NamedTuple):
    """Seconds of a method's step on this machine, as coefficients of its nodes, the cached tokens
    and its levels.
    """

    verify: Values  # of 1, nodes, cached tokens
    draft: Values  # of 1, forward passes after the first, their nodes, cached tokens
    outside: float


@dataclass(frozen=True)
class Measured:
    """This machine as the probe timed it, for the target that was probed, one image at a time."""

    dtype: str
    costs: Mapping[str, MethodCost]  # by label
    name: ClassVar[str] = THIS
    graphs: ClassVar[bool] = False

    def seconds(self, case: Case, steps: Steps) -> dict[str, Values]:
        """Return the seconds of each step [T], by phase."""
        cost = self.costs[case.label]
        ones = np.ones(len(steps.nodes))
        draft = np.zeros_like(ones)
        for levels, at in by_levels(case.measured, steps).items():
            of_levels = cost.draft[:3] @ (1.0, len(levels), sum(levels))
            draft[at] = of_levels + cost.draft[3] * steps.start[at]
        verify = cost.verify @ np.stack([ones, steps.nodes, steps.start])
        return {"verify": verify, "draft": draft, "outside": cost.outside * ones}


Machine = Roofline | Measured
Levels = tuple[int, ...]


def by_levels(proposer: AnyProposer | None, steps: Steps) -> dict[Levels, list[int]]:
    """Return the numbers of the steps that run the same forward passes of the drafter, by the nodes
    that each pass but the first reads.
    """
    numbers: dict[Levels, list[int]] = defaultdict(list)
    sizes = np.stack([steps.depths, steps.nodes], 1).astype(np.int64)
    for number, (depth, nodes) in enumerate(sizes.tolist()):
        levels = () if proposer is None else proposer.levels(depth, nodes)
        numbers[levels].append(number)
    return numbers


def probe(
    config: Sweep,
    cases: Sequence[Case],
    caption: str,
    threads: int | None,
    show: Progress,
) -> tuple[Roofline, Measured, list[str]]:
    """Return the host as a device model, its steps on the run's target, and notes on the
    measurement.

    ``config``: of the run.  Raises UserError if its target or drafter cannot be loaded.
    """
    target = load_with_drafter(config.part(ModelSpec), choose("auto", threads))
    # layers packed for a CPU no longer show their sizes
    plain = shape_of(sketch(config.target), config.guidance)
    by_label = {case.label: case for case in (baseline(plain), *cases)}
    costs = {}
    for case in counted(list(by_label.values()), show, lambda one: f"a few steps of {one.label}"):
        decoder = build(target, case.method, config.part(Sampling), config.simulate_acceptance)
        costs[case.label] = method_cost(decoder, caption)
    dtype = target.dtype_name
    shortest_s = float(costs[BASE].verify @ (1, 1, 1))
    model = host(target.device, plain.network, shortest_s, plain.rows, dtype)
    return Roofline(model, dtype, graphs=False), Measured(dtype, costs), notes_of(model, dtype)


def notes_of(model: DeviceModel, dtype: str) -> list[str]:
    """Return what was found, and a warning if other programs were running."""
    rate = 1e3 * model.tflops[dtype]
    speed = f"{model.bandwidth:.1f} GB/s, {rate:.0f} GFLOP/s, {model.gap:.1f} µs a kernel"
    notes = [f"this machine, probed: {speed} ({dtype})"]
    load = load_average()
    if load is not None and load > cores():
        notes.append(
            f"the load was {load:.1f} on {cores()} cores while it was probed: "
            "stop other programs and try again"
        )
    return notes


def method_cost(decoder: SpeculativeDecoder, caption: str) -> MethodCost:
    """Return the cost of a method's steps: least squares over medians of several steps at a few
    cached lengths, by size and length.
    """
    lengths = lengths_of(decoder.target.length, decoder.proposer.size.max_depth)
    times = list(step_times(decoder, caption, lengths, STEPS))
    usual = medians(times)
    counts = Counter((t.shape, t.cached) for t in times)
    weights = np.sqrt([counts[t.shape, t.cached] for t in usual])
    verify = [(1, t.shape.nodes, t.cached) for t in usual]
    draft = []
    for t in usual:
        levels = decoder.proposer.levels(t.shape.depth, t.shape.nodes)
        draft.append((1, len(levels), sum(levels), t.cached))
    return MethodCost(
        verify=fitted([t.forward_s for t in usual], verify, weights),
        draft=fitted([t.draft_s for t in usual], draft, weights),
        outside=median(t.rest_s for t in times),
    )


def fitted(seconds: list[float], factors: Sequence[tuple[int, ...]], weights: Values) -> Values:
    """Return non-negative least-squares coefficients of the factors."""
    return nnls(weights[:, None] * np.array(factors), weights * np.array(seconds))[0]


@torch.inference_mode()
def host(
    device: torch.device,
    target: Network,
    shortest_s: float,
    rows: int,
    dtype: str,
) -> DeviceModel:
    """Return this machine as a device model, for other targets: its bandwidth, its FLOP/s and its
    overhead per kernel.

    The last is what the shortest forward pass of ``target``, ``shortest_s``, takes in addition to
    its bytes and products.
    """
    bytes_per_s = 1e9 * bandwidth(device).best
    a = torch.ones(SIDE, SIDE, device=device, dtype=getattr(torch, dtype))
    product_s = median(seconds_of(lambda: a @ a, device) for _ in range(REPEATS))
    flops = 2 * SIDE**3 / product_s
    moving_s = BYTES[dtype] * (target.weights + target.head) / bytes_per_s
    computing_s = 2 * rows * target.weights / flops
    operators = baseline_operators()
    kernels = operators.layer * target.layers + operators.forward
    gap = max(0.0, shortest_s - max(moving_s, computing_s)) / kernels
    memory = total_memory() or 0
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    return DeviceModel(
        name=THIS,
        about="this machine, probed",
        bandwidth=bytes_per_s / 1e9,
        memory=memory / 1e9,
        tflops={dtype: flops / 1e12},
        gap=1e6 * gap,
        issue=0.0,
        source="measured here",
    )
