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
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from lanternbench.measure.figures import robust
from lanternbench.measure.samples import Sample
from lanternbench.predict.machines import Machine, Measured, Roofline
from lanternbench.predict.replay import BASE, Case, Trace, autoregressive, baseline, batches
from lanternbench.report.style import colour, save
from lanternbench.report.tables import markdown
from lanternbench.utils.files import OUT, replacing, writing
from lanternbench.utils.json_values import versioned

BATCHES = tuple(2**i for i in range(11))  # of which the first is sought that no longer gains
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

    ``latency_s``: of the decode loop of an image, which is that of its batch.  ``shares`` of it by
    what bounds it. ``stops_at``: the first batch size, of powers of two up to 1024, that no longer
    gains; None where all do. ``fits_up_to``: the largest of them that fits in memory, 0 where none
    does.
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
    roof: Roofline, cases: Traces, sizes: Sequence[int], alone: Measured | None = None
) -> list[Prediction]:
    """Every method at every batch size, after autoregressive decoding on the same machine.

    ``alone``: the machine as it was probed, for single images of the probed target; batches follow
    from ``roof``.
    """
    drafting = {case: traces for case, traces in cases.items() if case.measured is not None}
    shape = next(iter(cases)).shape
    base = baseline(shape)
    ones = [autoregressive(shape.length)]
    rows = []
    for case, traces in {base: ones, **drafting}.items():
        nodes = max(int(t.nodes.max()) for t in traces)
        fits = [b for b in BATCHES if roof.memory(case, b, nodes) <= roof.device.memory]
        slower = (
            b
            for b in BATCHES
            if latency(roof, base, ones, b)[0] <= latency(roof, case, traces, b)[0]
        )
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


def latency(
    machine: Machine, case: Case, traces: Sequence[Trace], batch: int
) -> tuple[float, dict[str, float]]:
    """Mean seconds of the decode of a batch, and what they are spent on."""
    spent: dict[str, float] = {}
    groups = batches(traces, batch, machine.graphs)
    for steps in groups:
        for name, value in machine.seconds(case, steps).items():
            spent[name] = spent.get(name, 0.0) + float(value.sum()) / len(groups)
    return sum(spent.values()), spent


class Validation(NamedTuple):
    """Predicted beside measured on the machine and target of the run: seconds an image, median
    relative errors.

    ``robust_s``: the first of ``steps.robust``, which steps that were held up do not change; the
    latency where no steps were recorded.
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
            calm = [
                robust(s.step_s, s.cpu_s, s.threads)[0] if s.step_s else s.decode_s
                for _, s in timed
            ]
            times = np.array([predicted, [s.decode_s for _, s in timed], calm])
            means, errors = (
                times.mean(1).tolist(),
                np.median(np.abs(times[0] / times[1:] - 1), 1).tolist(),
            )
            rows.append(
                Validation(
                    case.label, len(timed), means[0], means[1], errors[0], means[2], errors[1]
                )
            )
    if (base := next((v for v in rows if v.label == BASE), None)) is None:
        return rows
    ratios = [(base.predicted_s / v.predicted_s) / (base.measured_s / v.measured_s) for v in rows]
    return [
        v if v is base else v._replace(speedup_error=abs(r - 1))
        for v, r in zip(rows, ratios, strict=True)
    ]


def errors(checked: Sequence[Validation]) -> list[str]:
    """A note on how far the predictions are from what was measured, where anything was."""
    medians = []
    for name, of in (
        ("error", "latency"),
        ("robust_error", "robust latency"),
        ("speedup_error", "speedup"),
    ):
        if each := [getattr(row, name) for row in checked if getattr(row, name) is not None]:
            medians.append(f"{median(each):.1%} of the {of}")
    return [f"median error on this machine: {', '.join(medians)}"] if medians else []


def setups(rows: Sequence[Prediction]) -> list[tuple[str, list[Prediction]]]:
    """The rows by device, target and dtype, in their order, each group with what it is of."""
    groups = groupby(rows, key=lambda row: (row.target, row.device, row.dtype))
    return [("{} on {}, {}".format(*setup), list(group)) for setup, group in groups]


def cells(row: Prediction) -> list[str]:
    """One row of the table, a text for each of ``TITLES``."""
    first = [str(row.batch), row.label, f"{row.tau:.2f}"]
    if not row.fits:
        return [*first, *["–"] * 4, f"needs {row.memory_gb:.0f} GB", ""]
    speeds = [f"{value:.3g}" for value in (row.ms_per_token, row.latency_s, row.images_per_s)]
    # batch sizes that fit in memory
    gains = "" if row.method == BASE else f"up to {row.fits_up_to}"
    if gains and (not row.fits_up_to or row.stops_at == 1):
        gains = "none"
    elif gains and row.stops_at and row.stops_at <= row.fits_up_to:
        gains = f"below {row.stops_at}"
    return [*first, *speeds, f"{row.speedup:.2f}×", BOUND.get(row.bound, row.bound), gains]


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=0, pad_edge=False
    )
    for name in columns:
        table.add_column(
            name, justify="left" if name in LEFT else "right", no_wrap=name != "method"
        )
    return table


def terminal_tables(
    rows: Sequence[Prediction], checked: Sequence[Validation] = ()
) -> Iterator[Table]:
    """In 80 columns a table for each setup, batch size by batch size, and one of the validation if
    there is one.
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
        table = _table("Predicted beside measured: s/image", CHECKED)
        for v in checked:
            seconds = (f"{v.predicted_s:.3g}", f"{v.measured_s:.3g}", f"{v.error:.1%}")
            ratio = "" if v.speedup_error is None else f"{v.speedup_error:.1%}"
            robust = (f"{v.robust_s:.3g}", f"{v.robust_error:.1%}")
            table.add_row(Text(v.label), str(v.images), *seconds, *robust, ratio)
        yield table


