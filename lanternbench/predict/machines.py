"""Machines to predict for: the seconds of replayed steps on a device model, or on this machine,
probed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from lanternbench.measure.run_record import RunRecord
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_with_drafter
from lanternbench.models.network import Network
from lanternbench.predict.replay import BASE, Case, Cases, Steps, shape_of, sketch
from lanternbench.settings import ModelSpec, Sampling
from lanternbench.utils.device import choose, cores, load_average
from lanternbench.utils.memory import total_memory

REPEATS, STEPS = 15, 16  # products of matrices, and steps at each length, that are timed
SIDE = 1024  # of the matrices


@dataclass(frozen=True)
class Roofline:
    """A device model.  ``graphs``: steps are replayed as CUDA graphs, and a batch keeps its size
    to the end.
    """

    device: DeviceModel
    dtype: str
    graphs: bool = True

    @property
    def name(self) -> str:
        return self.device.name

    def seconds(self, case: Case, steps: Steps) -> dict[str, Values]:
        """The seconds of each step [T], by what they are spent on."""
        parts = {name: np.zeros(len(steps.nodes)) for name in roofline.Parts._fields}
        cached = case.shape.prompt + steps.start - 1
        if self.graphs:  # recorded forwards attend to whole spans
            cached = np.ceil((cached + steps.nodes) / SPAN) * SPAN - steps.nodes
        decoder = roofline.Decoder(case.shape.network, case.drafter, case.operators)
        execution = roofline.Execution(self.device, self.dtype, self.graphs)
        for at, levels in by_levels(case.measured, steps):
            load = Load(
                steps.batch[at], case.shape.rows * steps.batch[at], steps.nodes[at], cached[at]
            )
            drafting = roofline.Drafting(steps.before[at], levels)
            spent = roofline.step(decoder, load, drafting, execution)
            for name, value in spent._asdict().items():
                parts[name][at] = value
        return parts

    def memory(self, case: Case, batch: int, nodes: int) -> float:
        """GB of a batch, text encoder and image tokeniser left out."""
        shape = case.shape
        load = Load(batch, shape.rows * batch, nodes, shape.prompt + shape.length)
        return roofline.memory(shape.network, case.drafter, load, self.dtype)


class MethodCost(NamedTuple):
    """Seconds of a method's step on this machine, as coefficients of its nodes, the cached tokens
    and its levels.
    """

    verify: Values  # of 1, nodes, cached tokens
    draft: Values  # of 1, forwards after the first, their nodes, cached tokens
    outside: float


@dataclass(frozen=True)
class Measured:
    """This machine as the probe timed it, for the target that was probed, one image at a time."""

    dtype: str
    costs: Mapping[str, MethodCost]  # by label
    name: ClassVar[str] = THIS
    graphs: ClassVar[bool] = False

    def seconds(self, case: Case, steps: Steps) -> dict[str, Values]:
        """The seconds of each step [T], by phase."""
        cost, ones = self.costs[case.label], np.ones(len(steps.nodes))
        draft = np.zeros_like(ones)
        for at, levels in by_levels(case.measured, steps):
            draft[at] = (
                cost.draft[:3] @ (1.0, len(levels), sum(levels)) + cost.draft[3] * steps.start[at]
            )
        verify = cost.verify @ np.stack([ones, steps.nodes, steps.start])
        return {"verify": verify, "draft": draft, "outside": cost.outside * ones}


Machine = Roofline | Measured


def by_levels(
    proposer: AnyProposer | None, steps: Steps
) -> Iterable[tuple[np.ndarray, tuple[int, ...]]]:
    """Which steps [T] bool run the same forwards of the drafter, and the nodes that each but the
    first reads.
    """
    sizes, size = np.unique(
        np.stack([steps.depths, steps.nodes], 1).astype(np.int64), axis=0, return_inverse=True
    )
    levels = [
        () if proposer is None else proposer.levels(depth, nodes)
        for depth, nodes in sizes.tolist()
    ]
    for each in dict.fromkeys(levels):
        yield (
            np.isin(size.reshape(-1), [i for i, level in enumerate(levels) if level == each]),
            each,
        )


def probe(
    record: RunRecord,
    where: Path,
    cases: Cases,
    caption: str,
    threads: int | None,
    show: Callable[..., None],
) -> tuple[Roofline, Measured, list[str]]:
    """The host as a device model, its steps on the run's target, and notes on the measurement.

    ``record``: of run.json in ``where``.  Raises UserError where the run's target or drafter
    cannot be loaded.
    """
    c = record.config
    target = load_with_drafter(c.part(ModelSpec), choose("auto", threads))
    methods, costs = {BASE: method(BASE), **cases.methods}, {}
    proposals = {case.label: case.measured for case in cases.traces}
    for done, (label, case_method) in enumerate(methods.items()):
        show(done, len(methods), f"a few steps of {label}")
        costs[label] = method_cost(
            build(target, case_method, c.part(Sampling), c.simulate_acceptance),
            proposals.get(label),
            caption,
        )
    dtype = str(target.dtype).removeprefix("torch.")
    # layers packed for a CPU no longer show their sizes
    plain = shape_of(sketch(c.target), c.guidance)
    model = host(
        target.device, plain.network, float(costs[BASE].verify @ (1, 1, 1)), plain.rows, dtype
    )
    rate, load, cpus = 1e3 * model.tflops[dtype], load_average(), cores()
    facts = (
        f"{model.bandwidth:.1f} GB/s, {rate:.0f} GFLOP/s, {model.gap:.1f} µs a kernel ({dtype})"
    )
    notes = [f"this machine, probed: {facts}"]
    if load is not None and load > cpus:
        notes.append(
            f"the load was {load:.1f} on {cpus} cores while it was probed: stop other programs and try again"
        )
    return Roofline(model, dtype, graphs=False), Measured(dtype, costs), notes


def method_cost(
    decoder: SpeculativeDecoder, proposal: AnyProposer | None, caption: str
) -> MethodCost:
    """What a method's steps cost: least squares over medians of a few at a few cached lengths, by
    size and length.
    """
    lengths = lengths_of(decoder.target.length, decoder.proposer.size.max_depth)
    times = list(step_times(decoder, caption, lengths, STEPS))
    usual, counts = medians(times), Counter(t[:2] for t in times)
    weights = np.sqrt([counts[t[:2]] for t in usual])

    def fit(seconds: list[float], rows: Sequence[tuple[int, ...]]) -> Values:
        return nnls(weights[:, None] * np.array(rows), weights * np.array(seconds))[0]

    verify = fit([t.forward_s for t in usual], [(1, t.shape.nodes, t.cached) for t in usual])
    levels = [proposal.levels(t.shape.depth, t.shape.nodes) if proposal else () for t in usual]
    rows = [(1, len(each), sum(each), t.cached) for t, each in zip(usual, levels, strict=True)]
    return MethodCost(
        verify, fit([t.draft_s for t in usual], rows), median(t.rest_s for t in times)
    )


@torch.inference_mode()
def host(
    device: torch.device, target: Network, least: float, rows: int, dtype: str
) -> DeviceModel:
    """This machine as a device model, for other targets: its bandwidth, its FLOP/s and its
    overhead per kernel.

    The last is what the shortest forward of ``target``, ``least`` seconds, takes beyond its bytes
    and products.
    """
    beta = 1e9 * bandwidth(device).best
    a = torch.ones(SIDE, SIDE, device=device, dtype=getattr(torch, dtype))
    peak = 2 * SIDE**3 / median(seconds_of(lambda: a @ a, device) for _ in range(REPEATS))
    known = max(
        BYTES[dtype] * (target.weights + target.head) / beta, 2 * rows * target.weights / peak
    )
    operators = baseline_operators()
    gap = max(0.0, least - known) / (operators.layer * target.layers + operators.forward)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = total_memory() or 0
    return DeviceModel(
        name=THIS, about="this machine, probed", bandwidth=beta / 1e9, memory=memory / 1e9,
        tflops={dtype: peak / 1e12}, gap=1e6 * gap, issue=0.0, source="measured here",
    )  # fmt: skip
