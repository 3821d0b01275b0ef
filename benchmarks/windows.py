"""Steps an image takes by window, for every method that drafts with the target itself.

    lanternbench sweep configs/windows.yaml
    python benchmarks/windows.py RUN

Writes benchmarks/results/windows.md and docs/images/windows.png.  Steps do not depend on the machine's speed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lanternbench import load_run
from lanternbench.measure.statistics import Estimate, bootstrap_mean
from lanternbench.methods.method import method

ROOT = Path(__file__).resolve().parents[1]
Counts = dict[str, dict[int, Estimate]]  # by method and window


class Counted(NamedTuple):
    steps: Counts
    baseline: float  # of ar
    prompts: int


def counted(folder: Path) -> Counted:
    run = load_run(folder)
    taken = {label: rows.steps.to_numpy(float) for label, rows in run.samples.groupby("label")}
    steps: Counts = {}
    for spec in run.run.info["methods"]:
        options = dict(spec["options"])
        window = options.pop("window", method(spec["method"]).read.get("window"))
        if window is not None:
            name = " ".join([spec["method"], *map(str, options.values())])
            steps.setdefault(name, {})[int(window)] = bootstrap_mean(taken[spec["label"]])
    return Counted(steps, float(taken["ar"].mean()), len(taken["ar"]))


def table(found: Counted) -> str:
    windows = sorted({w for by_window in found.steps.values() for w in by_window})
    lines = [
        "# Steps an image takes, by window",
        "",
        f"Embedded model, {found.prompts} demo prompts, T = 1; `ar` takes {found.baseline:.0f}. Means with 95 %",
        "intervals over prompts. `lanternbench sweep configs/windows.yaml`, then `python benchmarks/windows.py RUN`.",
        "",
        f"| method | {' | '.join(f'window {w}' for w in windows)} |",
        f"|---|{'---:|' * len(windows)}",
    ]
    for name, by_window in found.steps.items():
        cells = (f"{e.value:.1f} [{e.lo:.1f}, {e.hi:.1f}]" for e in (by_window[w] for w in windows))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(found: Counted) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for (name, by_window), marker in zip(found.steps.items(), "os^vDP*X", strict=False):
        windows = sorted(by_window)
        value, lo, hi = (np.array([by_window[w][part] for w in windows], float) for part in range(3))
        axes.errorbar(windows, value, [value - lo, hi - value], marker=marker, label=name, capsize=2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(windows, map(str, windows))
    axes.set_xlabel("window: drafted positions per step")
    axes.set_ylabel(f"steps an image (ar: {found.baseline:.0f})")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(ROOT / "docs/images/windows.png", dpi=130)


if __name__ == "__main__":
    result = counted(Path(sys.argv[1]))
    (ROOT / "benchmarks/results/windows.md").write_text(table(result), encoding="utf-8")
    plot(result)