def write(
    out: Path, document: dict[str, Any], rows: Sequence[Prediction], curve: Sequence[Prediction]
) -> None:
    """``predictions.json``, ``.md`` and, of ``curve``, ``.png``.  Raises UserError where they
    cannot be written.
    """
    with writing(out, OUT):
        out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(versioned(document), indent=2, ensure_ascii=False)
    right = [title not in LEFT for title in TITLES]
    tables = [
        (setup, markdown(list(TITLES), [cells(row) for row in group], right))
        for setup, group in setups(rows)
    ]
    sections = "\n".join(f"## {TITLE}: {setup}\n\n{table}" for setup, table in tables)
    notes = "\n".join(f"- {note}" for note in document["notes"])
    for name, whole in (("json", f"{text}\n"), ("md", f"{sections}\n{notes}\n")):
        with replacing(out / f"predictions.{name}", OUT) as file:
            file.write(whole.encode())
    save(lambda: plot(curve), out / "predictions", ("png",), dpi=200)


def plot(rows: Sequence[Prediction]) -> Figure:
    """Speedup against batch size, a panel for each setup; what does not fit in memory is left out."""
    groups = setups(rows)
    across, down = min(len(groups), 3), -(-len(groups) // 3)
    figure = Figure(figsize=(3.4 * across, 3.0 * down), layout="constrained")
    for i, (_, group) in enumerate(groups, 1):
        axes, first = figure.add_subplot(down, across, i), group[0]
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.axhline(1.0, color="#9aa0a6", linewidth=1.1, linestyle=(0, (4, 2)))
        methods = {row.label: row.method for row in group if row.method != BASE}
        for marker, (label, method) in zip(cycle("os^vDPX"), methods.items()):
            points = [(row.batch, row.speedup) for row in group if row.label == label and row.fits]
            x, y = zip(*points) if points else ((), ())
            axes.plot(
                x, y, color=colour(method), marker=marker, markersize=4, linewidth=1.1, label=label
            )
        axes.set_xscale("log", base=2)
        axes.set(
            xlim=(BATCHES[0] * 0.9, BATCHES[-1] * 1.1),
            xlabel="batch",
            ylabel="predicted speedup over ar",
        )
        axes.set_title(
            f"{first.target}, {first.device}, {first.dtype}", fontsize=8.5, parse_math=False
        )
        axes.legend(frameon=False, fontsize=7)
    figure.suptitle(f"{TITLE} (roofline)", fontsize=8.5)
    return figure
