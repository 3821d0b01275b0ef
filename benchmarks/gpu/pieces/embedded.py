"""The product as a user runs it: every preset on the bundled model, interleaved, with intervals
and metrics.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.gpu.decoding import fitting, presets
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Cell, Result
from lanternbench.experiment import config
from lanternbench.experiment import runner as sweeps
from lanternbench.models.catalogue import load_target

FIGURES = {
    "accept_len": "τ",
    "fidelity_loss": "fidelity loss",
    "clip-tiny": "CLIP-tiny",
    "fid-tiny": "FID-tiny",
}
BUDGET_S = 60.0
PROMPTS = 32


def measure(machine: Machine, result: Result) -> None:
    names = fitting(load_target("tiny"), presets(), result)
    config.sweep({"methods": names, "num_prompts": PROMPTS})
    if machine.small:  # all are checked, one is decoded
        names = ["cool-sd"]
    sweep = config.sweep({"methods": names, "num_prompts": 1 if machine.small else PROMPTS})
    watch = sweeps.Callbacks(budget_s=BUDGET_S)
    device = "cpu" if machine.small else machine.device
    with tempfile.TemporaryDirectory() as folder:
        _, summary = sweeps.run(sweep, Path(folder), device=device, watch=watch)
    for row in summary.rows:
        speedup = row.figure("speedup")
        text = "–" if speedup.value is None else f"{speedup.value:.2f}×"
        if speedup.lo is not None and speedup.hi is not None:
            text += f" [{speedup.lo:.2f}, {speedup.hi:.2f}]"
        cells = {title: _rounded(row.value(key)) for key, title in FIGURES.items()}
        result.row("T = 1, batch 1", method=row.label, images=row.n, speedup=text, **cells)


def _rounded(value: float | None) -> Cell:
    return "–" if value is None else round(value, 3)
