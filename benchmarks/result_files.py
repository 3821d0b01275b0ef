"""What the files of benchmarks/results share: their folders, the line about the run and its clock,
and tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from lanternbench.experiment import iter_samples, read_run
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row, read_summary
from lanternbench.notes import headlines

ROOT = Path(__file__).resolve().parents[1]
RESULTS, IMAGES = ROOT / "benchmarks/results", ROOT / "docs/images"


class Column(NamedTuple):
    """A figure of a run's rows; ``interval``: with its 95 % interval."""

    figure: str
    title: str
    digits: int = 2
    interval: bool = False


def setting(run: Path) -> str:
    """Prompts, sampling, machine and load of a run, and whether its clock was undisturbed."""
    record, summary = read_run(run), read_summary(run)
    config, machine = record.config, record.environment
    text = (
        f"{summary.rows[0].n} {record.prompts.dataset} prompts, T = {config.temperature:g}, "
        f"batch {config.batch}, interleaved; {machine.cpu}, {machine.threads} thread(s) on {machine.cores} "
        f"cores, torch {machine.torch}"
    )
    loads = [sample.load for sample in iter_samples(run) if sample.load is not None]
    text += f", mean load {mean(loads):.1f}." if loads else "; not timed."
    unfit = headlines(note for note in summary.all_notes() if note.kind == "unfit")
    if unfit:
        return f"{text} {unfit[0]} Steps, losses and quality do not depend on the clock."
    return f"{text} The clock was undisturbed." if loads else text


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
    """benchmarks/results/NAME, also on the terminal."""
    text = "\n".join(lines).rstrip("\n") + "\n"
    (RESULTS / name).write_text(text, encoding="utf-8")
    print(text)
