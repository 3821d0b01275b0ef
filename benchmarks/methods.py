"""Every method on the embedded model in one table per temperature, and fidelity against accepted length.

    lanternbench sweep configs/methods.yaml                     # T = 1, timed
    lanternbench sweep configs/methods.yaml --temperature 0
    lanternbench sweep configs/methods.yaml -n 128 --batch 16   # more prompts, for what does not depend on the clock
    lanternbench sweep configs/methods.yaml -n 64 --batch 16 --temperature 0
    lanternbench sweep configs/fidelity.yaml
    lanternbench sweep configs/annealing.yaml
    lanternbench sweep configs/drafters.yaml
    python benchmarks/methods.py RUN…

Writes benchmarks/results/methods.md, a section per run, and docs/images/fidelity.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lanternbench.experiment import read_run
from lanternbench.measure.summaries import Row, read_summary

ROOT = Path(__file__).resolve().parents[1]
RESULT, PICTURE = ROOT / "benchmarks/results/methods.md", ROOT / "docs/images/fidelity.png"
COLUMNS = {
    "speedup": "speedup [95 %]",
    "accept_len": "τ",
    "tree_depth": "d̄",
    "step_compression": "step compr.",
    "first_token_acceptance": "1st accepted",
    "fidelity_loss": "fidelity loss",
    "clip-tiny": "CLIP-tiny",
    "fid-tiny": "FID-tiny",
}
POINTS = {"annealing": "Cool-SD's annealing rate ν", "drafters": "Drafters and block verification"}
INTERVALS = ("accept_len", "fidelity_loss", "clip-tiny")
UNTIMED = {k: v for k, v in COLUMNS.items() if k != "speedup"}
DIGITS = {"fidelity_loss": 4, "clip-tiny": 3, "fid-tiny": 1}


def table(run: Path, columns: dict[str, str]) -> list[str]:
    """A Markdown table of a run's rows."""
    lines = [f"| method | {' | '.join(columns.values())} |", f"|---|{'---:|' * len(columns)}"]
    for row in read_summary(run).rows:
        cells = []
        for key in columns:
            (value, lo, hi, *_), digits = row.figure(key), DIGITS.get(key, 2)
            cell = "–" if value is None else f"{value:.{digits}f}"
            if lo is not None and (key == "speedup" or ("speedup" not in columns and key in INTERVALS)):
                cell += f" [{lo:.{digits}f}, {hi:.{digits}f}]"
            cells.append(cell)
        lines.append(f"| {row.label} | {' | '.join(cells)} |")
    return lines


def about(run: Path) -> str:
    record = read_run(run)
    config, machine = record["config"], record["environment"]
    return (
        f"{read_summary(run).rows[0].n} demo prompts, T = {config['temperature']:g}, batch {config['batch']}, "
        f"interleaved; {machine['cpu']}, {machine['threads']} thread(s), torch {machine['torch']}."
    )


def spread(points: list[Row], key: str) -> tuple[np.ndarray, np.ndarray]:
    """The values [n], and the distances from each down and up to the ends of its interval [2, n]."""
    value, lo, hi = np.array([row.figure(key)[:3] for row in points], float).T
    return value, np.stack([value - lo, hi - value])


def points(rows: list[Row]) -> list[str]:
    """τ and fidelity loss as a table, with their intervals."""
    lines = ["| method | τ | fidelity loss |", "|---|---:|---:|"]
    for row in rows:
        if row.method != "ar":
            (tau, lo, hi, *_), (loss, low, high, *_) = row.figure("accept_len"), row.figure("fidelity_loss")
            lines.append(f"| {row.label} | {tau:.2f} [{lo:.2f}, {hi:.2f}] | {loss:.4f} [{low:.4f}, {high:.4f}] |")
    return lines


def curves(run: Path, path: Path) -> list[str]:
    """Fidelity loss against τ, a line per method along its own knob; returns the points as a table."""
    found: dict[str, list[Row]] = {}
    for row in read_summary(run).rows:
        if row.value("fidelity_loss"):
            found.setdefault(row.method, []).append(row)
    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    for method, line in found.items():
        line.sort(key=lambda r: r.value("accept_len") or 0.0)
        (x, xerr), (y, yerr) = (spread(line, key) for key in ("accept_len", "fidelity_loss"))
        axes.errorbar(x, y, yerr, xerr, marker="o", markersize=4, linewidth=1, capsize=2, label=method)
    axes.set_xlabel("τ, tokens per step")
    axes.set_ylabel("fidelity loss per token")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    return points([row for line in found.values() for row in line])


def section(run: Path) -> tuple[str, list[str]]:
    """The title and text of what a run shows."""
    config = read_run(run)["config"]
    temperature = f"T = {config['temperature']:g}"
    if config["batch"] == 1:
        return temperature, [about(run), "", *table(run, COLUMNS)]
    name = run.resolve().name.split("-")[0]
    if name in ("methods", "study"):
        return f"{temperature}, by batches", [about(run), "", *table(run, UNTIMED)]
    if name in POINTS:
        return POINTS[name], [about(run), "", *points(read_summary(run).rows)]
    picture = ["![Fidelity loss against τ](../../docs/images/fidelity.png)", ""]
    return "Fidelity loss at equal acceptance length", [about(run), "", *picture, *curves(run, PICTURE)]


def main(runs: list[Path]) -> None:
    """Sections that no run is given for stay as they are."""
    head, *parts = RESULT.read_text().split("\n## ")
    sections = {title: text.strip().splitlines() for title, _, text in (part.partition("\n") for part in parts)}
    sections |= dict(map(section, runs))
    lines = [head.strip(), ""]
    for title, text in sorted(sections.items(), key=lambda part: not part[0].startswith("T =")):
        lines += [f"## {title}", "", *text, ""]
    RESULT.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
