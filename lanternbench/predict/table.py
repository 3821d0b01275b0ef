"""Predictions as a table and a plot, labelled as what they are."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from lanternbench.predict.predict import BASE, BATCHES, Prediction, Validation
from lanternbench.report.drawing import save
from lanternbench.report.scene import colour
from lanternbench.report.tables import markdown
from lanternbench.utils.files import OUT, replacing, writing
from lanternbench.utils.json_values import versioned

TITLE = "Predicted, not measured"
TITLES = ("batch", "method", "τ", "ms/token", "s/image", "images/s", "speedup", "bound by", "gains at")
WORDS = ("method", "bound by", "gains at")
BOUND = {"weights": "weights", "cache": "KV cache", "arithmetic": "FLOP/s", "vocabulary": "logits"}


def document(rows: Sequence[Prediction], checked: Sequence[Validation], notes: Sequence[str]) -> dict[str, Any]:
    """All of it as JSON, labelled for what it is."""
    each = {"rows": [row.record() for row in rows], "validation": [row._asdict() for row in checked]}
    return {"predicted": True, **each, "notes": list(notes)}


def errors(checked: Sequence[Validation]) -> list[str]:
    """A note on how far the predictions are from what was measured, where anything was."""
    medians = []
    for name, of in (("error", "latency"), ("robust_error", "robust latency"), ("speedup_error", "speedup")):
        if each := [getattr(row, name) for row in checked if getattr(row, name) is not None]:
            medians.append(f"{median(each):.1%} of the {of}")
    return [f"median error on this machine: {', '.join(medians)}"] if medians else []


def setups(rows: Sequence[Prediction]) -> list[list[Prediction]]:
    """The rows by device, target and dtype, in their order."""
    return [list(group) for _, group in groupby(rows, key=lambda row: (row.device, row.target, row.dtype))]


def heading(rows: Sequence[Prediction]) -> str:
    """What a table of one setup is of."""
    first = rows[0]
    return f"{TITLE}: {first.target} on {first.device}, {first.dtype}"


def cells(row: Prediction) -> list[str]:
    """One row of the table, a text for each of ``TITLES``."""
    if not row.fits:
        return [str(row.batch), row.label, f"{row.tau:.2f}", *["–"] * 4, f"needs {row.memory_gb:.0f} GB", ""]
    return [
        str(row.batch), row.label, f"{row.tau:.2f}", f"{row.ms_per_token:.3g}", f"{row.latency_s:.3g}",
        f"{row.images_per_s:.3g}", f"{row.speedup:.2f}×", BOUND.get(row.bound, row.bound), _gains(row),
    ]  # fmt: skip


def _gains(row: Prediction) -> str:
    """The batch sizes at which the method is faster than the baseline, of those that fit in memory."""
    if row.method == BASE:
        return ""
    if not row.fits_up_to or row.stops_at == 1:
        return "none"
    if row.stops_at and row.stops_at <= row.fits_up_to:
        return f"below {row.stops_at}"
    return f"up to {row.fits_up_to}"


def terminal_table(rows: Sequence[Prediction]) -> Table:
    """The rows of one setup, in 80 columns: batch size by batch size."""
    table = Table(box=box.SIMPLE_HEAD, title=heading(rows), title_justify="left", padding=0, pad_edge=False)
    for title in TITLES[1:]:
        table.add_column(title, justify="left" if title in WORDS else "right", no_wrap=title != "method")
    for last, row in zip([None, *rows], rows, strict=False):
        if last is None or last.batch != row.batch:
            table.add_section()
            table.add_row(Text(f"batch {row.batch}", style="bold"))
        table.add_row(*map(Text, cells(row)[1:]))
    return table


def terminal_tables(rows: Sequence[Prediction], checked: Sequence[Validation]) -> Iterator[Table]:
    """A table for each setup, and one of the validation if there is one."""
    yield from map(terminal_table, setups(rows))
    if checked:
        yield validation_table(checked)


def validation_table(rows: Sequence[Validation]) -> Table:
    """Predicted beside measured on this machine."""
    table = Table(box=box.SIMPLE_HEAD, title="Predicted beside measured: s/image", title_justify="left", padding=0)
    for name in ("method", "images", "predicted", "measured", "error", "robust", "error", "of speedup"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=name != "method")
    for row in rows:
        seconds = (f"{row.predicted_s:.3g}", f"{row.measured_s:.3g}", f"{row.error:.1%}")
        robust = (f"{row.robust_s:.3g}", f"{row.robust_error:.1%}")
        ratio = "" if row.speedup_error is None else f"{row.speedup_error:.1%}"
        table.add_row(Text(row.label), str(row.images), *seconds, *robust, ratio)
    return table


def markdown_tables(rows: Sequence[Prediction]) -> str:
    """Every setup's table as Markdown."""
    right = [title not in WORDS for title in TITLES]
    return "\n".join(
        f"## {heading(group)}\n\n" + markdown(list(TITLES), [cells(row) for row in group], right)
        for group in setups(rows)
    )


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
    figure = Figure(figsize=(3.4 * min(len(groups), 3), 3.0 * -(-len(groups) // 3)), layout="constrained")
    FigureCanvasAgg(figure)
    for i, group in enumerate(groups):
        axes = figure.add_subplot(-(-len(groups) // 3), min(len(groups), 3), i + 1)
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.axhline(1.0, color="#9aa0a6", linewidth=1.1, linestyle=(0, (4, 2)))
        for j, label in enumerate(dict.fromkeys(row.label for row in group if row.method != BASE)):
            points = [row for row in group if row.label == label and row.fits]
            shade = colour(next(r.method for r in group if r.label == label))
            x, y = [row.batch for row in points], [row.speedup for row in points]
            axes.plot(x, y, color=shade, marker="os^vDPX"[j % 7], markersize=4, linewidth=1.1, label=label)
        axes.set_xscale("log", base=2)
        axes.set(xlim=(BATCHES[0] * 0.9, BATCHES[-1] * 1.1), xlabel="batch", ylabel="predicted speedup over ar")
        axes.set_title(f"{group[0].target}, {group[0].device}, {group[0].dtype}", fontsize=8.5, parse_math=False)
        axes.legend(frameon=False, fontsize=7)
    figure.suptitle(f"{TITLE} (roofline)", fontsize=8.5)
    return figure
