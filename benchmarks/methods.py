"""Every method on the embedded model in one table per temperature, and fidelity against accepted length.

    lanternbench sweep configs/methods.yaml                     # T = 1
    lanternbench sweep configs/methods.yaml --temperature 0
    lanternbench sweep configs/fidelity.yaml
    python benchmarks/methods.py RUN_T1 RUN_T0 RUN_FIDELITY

Writes benchmarks/results/methods.md and docs/images/fidelity.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from lanternbench.analysis.summaries import Row, read_summary
from lanternbench.experiment import read_run

ROOT = Path(__file__).resolve().parents[1]
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
DIGITS = {"fidelity_loss": 4, "clip-tiny": 3, "fid-tiny": 1}


def table(run: Path) -> list[str]:
    """A Markdown table of a run's rows."""
    lines = [f"| method | {' | '.join(COLUMNS.values())} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for row in read_summary(run).rows:
        cells = []
        for key in COLUMNS:
            (value, lo, hi, *_), digits = row.figure(key), DIGITS.get(key, 2)
            cell = "–" if value is None else f"{value:.{digits}f}"
            if key == "speedup" and lo is not None:
                cell += f" [{lo:.2f}, {hi:.2f}]"
            cells.append(cell)
        lines.append(f"| {row.label} | {' | '.join(cells)} |")
    return lines


def about(run: Path) -> str:
    record = read_run(run)
    config, machine = record["config"], record["environment"]
    return (
        f"{config['num_prompts']} demo prompts, T = {config['temperature']:g}, batch {config['batch']}, interleaved; "
        f"{machine['cpu']}, {machine['threads']} thread(s), torch {machine['torch']}."
    )


def spread(points: list[Row], key: str) -> list[list[float]]:
    """Distances from each value down and up to the ends of its interval."""
    found = [row.figure(key) for row in points]
    return [[f.value - f.lo for f in found], [f.hi - f.value for f in found]]


def curves(run: Path, path: Path) -> list[str]:
    """Fidelity loss against τ, a line per method along its own knob; returns the points as a table."""
    found: dict[str, list[Row]] = {}
    for row in read_summary(run).rows:
        if row.value("fidelity_loss"):
            found.setdefault(row.method, []).append(row)
    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    lines = ["| method | τ | fidelity loss |", "|---|---:|---:|"]
    for method, points in found.items():
        points.sort(key=lambda r: r.value("accept_len"))
        x, y = ([r.value(key) for r in points] for key in ("accept_len", "fidelity_loss"))
        bars = dict(xerr=spread(points, "accept_len"), yerr=spread(points, "fidelity_loss"))
        axes.errorbar(x, y, **bars, marker="o", markersize=4, linewidth=1, capsize=2, label=method)
        lines += [f"| {r.label} | {r.value('accept_len'):.2f} | {r.value('fidelity_loss'):.4f} |" for r in points]
    axes.set_xlabel("τ, tokens per step")
    axes.set_ylabel("fidelity loss per token")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    return lines


def main(warm: Path, greedy: Path, knobs: Path) -> None:
    lines = ["# Every method on the embedded model", ""]
    for title, run in (("T = 1", warm), ("T = 0", greedy)):
        lines += [f"## {title}", "", about(run), "", *table(run), ""]
    lines += ["## Fidelity loss at equal acceptance length", "", about(knobs), ""]
    lines += ["![Fidelity loss against τ](../../docs/images/fidelity.png)", ""]
    lines += curves(knobs, ROOT / "docs/images/fidelity.png")
    (ROOT / "benchmarks/results/methods.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
