"""Predictions as a table and a plot, labelled as what they are."""

import json
from collections.abc import Iterator, Sequence
from itertools import cycle, groupby
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from lanternbench.predict.predict import BASE, BATCHES, Prediction, Validation
from lanternbench.report.scene import colour, save
from lanternbench.report.tables import markdown
from lanternbench.utils.files import OUT, replacing, writing
from lanternbench.utils.json_values import versioned

TITLE = "Predicted, not measured"
TITLES = ("batch", "method", "τ", "ms/token", "s/image", "images/s", "speedup", "bound by", "gains at")
LEFT = ("method", "bound by", "gains at")
BOUND = {"weights": "weights", "cache": "KV cache", "arithmetic": "FLOP/s", "vocabulary": "logits"}
CHECKED = ("method", "images", "predicted", "measured", "error", "robust", "error", "of speedup")


def document(rows: Sequence[Prediction], checked: Sequence[Validation], notes: Sequence[str]) -> dict[str, Any]:
    """All of it as JSON, labelled for what it is."""
    records = [{"predicted": True, **row._asdict()} for row in rows]
    return {"predicted": True, "rows": records, "validation": [v._asdict() for v in checked], "notes": list(notes)}


def errors(checked: Sequence[Validation]) -> list[str]:
    """A note on how far the predictions are from what was measured, where anything was."""
    medians = []
    for name, of in (("error", "latency"), ("robust_error", "robust latency"), ("speedup_error", "speedup")):
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
    return [*first, *speeds, f"{row.speedup:.2f}×", BOUND.get(row.bound, row.bound), _gains(row)]


def _gains(row: Prediction) -> str:
    """The batch sizes at which the method is faster than the baseline, of those that fit in memory."""
    if row.method == BASE:
        return ""
    if not row.fits_up_to or row.stops_at == 1:
        return "none"
    below = row.stops_at and row.stops_at <= row.fits_up_to
    return f"below {row.stops_at}" if below else f"up to {row.fits_up_to}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=0, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=name != "method")
    return table


def terminal_tables(rows: Sequence[Prediction], checked: Sequence[Validation] = ()) -> Iterator[Table]:
    """In 80 columns a table for each setup, batch size by batch size, and one of the validation if there is one."""
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


def markdown_tables(rows: Sequence[Prediction]) -> str:
    """Every setup's table as Markdown."""
    right = [title not in LEFT for title in TITLES]
    tables = [(setup, markdown(list(TITLES), [cells(row) for row in group], right)) for setup, group in setups(rows)]
    return "\n".join(f"## {TITLE}: {setup}\n\n{table}" for setup, table in tables)


def write(out: Path, document: dict[str, Any], rows: Sequence[Prediction], curve: Sequence[Prediction]) -> None:
    """``predictions.json``, ``.md`` and ``.png`` in ``out``; ``curve``: the rows of the plot.

    Raises UserError where they cannot be written.
    """
    with writing(out, OUT):
        out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(versioned(document), indent=2, ensure_ascii=False)
    notes = "\n".join(f"- {note}" for note in document["notes"])
    for name, whole in (("json", f"{text}\n"), ("md", f"{markdown_tables(rows)}\n{notes}\n")):
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
            axes.plot(x, y, color=colour(method), marker=marker, markersize=4, linewidth=1.1, label=label)
        axes.set_xscale("log", base=2)
        axes.set(xlim=(BATCHES[0] * 0.9, BATCHES[-1] * 1.1), xlabel="batch", ylabel="predicted speedup over ar")
        axes.set_title(f"{first.target}, {first.device}, {first.dtype}", fontsize=8.5, parse_math=False)
        axes.legend(frameon=False, fontsize=7)
    figure.suptitle(f"{TITLE} (roofline)", fontsize=8.5)
    return figure
