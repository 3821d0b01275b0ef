"""Does a decode hold more than weights and caches?  Buffers of its steps and of recordings are the
rest.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result
from lanternbench.engine.decode import generate
from lanternbench.methods.build import build
from lanternbench.methods.method import method

CASES = (
    ("ar", 2),
    ("eagle-2", 1),
    ("ar", 1),
    ("lantern", 1),
    ("cool-sd", 1),
    ("ar", 16),
    ("cool-sd", 16),
)


def measure(machine: Machine, result: Result) -> None:
    target, worst = shapes.xl(machine), -1.0
    for name, size in CASES[:2] if machine.small else CASES:
        graphs = machine.graphs()
        decoder = build(replace(target, graphs=graphs), method(name))
        captions = [f"prompt {i}" for i in range(size)]
        peak = machine.peak_bytes(lambda d=decoder, c=captions: generate(d, c, max_steps=4))  # type: ignore[misc]
        caches = sum(c.store.numel() * c.store.element_size() for c in graphs.caches.values())
        held = shapes.weights(target) + caches
        worst = max(worst, peak / held - 1)
        row = {"weights": shapes.weights(target), "caches": caches, "peak": peak}
        megabytes = {f"{k}, MB": round(v / 1e6, 1) for k, v in row.items()}
        result.row(
            "recorded",
            method=name,
            batch=len(captions),
            **megabytes,
            more=f"{peak / held - 1:.1%}",
        )
        del decoder, graphs
        machine.free()
    result.bar(bars.MEMORY, f"at most {worst:.1%} more", None if machine.small else worst <= 0.15)
