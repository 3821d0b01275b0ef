"""Steps an image takes by window, for every method that drafts with the target itself, from a run
of configs/windows.yaml.

``python -m benchmarks.study`` runs it.  Writes benchmarks/results/windows.md and
docs/images/windows.png.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.result_files import OUTPUT, cell, setting, table, write
from lanternbench import load_run
from lanternbench.measure.statistics import Estimate, bootstrap_mean
from lanternbench.methods.method import method

Counts = dict[str, dict[int, Estimate]]  # steps by method and window


def counted(run: Path) -> tuple[Counts, float]:
    """Mean steps by method and window, and those of ``ar``."""
    frames = load_run(run)
    taken = {label: rows.steps.to_numpy(float) for label, rows in frames.samples.groupby("label")}
    steps: Counts = {}
    for spec in frames.record.methods:
        options = dict(spec.options)
        window = options.pop("window", method(spec.method).read.get("window"))
        if window is not None:
            name = " ".join([spec.method, *map(str, options.values())])
            steps.setdefault(name, {})[int(window)] = bootstrap_mean(taken[spec.label])
    return steps, float(taken["ar"].mean())


def plot(steps: Counts, windows: list[int], baseline: float) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for (name, by_window), marker in zip(steps.items(), "os^vDP*X", strict=False):
        value, lo, hi = (
            np.array([by_window[w][part] for w in windows], float) for part in range(3)
        )
        axes.errorbar(
            windows, value, [value - lo, hi - value], marker=marker, label=name, capsize=2
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(windows, map(str, windows))
    axes.set_xlabel("window: drafted positions per step")
    axes.set_ylabel(f"steps an image (ar: {baseline:.0f})")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(OUTPUT.images / "windows.png", dpi=130)


def report(run: Path) -> None:
    steps, baseline = counted(run)
    windows = sorted({w for by_window in steps.values() for w in by_window})
    about = f"`ar` takes {baseline:.0f} steps. Means with 95 % intervals over prompts, which no clock changes."
    rows = [[name, *(cell(by_window[w], 1) for w in windows)] for name, by_window in steps.items()]
    lines = table(["method", *(f"window {w}" for w in windows)], rows)
    write("windows.md", ["# Steps an image takes, by window", "", setting(run), about, "", *lines])
    plot(steps, windows, baseline)
