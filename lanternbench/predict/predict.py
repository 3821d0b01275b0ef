"""Predict what the methods of a measured run would gain elsewhere: its steps are replayed on a model of a device.

Predictions are never mixed with measurements: nothing here writes to a run folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from lanternbench.costs import roofline
from lanternbench.costs.device_models import DeviceModel
from lanternbench.costs.roofline import Load, Values
from lanternbench.engine.cache import SPAN
from lanternbench.engine.proposal import Proposal
from lanternbench.errors import UserError
from lanternbench.measure import steps as timed_steps
from lanternbench.measure.samples import Sample
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target
from lanternbench.predict.replay import Steps, Trace, autoregressive, batches, stretched

BATCHES = tuple(2**i for i in range(11))  # of which the first is sought that no longer gains
BASE = "ar"


class Shape(NamedTuple):
    """A target as a device sees it: L tokens, prompt positions, rows a prompt."""

    name: str
    network: Network
    length: int
    prompt: int
    rows: int


def shape_of(target: Target, guidance: float | None = None) -> Shape:
    """Of a target, on the device ``meta`` too; ``guidance``: by default its own."""
    model, scale = target.model, target.guidance if guidance is None else guidance
    size = network(model, model, model.layers)
    return Shape(target.name, size, target.length, model.prompt_positions, 1 if scale == 1.0 else 2)


class Case(NamedTuple):
    """A method on a target: ``measured`` is how it drafted in the run, ``drafter`` what drafts for the target now."""

    label: str
    method: str
    shape: Shape
    drafter: Network | None
    measured: Proposal | None  # None for the baseline


class Machine(Protocol):
    """A machine to predict for: a device model, or this machine as it was probed."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def keeps_shape(self) -> bool:
        """Does a batch keep its size until its last prompt is finished?"""

    def seconds(self, case: Case, steps: Steps) -> dict[str, Values]:
        """The seconds of each step [T], by what they are spent on."""


@dataclass(frozen=True)
class Roofline:
    """A device model.  ``graphs``: steps are replayed as CUDA graphs."""

    device: DeviceModel
    dtype: str
    graphs: bool = True

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def keeps_shape(self) -> bool:
        return self.graphs

    def seconds(self, case: Case, steps: Steps) -> dict[str, Values]:
        parts = {name: np.zeros(len(steps.nodes)) for name in roofline.Parts._fields}
        cached = case.shape.prompt + steps.start - 1
        if self.graphs:  # recorded forwards attend to whole spans
            cached = np.ceil((cached + steps.nodes) / SPAN) * SPAN - steps.nodes
        for at, levels in by_levels(case.measured, steps):
            load = Load(steps.batch[at], case.shape.rows * steps.batch[at], steps.nodes[at], cached[at])
            target, dtype = case.shape.network, self.dtype
            spent = roofline.step(target, case.drafter, load, levels, steps.before[at], self.device, dtype)
            if not self.graphs:
                drafts = case.measured is not None
                count = roofline.kernels(target, case.drafter, drafts, 1 + len(levels))
                spent = roofline.without_graphs(spent, count, self.device)
            for name, value in spent._asdict().items():
                parts[name][at] = value
        return parts


def by_levels(proposer: Proposal | None, steps: Steps) -> Iterable[tuple[np.ndarray, tuple[int, ...]]]:
    """Which steps [T] bool run the same forwards of the drafter, and the nodes that each but the first reads."""
    sizes, size = np.unique(steps.depths.astype(np.int64) << 32 | steps.nodes.astype(np.int64), return_inverse=True)
    pairs = ((int(pair >> 32), int(pair & 0xFFFFFFFF)) for pair in sizes)
    levels = [() if proposer is None else proposer.levels(*pair) for pair in pairs]
    groups = list(dict.fromkeys(levels))
    group = np.array([groups.index(each) for each in levels])[size]
    for i, each in enumerate(groups):
        yield group == i, each


class Prediction(NamedTuple):
    """One method on one machine at one batch size.  Predicted, not measured.

    ``latency_s``: of the decode loop of an image, which is that of its batch.  ``shares`` of it by what bounds it.
    ``stops_at``: the first batch size, of powers of two up to 1024, that no longer gains; None where all do.
    ``fits_up_to``: the largest of them that fits in memory, 0 where none does.
    """

    device: str
    target: str
    dtype: str
    batch: int
    label: str
    method: str
    images: int
    tau: float
    latency_s: float
    ms_per_token: float
    images_per_s: float
    speedup: float
    bound: str
    shares: dict[str, float]
    memory_gb: float | None = None
    fits: bool | None = None
    stops_at: int | None = None
    fits_up_to: int | None = None


def traces_of(samples: Sequence[Sample], proposer: Proposal | None, length: int) -> list[Trace]:
    """The samples of one method, stretched to ``length`` tokens.  Sizes of fixed trees are derived where not recorded.

    Raises UserError where they are neither recorded nor fixed.
    """
    found = []
    for sample in samples:
        lengths = sample.accept_lengths[1:]
        if not lengths:
            continue
        nodes, depths = (sample.tree_nodes or [])[1:], sample.tree_depths[1:]
        if proposer is not None and not (len(nodes) == len(depths) == len(lengths)):
            if proposer.adapts:
                raise UserError(
                    f"the samples of '{sample.label}' lack the tree size of each step, which this method changes as it "
                    "goes: measure it again with this version"
                )
            nodes, depths = [proposer.nodes] * len(lengths), [proposer.max_depth] * len(lengths)
        if proposer is None:
            nodes, depths = [1] * len(lengths), [0] * len(lengths)
        found.append(stretched(lengths, nodes, depths, length))
    return found


