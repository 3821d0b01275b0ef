"""Predict what the methods of a measured run would gain elsewhere: its steps are replayed on a model of a device.

Predictions are never mixed with measurements: this package never writes to a run folder.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lanternbench.engine.proposal import Proposal
from lanternbench.errors import UserError
from lanternbench.measure.figures import robust
from lanternbench.measure.samples import Sample
from lanternbench.predict.machines import Case, Machine, Measured, Roofline
from lanternbench.predict.replay import Trace, autoregressive, batches, stretched

BATCHES = tuple(2**i for i in range(11))  # of which the first is sought that no longer gains
BASE = "ar"
Traces = Mapping[Case, Sequence[Trace]]


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
    memory_gb: float
    fits: bool
    stops_at: int | None
    fits_up_to: int


def traces_of(samples: Sequence[Sample], proposer: Proposal | None, length: int) -> list[Trace]:
    """The samples of one method, stretched to ``length`` tokens.  Sizes of fixed trees are derived where not recorded.

    Raises UserError where they are neither recorded nor fixed.
    """
    traces = []
    nodes, depth = (1, 0) if proposer is None else (proposer.nodes, proposer.max_depth)
    for sample in samples:
        lengths = sample.accept_lengths[1:]
        sizes = ((sample.tree_nodes or [])[1:], sample.tree_depths[1:])
        if proposer is None or not len(sizes[0]) == len(sizes[1]) == len(lengths):
            if proposer is not None and proposer.adapts and lengths:
                raise UserError(
                    f"the samples of '{sample.label}' lack the tree size of each step, which this method changes as it "
                    "goes: measure it again with this version"
                )
            sizes = ([nodes] * len(lengths), [depth] * len(lengths))
        traces += [stretched(lengths, *sizes, length)] if lengths else []
    return traces


def predict(roof: Roofline, cases: Traces, sizes: Sequence[int], alone: Measured | None = None) -> list[Prediction]:
    """Every method at every batch size, after autoregressive decoding on the same machine.

    ``alone``: the machine as it was probed, for single images of the probed target; batches follow from ``roof``.
    """
    drafting = {case: traces for case, traces in cases.items() if case.measured is not None}
    shape = next(iter(cases)).shape
    base, ones = Case(BASE, BASE, shape, None, None), [autoregressive(shape.length)]
    rows = []
    for case, traces in {base: ones, **drafting}.items():
        nodes = max(int(t.nodes.max()) for t in traces)
        fits = [b for b in BATCHES if roof.memory(case, b, nodes) <= roof.device.memory]
        slower = (b for b in BATCHES if latency(roof, base, ones, b)[0] <= latency(roof, case, traces, b)[0])
        stops = None if case is base else next(slower, None)
        tau = sum(int(t.committed.sum()) for t in traces) / sum(t.steps for t in traces)
        for batch in sizes:
            machine = roof if alone is None or batch > 1 else alone
            seconds, spent = latency(machine, case, traces, batch)
            memory = roof.memory(case, batch, nodes)
            rows.append(
                Prediction(
                    device=machine.name, target=shape.name, dtype=machine.dtype, batch=batch, label=case.label,
                    method=case.method, images=len(traces), tau=tau, latency_s=seconds,
                    ms_per_token=1e3 * seconds / shape.length, images_per_s=batch / seconds,
                    speedup=latency(machine, base, ones, batch)[0] / seconds, bound=max(spent, key=spent.__getitem__),
                    shares={name: value / seconds for name, value in spent.items()}, memory_gb=memory,
                    fits=memory <= roof.device.memory, stops_at=stops, fits_up_to=max(fits, default=0),
                )
            )  # fmt: skip
    return sorted(rows, key=lambda row: sizes.index(row.batch))


def latency(machine: Machine, case: Case, traces: Sequence[Trace], batch: int) -> tuple[float, dict[str, float]]:
    """Mean seconds of the decode of a batch, and what they are spent on."""
    spent: dict[str, float] = {}
    groups = batches(traces, batch, machine.graphs)
    for steps in groups:
        for name, value in machine.seconds(case, steps).items():
            spent[name] = spent.get(name, 0.0) + float(value.sum()) / len(groups)
    return sum(spent.values()), spent


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


def validate(machine: Machine, traces: Traces, samples: Sequence[Sample]) -> list[Validation]:
    """Every method of the run that was timed, its baseline too."""
    rows = []
    for case, each in traces.items():
        measured = [s for s in samples if s.label == case.label and len(s.accept_lengths) > 1]
        timed = [(t, s) for t, s in zip(each, measured, strict=True) if s.timed and s.decode_s > 0]
        if timed:
            predicted = [latency(machine, case, [t], 1)[0] for t, _ in timed]
            calm = [robust(s.step_s, s.cpu_s, s.threads)[0] if s.step_s else s.decode_s for _, s in timed]
            times = np.array([predicted, [s.decode_s for _, s in timed], calm])
            means, errors = times.mean(1).tolist(), np.median(np.abs(times[0] / times[1:] - 1), 1).tolist()
            rows.append(Validation(case.label, len(timed), means[0], means[1], errors[0], means[2], errors[1]))
    if (base := next((v for v in rows if v.label == BASE), None)) is None:
        return rows
    ratios = [(base.predicted_s / v.predicted_s) / (base.measured_s / v.measured_s) for v in rows]
    return [v if v is base else v._replace(speedup_error=abs(r - 1)) for v, r in zip(rows, ratios, strict=True)]
