"""What the files of benchmarks/results share: their folders, the line about the run and its clock,
and tables.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from lanternbench.experiment import iter_samples, read_run
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row, read_summary
from lanternbench.notes import headlines

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Output:
    """The folders that figures and plots are written to."""

    results: Path
    images: Path

    def preview(self, folder: Path) -> None:
        """Write to a copy of both folders from now on, so that the originals stay as they are."""
        for name in ("results", "images"):
            copy = folder / name
            shutil.copytree(getattr(self, name), copy, dirs_exist_ok=True)
            setattr(self, name, copy)


OUTPUT = Output(ROOT / "benchmarks/results", ROOT / "docs/images")


class Column(NamedTuple):
    """A figure of a run's rows; ``interval``: with its 95 % interval."""

    figure: str
    title: str
    digits: int = 2
    interval: bool = False


def setting(run: Path) -> str:
    """Return prompts, sampling, machine and load of a run, and whether its timing was noisy."""
    record, summary = read_run(run), read_summary(run)
    config, machine = record.config, record.environment
    text = (
        f"{summary.rows[0].n} {record.prompts.dataset} prompts, T = {config.temperature:g}, "
        f"batch {config.batch}, interleaved; {machine.cpu}, {machine.threads} thread(s) on {machine.cores} "
        f"cores, torch {machine.torch}"
    )
    loads = [sample.load for sample in iter_samples(run) if sample.load is not None]
    text += f", mean load {mean(loads):.1f}." if loads else "; not timed."
    notes = summary.all_notes()
    unfit = headlines(note for note in notes if note.kind == "unfit")
    if unfit:
        return f"{text} {unfit[0]} Steps, losses and quality do not depend on timing."
    if not loads:
        return text
    uneven = [n.text for n in notes if n.kind == "warning" and n.metric == "latency_s"]
    return " ".join([text, *uneven]) if uneven else f"{text} Timing was not noisy."


def cell(figure: Estimate, digits: int = 2, interval: bool = True) -> str:
    value, lo, hi, *_ = figure
    text = "–" if value is None else f"{value:.{digits}f}"
    return (
        f"{text} [{lo:.{digits}f}, {hi:.{digits}f}]"
        if interval and lo is not None and hi is not None
        else text
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table: the first column text, the others numbers."""
    head = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    return head + [f"| {' | '.join(row)} |" for row in rows]


def figure_table(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """A line per method."""
    cells = ([cell(row.figure(c.figure), c.digits, c.interval) for c in columns] for row in rows)
    titles = ["method", *(column.title for column in columns)]
    return table(titles, ([row.label, *line] for row, line in zip(rows, cells, strict=True)))


def write(name: str, lines: Iterable[str]) -> None:
    """Write the file NAME of the results, and print it."""
    text = "\n".join(lines).rstrip("\n") + "\n"
    (OUTPUT.results / name).write_text(text, encoding="utf-8")
    print(text)
