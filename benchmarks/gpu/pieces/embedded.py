"""The product as a user runs it: every preset on the embedded model, interleaved, with intervals
and metrics.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.pieces.equal import presets
from benchmarks.gpu.result import Result
from lanternbench.experiment import config
from lanternbench.experiment import runner as sweeps

FIGURES = {
    "accept_len": "τ",
    "fidelity_loss": "fidelity loss",
    "clip-tiny": "CLIP-tiny",
    "fid-tiny": "FID-tiny",
}
BUDGET_S, PROMPTS = 60.0, 32


def measure(machine: Machine, result: Result) -> None:
    names = ["cool-sd"] if machine.small else presets(machine)
    asked = config.sweep({"methods": names, "num_prompts": 1 if machine.small else PROMPTS})
    with tempfile.TemporaryDirectory() as folder:
        watch = sweeps.Callbacks(budget_s=BUDGET_S)
        device = "cpu" if machine.small else machine.device
        _, summary = sweeps.run(asked, Path(folder), device=device, watch=watch)
    for row in summary.rows:
        fast = row.figure("speedup")
        cells = {title: _round(row.value(key)) for key, title in FIGURES.items()}
        speedup = "–" if fast.value is None else f"{fast.value:.2f}×"
        if fast.lo is not None and fast.hi is not None:
            speedup += f" [{fast.lo:.2f}, {fast.hi:.2f}]"
        result.row("T = 1, batch 1", method=row.label, images=row.n, speedup=speedup, **cells)


def _round(value: float | None) -> float | str:
    return "–" if value is None else round(value, 3)
