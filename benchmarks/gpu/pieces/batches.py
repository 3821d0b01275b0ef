"""Images a second against batch: what a GPU has left over while it decodes one prompt."""

from __future__ import annotations

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.decoding import BASE, decode, simulated
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.model import StepModel, counted_in
from benchmarks.gpu.result import Result
from lanternbench.models.target import Target

SIZES = (1, 4, 16, 64)


def measure(machine: Machine, result: Result) -> None:
    target = shapes.target_of(machine, shapes.XL)
    model = StepModel(target, machine.rates(), counted_in(result.folder))
    sizes = SIZES[:2] if machine.small else SIZES
    for name in (BASE, "cool-sd"):
        gains: dict[int, float] = {}
        first = 0.0
        for size in sizes:
            rate = images_a_second(machine, target, name, size)
            first = first or rate
            gains[size] = rate / first
            modelled = size * model.step(name).ms / model.step(name, size).ms
            result.row(
                "decoding alone, CFG, bfloat16",
                method=name,
                batch=size,
                images_a_second=round(rate, 2),
                of_batch_1=f"{gains[size]:.1f}×",
                model=f"{modelled:.1f}×",
            )
            machine.free()
        if name == BASE:
            value = f"{gains[size]:.1f}× for {modelled:.1f}×"
            result.bar(bars.BATCH_64, value, gains[size] >= modelled / bars.SLACK)


def images_a_second(machine: Machine, target: Target, name: str, size: int) -> float:
    decoder = simulated(target, name, machine.graphs())
    captions = [f"prompt {i}" for i in range(size)]
    decode(decoder, captions, steps=3)
    image = decode(decoder, captions, steps=4 if machine.small else None)[0]
    return size / image.decode_s
