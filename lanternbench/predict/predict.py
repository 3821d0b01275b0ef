"""Predict what the methods of a measured run would gain elsewhere: its steps are replayed on a
model of a device.

Predictions are never mixed with measurements: tables and plot are labelled, and nothing is written
to a run folder.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from lanternbench.measure.figures import robust
from lanternbench.measure.samples import Sample
from lanternbench.predict.machines import Machine, Measured, Roofline
from lanternbench.predict.replay import BASE, Case, Trace, autoregressive, baseline, batches
from lanternbench.report.style import GRID, LEADER, colour, save
from lanternbench.report.tables import markdown
from lanternbench.utils.files import OUT, replacing, writing
from lanternbench.utils.json_values import versioned

# batch sizes among which the largest that fits, and the first that no longer gains, are sought
BATCHES = tuple(2**i for i in range(11))
TITLE = "Predicted, not measured"
TITLES = (
    "batch",
    "method",
    "τ",
    "ms/token",
    "s/image",
    "images/s",
    "speedup",
    "bound by",
    "gains at",
)
LEFT = ("method", "bound by", "gains at")
BOUND = {"weights": "weights", "cache": "KV cache", "arithmetic": "FLOP/s", "vocabulary": "logits"}
CHECKED = ("method", "images", "predicted", "measured", "error", "robust", "error", "of speedup")
Traces = Mapping[Case, Sequence[Trace]]


class Prediction(NamedTuple):
    """One method on one machine at one batch size.  Predicted, not measured.

    ``latency_s``: of the decode loop of an image, which is that of its batch; ``shares``: of the
    latency, by what bounds it.  ``stops_at``: the first of ``BATCHES`` that no longer gains; None
    if all do.  ``fits_up_to``: the largest of them that fits in memory, 0 if none does.
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


def predict(
    roof: Roofline,
    cases: Traces,
    sizes: Sequence[int],
    alone: Measured | None = None,
) -> list[Prediction]:
    """Return every method at every batch size, after autoregressive decoding on the same machine.

    ``alone``: the machine as it was probed, for single images of the probed target; batches follow
    from ``roof``.
    """
    shape = next(iter(cases)).shape
    base = baseline(shape)
    traces: dict[Case, Sequence[Trace]] = {base: [autoregressive(shape.length)]}
    traces |= {case: steps for case, steps in cases.items() if case.measured is not None}
    replay = MachineReplay(roof, alone, base, traces)
    stops = {case: replay.first_without_gain(case) for case in traces}
    return [replay.prediction(case, batch, stops[case]) for batch in sizes for case in traces]


class MachineReplay(NamedTuple):
    """The steps of methods, and of their baseline, on one machine."""

    roof: Roofline
    alone: Measured | None
    base: Case
    traces: Traces

    def prediction(self, case: Case, batch: int, stops_at: int | None) -> Prediction:
        machine = self.roof if self.alone is None or batch > 1 else self.alone
        traces = self.traces[case]
        seconds, spent = latency(machine, case, traces, batch)
        base_seconds, _ = latency(machine, self.base, self.traces[self.base], batch)
        nodes = max(int(trace.nodes.max()) for trace in traces)
        fitting = [size for size in BATCHES if self.roof.fits(case, size, nodes)]
        tokens = sum(int(trace.committed.sum()) for trace in traces)
        return Prediction(
            device=machine.name,
            target=case.shape.name,
            dtype=machine.dtype,
            batch=batch,
            label=case.label,
            method=case.method,
            images=len(traces),
            tau=tokens / sum(trace.steps for trace in traces),
            latency_s=seconds,
            ms_per_token=1e3 * seconds / case.shape.length,
            images_per_s=batch / seconds,
            speedup=base_seconds / seconds,
            bound=max(spent, key=spent.__getitem__),
            shares={name: value / seconds for name, value in spent.items()},
            memory_gb=self.roof.memory(case, batch, nodes),
            fits=self.roof.fits(case, batch, nodes),
            stops_at=stops_at,
            fits_up_to=max(fitting, default=0),
        )

    def first_without_gain(self, case: Case) -> int | None:
        """Return the first of ``BATCHES`` at which a method is no faster than the baseline."""
        if case is self.base:
            return None
        for batch in BATCHES:
            base_seconds, _ = latency(self.roof, self.base, self.traces[self.base], batch)
            if base_seconds <= latency(self.roof, case, self.traces[case], batch)[0]:
                return batch
        return None


