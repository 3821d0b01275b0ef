"""Every method on the embedded model in one table per temperature, and fidelity against accepted
length.

``python -m benchmarks.study`` runs it on the sweeps of configs/methods.yaml, fidelity.yaml,
annealing.yaml and drafters.yaml.  Writes benchmarks/results/methods.md, a section per run, and
docs/images/fidelity.png.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.result_files import OUTPUT, Column, figure_table, setting, write
from lanternbench.experiment import read_run
from lanternbench.measure.summary import Row, read_summary

NAME = "methods.md"
TIMED = (
    Column("speedup", "speedup [95 %]", 2, True),
    Column("accept_len", "τ"),
    Column("tree_depth", "d̄"),
    Column("step_compression", "step compr."),
    Column("first_token_acceptance", "1st accepted"),
    Column("fidelity_loss", "fidelity loss", 4),
    Column("clip-tiny", "CLIP-tiny", 3),
    Column("fid-tiny", "FID-tiny", 1),
)
POINTS = (Column("accept_len", "τ", 2, True), Column("fidelity_loss", "fidelity loss", 4, True))
UNTIMED = [
    c._replace(interval=c.figure in ("accept_len", "fidelity_loss", "clip-tiny"))
    for c in TIMED[1:]
]
TITLES = {
    "annealing": "Cool-SD's annealing rate ν",
    "drafters": "Drafters and block verification",
    "fidelity": "Fidelity loss at equal acceptance length",
}


def spread(points: list[Row], figure: str) -> tuple[np.ndarray, np.ndarray]:
    """The values [n], and the distances from each down and up to the ends of its interval [2, n]."""
    value, lo, hi = np.array([row.figure(figure)[:3] for row in points], float).T
    return value, np.stack([value - lo, hi - value])


def by_method(rows: list[Row]) -> dict[str, list[Row]]:
    """The relaxed rows of each method, by accepted length."""
    lines: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.value("accept_len") or 0.0):
        if row.value("fidelity_loss"):
            lines.setdefault(row.method, []).append(row)
    return lines


def plot(lines: dict[str, list[Row]]) -> None:
    """Fidelity loss against τ, a line per method along its own knob."""
    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    for method, rows in lines.items():
        (x, xerr), (y, yerr) = (spread(rows, name) for name in ("accept_len", "fidelity_loss"))
        axes.errorbar(
            x, y, yerr, xerr, marker="o", markersize=4, linewidth=1, capsize=2, label=method
        )
    axes.set_xlabel("τ, tokens per step")
    axes.set_ylabel("fidelity loss per token")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(OUTPUT.images / "fidelity.png", dpi=120)


def section(sweep: str, run: Path) -> tuple[str, list[str]]:
    """The title and text of what a run of a sweep shows."""
    config, rows = read_run(run).config, read_summary(run).rows
    temperature = f"T = {config.temperature:g}"
    if sweep == "methods" and config.batch == 1:
        return temperature, [setting(run), "", *figure_table(rows, TIMED)]
    if sweep == "methods":
        return f"{temperature}, by batches", [setting(run), "", *figure_table(rows, UNTIMED)]
    if sweep != "fidelity":
        points = [row for row in rows if row.method != "ar"]
        return TITLES[sweep], [setting(run), "", *figure_table(points, POINTS)]
    lines = by_method(rows)
    plot(lines)
    picture = ["![Fidelity loss against τ](../../docs/images/fidelity.png)", ""]
    points = [row for line in lines.values() for row in line]
    return TITLES[sweep], [setting(run), "", *picture, *figure_table(points, POINTS)]


def report(runs: list[tuple[str, Path]]) -> None:
    """A section per (sweep, run); those that no run is given for stay as they are."""
    head, *parts = (OUTPUT.results / NAME).read_text(encoding="utf-8").split("\n## ")
    sections = {
        title: text.strip().splitlines()
        for title, _, text in (part.partition("\n") for part in parts)
    }
    sections |= dict(section(*run) for run in runs)
    lines = [head.strip(), ""]
    for title, text in sorted(sections.items(), key=lambda part: not part[0].startswith("T =")):
        lines += [f"## {title}", "", *text, ""]
    write(NAME, lines)
