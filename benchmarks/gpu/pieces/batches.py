"""Images a second against batch: what a GPU has left over while it decodes one prompt."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.bars import TAU
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result
from lanternbench.engine.decode import generate
from lanternbench.methods.build import build
from lanternbench.methods.method import method

SIZES = (1, 4, 16, 64)


def measure(machine: Machine, result: Result) -> None:
    target = shapes.xl(machine)
    sizes = SIZES[:2] if machine.small else SIZES
    for name in ("ar", "cool-sd"):
        rates = []
        for size in sizes:
            tau = None if name == "ar" else TAU
            decoder = build(
                replace(target, graphs=machine.graphs()), method(name), simulate_acceptance=tau
            )
            captions = [f"prompt {i}" for i in range(size)]
            generate(decoder, captions, max_steps=3)
            made = generate(decoder, captions, max_steps=4 if machine.small else None)[0]
            rates.append(size / made.decode_s)
            row = {
                "images a second": round(rates[-1], 2),
                "of batch 1": f"{rates[-1] / rates[0]:.1f}×",
            }
            result.row("decoding alone, CFG, bfloat16", method=name, batch=size, **row)
            del decoder
            machine.free()
        if name == "ar":
            result.bar(bars.BATCH_64, f"{rates[-1] / rates[0]:.1f}×", rates[-1] >= 20 * rates[0])