def predict(machine: Machine, cases: Mapping[Case, Sequence[Trace]], sizes: Sequence[int]) -> list[Prediction]:
    """Every method at every batch size, beside autoregressive decoding on the same machine, which comes first."""
    every = with_base(cases)
    base, rows = next(iter(every)), []
    for batch in sizes:
        whole = latency(machine, base, every[base], batch)[0]
        rows += [_row(machine, case, traces, batch, whole) for case, traces in every.items()]
    return rows


def with_base(cases: Mapping[Case, Sequence[Trace]]) -> dict[Case, Sequence[Trace]]:
    """Autoregressive decoding of the same target, and then the cases that draft."""
    shape = next(iter(cases)).shape
    drafting = {case: traces for case, traces in cases.items() if case.measured is not None}
    return {Case(BASE, BASE, shape, None, None): [autoregressive(shape.length)], **drafting}


def _row(machine: Machine, case: Case, traces: Sequence[Trace], batch: int, base: float) -> Prediction:
    seconds, spent = latency(machine, case, traces, batch)
    most = max(spent, key=lambda name: spent[name])
    length = case.shape.length
    tau = sum(int(t.committed.sum()) for t in traces) / sum(t.steps for t in traces)
    return Prediction(
        device=machine.name, target=case.shape.name, dtype=machine.dtype, batch=batch, label=case.label,
        method=case.method, images=len(traces), tau=tau, latency_s=seconds, ms_per_token=1e3 * seconds / length,
        images_per_s=batch / seconds, speedup=base / seconds, bound=most,
        shares={name: value / seconds for name, value in spent.items()},
    )  # fmt: skip


def latency(machine: Machine, case: Case, traces: Sequence[Trace], batch: int) -> tuple[float, dict[str, float]]:
    """Mean seconds of the decode of a batch, and what they are spent on."""
    spent: dict[str, float] = {}
    groups = batches(traces, batch, machine.keeps_shape)
    for steps in groups:
        for name, value in machine.seconds(case, steps).items():
            spent[name] = spent.get(name, 0.0) + float(value.sum()) / len(groups)
    return sum(spent.values()), spent


def limits(machine: Roofline, case: Case, traces: Sequence[Trace]) -> tuple[int | None, int]:
    """The first batch size at which the method is no faster (None: always faster), and the largest that fits."""
    base, ones = next(iter(with_base({case: traces}).items()))
    nodes = max(int(t.nodes.max()) for t in traces)
    fits = max((b for b in BATCHES if memory_of(machine, case, b, nodes) <= machine.device.memory), default=0)
    if case.measured is None:
        return None, fits
    gains = (latency(machine, base, ones, b)[0] > latency(machine, case, traces, b)[0] for b in BATCHES)
    return next((b for b, better in zip(BATCHES, gains, strict=False) if not better), None), fits


def memory_of(machine: Roofline, case: Case, batch: int, nodes: int) -> float:
    """GB of a batch, text encoder and image tokeniser left out."""
    shape = case.shape
    load = Load(batch, shape.rows * batch, nodes, shape.prompt + shape.length)
    return roofline.memory(shape.network, case.drafter, load, machine.dtype)


def with_limits(rows: list[Prediction], machine: Roofline, cases: Mapping[Case, Sequence[Trace]]) -> list[Prediction]:
    """The rows with what a device model says of memory and of the batch where speculation stops paying."""
    every = {case.label: (case, traces) for case, traces in with_base(cases).items()}
    found = {label: limits(machine, *each) for label, each in every.items()}
    made = []
    for row in rows:
        case, traces = every[row.label]
        stops, fits = found[row.label]
        need = memory_of(machine, case, row.batch, max(int(t.nodes.max()) for t in traces))
        made.append(row._replace(memory_gb=need, fits=need <= machine.device.memory, stops_at=stops, fits_up_to=fits))
    return made


class Validation(NamedTuple):
    """Predicted beside measured on the machine and target of the run: seconds an image, median relative errors.

    ``robust_s``: the first of ``steps.robust``, which steps that were held up do not change; the latency where no steps
    were recorded.
    """

    label: str
    images: int
    predicted_s: float
    measured_s: float
    error: float
    robust_s: float
    robust_error: float
    speedup_error: float | None = None  # of the ratio of the baseline's mean latency to this one's


def _robust_s(sample: Sample) -> float:
    if not sample.step_s:
        return sample.decode_s
    return timed_steps.robust(sample.step_s, sample.cpu_s, sample.threads)[0]


def validate(machine: Machine, traces: Mapping[Case, Sequence[Trace]], samples: Sequence[Sample]) -> list[Validation]:
    """Every method of the run that was timed, its baseline too."""
    made = []
    for case, each in traces.items():
        own = [s for s in samples if s.label == case.label and len(s.accept_lengths) > 1]
        timed = [(t, s) for t, s in zip(each, own, strict=True) if s.timed and s.decode_s > 0]
        if timed:
            predicted = np.array([latency(machine, case, [t], 1)[0] for t, _ in timed])
            wall = np.array([s.decode_s for _, s in timed])
            robust = np.array([_robust_s(s) for _, s in timed])
            errors = [float(np.median(np.abs(predicted / m - 1))) for m in (wall, robust)]
            means = [float(x.mean()) for x in (predicted, wall, robust)]
            made.append(Validation(case.label, len(timed), means[0], means[1], errors[0], means[2], errors[1]))
    if (base := next((v for v in made if v.label == BASE), None)) is None:
        return made
    ratios = [(base.predicted_s / v.predicted_s) / (base.measured_s / v.measured_s) for v in made]
    return [v if v is base else v._replace(speedup_error=abs(r - 1)) for v, r in zip(made, ratios, strict=True)]


def record(row: Prediction) -> dict[str, Any]:
    """As JSON, labelled for what it is."""
    return {"predicted": True, **row._asdict()}
