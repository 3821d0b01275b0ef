"""What a step of every preset costs, recorded and launched, with acceptance drawn: random weights
accept nothing.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.bars import TAU
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.pieces.baseline import image
from benchmarks.gpu.pieces.equal import presets
from benchmarks.gpu.result import Result
from lanternbench.engine.decode import Generation
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.target import Target


def outside(made: Generation) -> float:
    """The share of a decode that is in no forward."""
    return 1 - (made.phases.get("draft", 0.0) + made.phases["verify"]) / made.decode_s


@torch.inference_mode()
def step_table(
    machine: Machine, result: Result, target: Target, names: list[str], steps: tuple[int, int]
) -> dict[str, tuple[float, float]]:
    """Milliseconds and outside-forward share of a recorded step by preset, ``ar`` first; fills the
    table.

    ``steps``: how many are timed recorded, and launched.
    """
    found: dict[str, tuple[float, float]] = {}
    for name in names:
        tau = None if name == "ar" else TAU
        recorded, launched = (
            image(
                build(replace(target, graphs=graphs), method(name), simulate_acceptance=tau), count
            )
            for graphs, count in zip((machine.graphs(), None), steps, strict=True)
        )
        ms, eager = (1e3 * made.decode_s / made.steps for made in (recorded, launched))
        found[name] = ms, outside(recorded)
        phases = {
            p: round(1e3 * recorded.phases.get(p, 0.0) / recorded.steps, 3)
            for p in ("draft", "verify", "commit")
        }
        result.row(
            "a step in ms, recorded; acceptance drawn to τ = 2.7",
            method=name,
            nodes=max(recorded.tree_nodes),
            step=round(ms, 3),
            **phases,
            outside_forwards=f"{outside(recorded):.1%}",
            launched=round(eager, 3),
            speedup=f"{1.0 if name == 'ar' else TAU * found['ar'][0] / ms:.2f}×",
        )
        machine.free()
    return found


def measure(machine: Machine, result: Result) -> None:
    target = shapes.xl(machine)
    found = step_table(
        machine, result, target, presets(machine), (4, 2) if machine.small else (64, 12)
    )
    speedup = TAU * found["ar"][0] / found["cool-sd"][0]
    result.bar(bars.COOL_SD, f"{speedup:.2f}×", speedup >= 2.2)
    worst = max(found, key=lambda name: found[name][1])
    result.bar(bars.OUTSIDE, f"{found[worst][1]:.1%} ({worst})", found[worst][1] <= 0.05)