def latency(
    machine: Machine,
    case: Case,
    traces: Sequence[Trace],
    batch: int,
) -> tuple[float, dict[str, float]]:
    """Return the mean seconds of the decode of a batch, and what they are spent on."""
    spent: dict[str, float] = {}
    groups = batches(traces, batch, machine.graphs)
    for steps in groups:
        for name, value in machine.seconds(case, steps).items():
            spent[name] = spent.get(name, 0.0) + float(value.sum()) / len(groups)
    return sum(spent.values()), spent


class Validation(NamedTuple):
    """Predictions compared with measurements on the machine and target of the run: seconds per
    image, and median relative errors.

    ``robust_s``: the robust latency, which steps that were held up do not change; the latency if
    no steps were recorded.
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
    """Return every method of the run that was timed, the baseline too."""
    rows = []
    for case, case_traces in traces.items():
        drafted = [s for s in samples if s.label == case.label and len(s.accept_lengths) > 1]
        timed = [
            (trace, sample)
            for trace, sample in zip(case_traces, drafted, strict=True)
            if sample.timed and sample.decode_s > 0
        ]
        if timed:
            rows.append(_validation(machine, case, timed))
    base = next((row for row in rows if row.label == BASE), None)
    if base is None:
        return rows
    checked = []
    for row in rows:
        if row is not base:
            predicted = base.predicted_s / row.predicted_s
            measured = base.measured_s / row.measured_s
            row = row._replace(speedup_error=abs(predicted / measured - 1))
        checked.append(row)
    return checked


def _validation(machine: Machine, case: Case, timed: Sequence[tuple[Trace, Sample]]) -> Validation:
    predicted = np.array([latency(machine, case, [trace], 1)[0] for trace, _ in timed])
    measured = np.array([sample.decode_s for _, sample in timed])
    robust_s = np.array([_robust_seconds(sample) for _, sample in timed])
    return Validation(
        label=case.label,
        images=len(timed),
        predicted_s=float(predicted.mean()),
        measured_s=float(measured.mean()),
        error=float(np.median(np.abs(predicted / measured - 1))),
        robust_s=float(robust_s.mean()),
        robust_error=float(np.median(np.abs(predicted / robust_s - 1))),
    )


def _robust_seconds(sample: Sample) -> float:
    if not sample.step_s:
        return sample.decode_s
    return robust(sample.step_s, sample.cpu_s, sample.threads)[0]


def errors(checked: Sequence[Validation]) -> list[str]:
    """Return a note on how far the predictions are from the measurements, if there are any."""
    if not checked:
        return []
    medians = [
        f"{median(row.error for row in checked):.1%} of the latency",
        f"{median(row.robust_error for row in checked):.1%} of the robust latency",
    ]
    speedups = [row.speedup_error for row in checked if row.speedup_error is not None]
    if speedups:
        medians.append(f"{median(speedups):.1%} of the speedup")
    return [f"median error on this machine: {', '.join(medians)}"]


def setups(rows: Sequence[Prediction]) -> list[tuple[str, list[Prediction]]]:
    """Return the rows by device, target and dtype, in their order, each group with its title."""
    groups = groupby(rows, key=lambda row: f"{row.target} on {row.device}, {row.dtype}")
    return [(title, list(group)) for title, group in groups]


def cells(row: Prediction) -> list[str]:
    """Return one row of the table, a text for each of ``TITLES``."""
    first = [str(row.batch), row.label, f"{row.tau:.2f}"]
    if not row.fits:
        return [*first, *["–"] * 4, f"needs {row.memory_gb:.0f} GB", ""]
    speeds = [f"{value:.3g}" for value in (row.ms_per_token, row.latency_s, row.images_per_s)]
    bound = BOUND.get(row.bound, row.bound)
    return [*first, *speeds, f"{row.speedup:.2f}×", bound, gains(row)]


def gains(row: Prediction) -> str:
    """Return the batch sizes that fit in memory at which a method is faster than the baseline."""
    if row.method == BASE:
        return ""
    if not row.fits_up_to or row.stops_at == 1:
        return "none"
    if row.stops_at and row.stops_at <= row.fits_up_to:
        return f"below {row.stops_at}"
    return f"up to {row.fits_up_to}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=0, pad_edge=False
    )
    for name in columns:
        justify: JustifyMethod = "left" if name in LEFT else "right"
        table.add_column(name, justify=justify, no_wrap=name != "method")
    return table


def terminal_tables(
    rows: Sequence[Prediction], checked: Sequence[Validation] = ()
) -> Iterator[Table]:
    """Yield, in 80 columns, a table for each setup, batch size by batch size, and one of the
    validation if there is one.
    """
    for setup, group in setups(rows):
        table = _table(f"{TITLE}: {setup}", TITLES[1:])
        for batch, lines in groupby(group, key=lambda row: row.batch):
            table.add_section()
            table.add_row(Text(f"batch {batch}", style="bold"))
            for row in lines:
                table.add_row(*map(Text, cells(row)[1:]))
        yield table
    if checked:
        table = _table("Predicted and measured: s/image", CHECKED)
        for v in checked:
            table.add_row(
                Text(v.label),
                str(v.images),
                f"{v.predicted_s:.3g}",
                f"{v.measured_s:.3g}",
                f"{v.error:.1%}",
                f"{v.robust_s:.3g}",
                f"{v.robust_error:.1%}",
                "" if v.speedup_error is None else f"{v.speedup_error:.1%}",
            )
        yield table


def write(
    out: Path,
    document: dict[str, Any],
    rows: Sequence[Prediction],
    curve: Sequence[Prediction],
) -> None:
    """Write ``predictions.json`` and ``.md``, and a plot of ``curve``.  Raises UserError if they
    cannot be written.
    """
    with writing(out, OUT):
        out.mkdir(parents=True, exist_ok=True)
    is_right = [title not in LEFT for title in TITLES]
    sections = []
    for setup, group in setups(rows):
        table = markdown(list(TITLES), [cells(row) for row in group], is_right)
        sections.append(f"## {TITLE}: {setup}\n\n{table}\n")
    sections += [f"- {note}\n" for note in document["notes"]]
    text = json.dumps(versioned(document), indent=2, ensure_ascii=False)
    for name, content in (("json", f"{text}\n"), ("md", "".join(sections))):
        with replacing(out / f"predictions.{name}", OUT) as file:
            file.write(content.encode())
    save(lambda: plot(curve), out / "predictions", ("png",), dpi=200)


def plot(rows: Sequence[Prediction]) -> Figure:
    """Return the speedup against batch size, a panel for each setup, without batches that do not
    fit in memory.
    """
    groups = setups(rows)
    across = min(len(groups), 3)
    down = -(-len(groups) // 3)
    figure = Figure(figsize=(3.4 * across, 3.0 * down), layout="constrained")
    for i, (_, group) in enumerate(groups, 1):
        _plot_speedups(figure.add_subplot(down, across, i), group)
    figure.suptitle(f"{TITLE} (roofline)", fontsize=8.5)
    return figure


def _plot_speedups(axes: Axes, rows: Sequence[Prediction]) -> None:
    """Plot the rows of one setup."""
    axes.grid(color=GRID, linewidth=0.6)
    axes.axhline(1.0, color=LEADER, linewidth=1.1, linestyle=(0, (4, 2)))
    methods = {row.label: row.method for row in rows if row.method != BASE}
    for marker, (label, method) in zip(cycle("os^vDPX"), methods.items()):
        fitting = [row for row in rows if row.label == label and row.fits]
        axes.plot(
            [row.batch for row in fitting],
            [row.speedup for row in fitting],
            color=colour(method),
            marker=marker,
            markersize=4,
            linewidth=1.1,
            label=label,
        )
    axes.set_xscale("log", base=2)
    axes.set(xlim=(BATCHES[0] * 0.9, BATCHES[-1] * 1.1))
    axes.set(xlabel="batch", ylabel="predicted speedup over ar")
    first = rows[0]
    title = f"{first.target}, {first.device}, {first.dtype}"
    axes.set_title(title, fontsize=8.5, parse_math=False)
    axes.legend(frameon=False, fontsize=7)
