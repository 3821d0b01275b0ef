"""Predict what the methods of a measured run would gain elsewhere: its steps are replayed on a
model of a device.

Predictions are never mixed with measurements: tables and plot are labelled, and nothing is written
to a run folder.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle, groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from lanternbench.costs.roofline import THIS
from lanternbench.measure.figures import robust
from lanternbench.measure.samples import Sample
from lanternbench.methods.method import preset
from lanternbench.predict.machines import Machine, Measured, Roofline
from lanternbench.predict.replay import BASE, ELSEWHERE, TOY, Case, Trace, baseline, batches
from lanternbench.report.style import GRID, LEADER, colour, save, styled
from lanternbench.report.tables import markdown
from lanternbench.utils.files import OUT, make_folder, packaged_yaml, write_file
from lanternbench.utils.json_values import json_text

# batch sizes among which the largest that fits, and the first that no longer gains, are sought
BATCHES = tuple(2**i for i in range(11))
TITLE = "Predicted, not measured"
TITLES = (
    *("batch", "method", "lossless", "τ", "ms/token", "speedup"),
    *("expected", "paper's", "acceptance", "quality", "bound by", "gains at", "warning"),
)
TERMINAL = ("method", "τ", "ms/token", "speedup", "expected", "paper's", "acceptance", "gains at")
LEFT = ("method", "lossless", "acceptance", "quality", "bound by", "gains at", "warning")
LOSSLESS = "✓"
OTHERS = (TOY, ELSEWHERE)  # whose accepted lengths are those of another target
BOUND = {"weights": "weights", "cache": "KV cache", "arithmetic": "FLOP/s", "vocabulary": "logits"}
CHECKED = ("method", "images", "predicted", "measured", "error", "robust", "error", "of speedup")


class Prediction(NamedTuple):
    """One method on one machine at one batch size.  Predicted, not measured.

    ``acceptance``, ``source``, ``quality``, ``published_speedup``, ``warning``: see
    ``Acceptance``.  ``drafter``: the kind that the method needs, if any.  ``latency_s``: of the
    decode loop of an image, which is that of its batch.  ``ms_per_token``: without the token that
    the prefill draws.  ``low``, ``high``: see ``expected``.  ``shares``: of the latency, by what
    bounds it.  ``stops_at``: the first of ``BATCHES`` that no longer gains; None if all do.
    ``fits_up_to``: the largest of them that fits in memory, 0 if none does.
    """

    device: str
    target: str
    dtype: str
    batch: int
    label: str
    method: str
    lossless: bool
    drafter: str
    acceptance: str
    source: str
    quality: str
    warning: str
    images: int
    tau: float
    latency_s: float
    ms_per_token: float
    images_per_s: float
    speedup: float
    low: float | None
    high: float | None
    published_speedup: float | None
    bound: str
    shares: dict[str, float]
    memory_gb: float
    fits: bool
    stops_at: int | None
    fits_up_to: int


def predict(
    roof: Roofline,
    cases: Sequence[Case],
    sizes: Sequence[int],
    alone: Measured | None = None,
) -> list[Prediction]:
    """Return every method at every batch size, the fastest first, after autoregressive decoding on
    the same machine.

    ``alone``: the machine as it was probed, for single images of the probed target; batches follow
    from ``roof``.
    """
    base = baseline(cases[0].shape)
    replay = MachineReplay(roof, alone, base)
    decodes = [base, *(case for case in cases if case.measured is not None)]
    stops = [(case, replay.first_without_gain(case)) for case in decodes]
    rows: list[Prediction] = []
    for batch in sizes:
        rows += ranked([replay.prediction(case, batch, stop) for case, stop in stops])
    return rows


def ranked(rows: Sequence[Prediction]) -> list[Prediction]:
    """Return the baseline, then the fastest first; a method with the accepted lengths of another
    target follows its fastest row with published ones, if there is one.
    """
    fastest: dict[str, float] = {}
    for row in rows:
        if row.acceptance not in OTHERS:
            fastest[row.method] = max(row.speedup, fastest.get(row.method, 0.0))

    def rank(row: Prediction) -> tuple[bool, float, bool]:
        is_others = row.acceptance in OTHERS
        speedup = fastest.get(row.method, row.speedup) if is_others else row.speedup
        return row.method != BASE, -speedup, is_others

    return sorted(rows, key=rank)


@cache
def spreads() -> dict[str, dict[str, list[float]]]:
    """Return published speedups over predicted ones, 10th and 90th percentile, by origin of the
    accepted lengths (published, toy) and family of methods.
    """
    return packaged_yaml(__file__, "spreads.yaml")


def expected(
    machine: Machine, case: Case, speedup: float
) -> tuple[float, float] | tuple[None, None]:
    """Return the range of a predicted speedup by the spread of its family, or that of all methods
    if it has few rows; None for the baseline and a probed machine.
    """
    if machine.name == THIS or case.method.preset == BASE:
        return None, None
    known = spreads()["toy" if case.acceptance.kind in OTHERS else "published"]
    low, high = known.get(preset(case.method.preset).family, known["all"])
    return low * speedup, high * speedup


class MachineReplay(NamedTuple):
    """The steps of methods, and of their baseline, on one machine."""

    roof: Roofline
    alone: Measured | None
    base: Case

    def prediction(self, case: Case, batch: int, stops_at: int | None) -> Prediction:
        machine: Machine = self.roof
        if self.alone is not None and batch == 1 and case.label in self.alone.costs:
            machine = self.alone
        seconds, spent = latency(machine, case, batch)
        base_seconds, _ = latency(machine, self.base, batch)
        nodes = max(int(trace.nodes.max()) for trace in case.traces)
        tokens = sum(int(trace.committed.sum()) for trace in case.traces)
        speedup = base_seconds / seconds
        low, high = expected(machine, case, speedup)
        return Prediction(
            device=machine.name,
            target=case.shape.name,
            dtype=machine.dtype,
            batch=batch,
            label=case.label,
            method=case.method.preset,
            lossless=case.method.lossless,
            drafter=case.method.proposal.drafter_kind or "",
            acceptance=case.acceptance.kind,
            source=case.acceptance.source,
            quality=case.acceptance.quality,
            warning=case.acceptance.warning,
            images=len(case.traces),
            tau=tokens / sum(trace.steps for trace in case.traces),
            latency_s=seconds,
            ms_per_token=1e3 * seconds / (case.shape.length - 1),
            images_per_s=batch / seconds,
            speedup=speedup,
            low=low,
            high=high,
            published_speedup=case.acceptance.speedup,
            bound=max(spent, key=spent.__getitem__),
            shares={name: value / seconds for name, value in spent.items()},
            memory_gb=self.roof.memory(case, batch, nodes),
            fits=self.roof.fits(case, batch, nodes),
            stops_at=stops_at,
            fits_up_to=self.largest_fitting(case, nodes),
        )

    def largest_fitting(self, case: Case, nodes: int) -> int:
        """Return the largest of ``BATCHES`` that fits in memory, 0 if none does."""
        fitting = [size for size in BATCHES if self.roof.fits(case, size, nodes)]
        return max(fitting, default=0)

    def first_without_gain(self, case: Case) -> int | None:
        """Return the first of ``BATCHES`` at which a method is no faster than the baseline."""
        if case is self.base:
            return None
        for batch in BATCHES:
            base_seconds, _ = latency(self.roof, self.base, batch)
            if base_seconds <= latency(self.roof, case, batch)[0]:
                return batch
        return None


def latency(machine: Machine, case: Case, batch: int) -> tuple[float, dict[str, float]]:
    """Return the mean seconds of the decode of a batch, and what they are spent on."""
    spent: dict[str, float] = {}
    groups = batches(case.traces, batch, machine.graphs)
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


def validate(
    machine: Machine, cases: Sequence[Case], samples: Sequence[Sample]
) -> list[Validation]:
    """Return every method of the run that was timed, the baseline too."""
    rows = []
    for case in cases:
        drafted = [s for s in samples if s.label == case.label and len(s.accept_lengths) > 1]
        timed = [
            (trace, sample)
            for trace, sample in zip(case.traces, drafted, strict=True)
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
    alone = [case._replace(traces=[trace]) for trace, _ in timed]
    predicted = np.array([latency(machine, one, 1)[0] for one in alone])
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


def cells(row: Prediction) -> dict[str, str]:
    """Return the texts of one row by their titles; speeds are left out if it does not fit."""
    found = dict.fromkeys(TITLES, "")
    published = row.published_speedup
    found |= {
        "batch": str(row.batch),
        "method": row.label,
        "lossless": LOSSLESS if row.lossless else "",
        "τ": f"{row.tau:.2f}",
        "paper's": "" if published is None else f"{published:.2f}×",
        "acceptance": f"{row.acceptance}: {row.source}".removesuffix(": "),
        "quality": row.quality,
        "warning": row.warning,
    }
    if not row.fits:
        return found | {"gains at": f"needs {row.memory_gb:.0f} GB"}
    if row.low is not None:
        found["expected"] = f"{row.low:.2g}–{row.high:.2g}"
    return found | {
        "ms/token": f"{row.ms_per_token:.3g}",
        "speedup": f"{row.speedup:.2f}×",
        "bound by": BOUND.get(row.bound, row.bound),
        "gains at": gains(row),
    }


def short(row: Prediction) -> str:
    """Return the first word of the origin of its accepted length: measured, published, toy …"""
    return row.acceptance.partition(" ")[0].strip(",")


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
) -> Iterator[Table | Text]:
    """Yield, in 80 columns, a table for each setup, batch size by batch size, with the origins of
    its accepted lengths, and a table of the validation if there is one.
    """
    for setup, group in setups(rows):
        table = _table(f"{TITLE}: {setup}", TERMINAL)
        numbers: dict[str, int] = {}
        for batch, lines in groupby(group, key=lambda row: row.batch):
            table.add_section()
            table.add_row(Text(f"batch {batch}", style="bold"))
            for row in lines:
                found = cells(row)
                found["method"] = f"{row.label} {found['lossless']}".strip()
                origin = found["acceptance"]
                found["acceptance"] = short(row)
                if row.source:
                    number = numbers.setdefault(origin, len(numbers) + 1)
                    found["acceptance"] += f" [{number}]"
                table.add_row(*(Text(found[title]) for title in TERMINAL))
        origins = [f"[{number}] {origin}" for origin, number in numbers.items()]
        yield table
        yield Text("\n".join([f"{LOSSLESS} lossless", *origins]))
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
    """Write ``predictions.json``, ``.csv`` and ``.md``, and a plot of ``curve``.  Raises UserError
    if they cannot be written.
    """
    make_folder(out, OUT)
    is_right = [title not in LEFT for title in TITLES]
    sections = []
    for setup, group in setups(rows):
        lines = [list(cells(row).values()) for row in group]
        table = markdown(list(TITLES), lines, is_right)
        sections.append(f"## {TITLE}: {setup}\n\n{table}\n")
    sections += [f"- {note}\n" for note in document["notes"]]
    table = pd.DataFrame(document["rows"]).drop(columns="shares").to_csv(index=False)
    contents = {"json": f"{json_text(document)}\n", "csv": table, "md": "".join(sections)}
    for name, content in contents.items():
        write_file(out / f"predictions.{name}", content, OUT)
    save(plot(curve), out / "predictions", ("png",), dpi=200)


@styled()
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
    lines = {(row.label, row.source): row for row in rows if row.method != BASE}
    for marker, (key, one) in zip(cycle("os^vDPX"), lines.items()):
        fitting = [row for row in rows if (row.label, row.source) == key and row.fits]
        axes.plot(
            [row.batch for row in fitting],
            [row.speedup for row in fitting],
            color=colour(one.method),
            marker=marker,
            markersize=4,
            linewidth=1.1,
            label=f"{one.label} ({short(one)})",
        )
    axes.set_xscale("log", base=2)
    axes.set(xlim=(BATCHES[0] * 0.9, BATCHES[-1] * 1.1))
    axes.set(xlabel="batch", ylabel="predicted speedup over ar")
    first = rows[0]
    title = f"{first.target}, {first.device}, {first.dtype}"
    axes.set_title(title, fontsize=8.5, parse_math=False)
    axes.legend(frameon=False, fontsize=7)
