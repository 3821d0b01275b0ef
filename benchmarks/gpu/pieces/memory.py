"""Whether a decode holds more than ``predict`` says: weights, caches, distributions of its steps,
and the pools of its recordings.
"""

from __future__ import annotations

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.decoding import decode, decoder_of
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result
from lanternbench.costs.roofline import HELD
from lanternbench.engine.opening import shared_cache_bytes
from lanternbench.models.target import Target

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
    target = shapes.target_of(machine, shapes.XL)
    worst: dict[str, float] = {}
    for name, size in CASES[:2] if machine.small else CASES:
        case = f"{name}, batch {size}"
        with result.attempt(case):
            worst[case] = measure_case(machine, result, target, name, size)
        machine.free()
    if not worst:
        return
    case = max(worst, key=lambda case: worst[case])
    result.bar(bars.MEMORY, f"at most {worst[case]:.0%} of it ({case})", worst[case] <= 1)


def measure_case(machine: Machine, result: Result, target: Target, name: str, size: int) -> float:
    """Note the memory of one decode; return its share of what is promised."""
    decoder = decoder_of(target, name, machine.graphs())
    captions = [f"prompt {i}" for i in range(size)]
    target.prepare(captions)  # a text encoder is no part of a decode
    peak = machine.peak_bytes(lambda: decode(decoder, captions, steps=4))
    weights = shapes.held_bytes(target)
    caches = shared_cache_bytes(decoder.target)
    distributions = HELD * 4 * size * decoder.strategy.size.nodes * target.vocab
    promised = weights + bars.MEMORY_SLACK * (caches + distributions)
    result.row(
        "recorded, in MB",
        method=name,
        batch=size,
        weights=round(weights / 1e6, 1),
        caches=round(caches / 1e6, 1),
        distributions=round(distributions / 1e6, 1),
        reserved=round(peak / 1e6, 1),
        of_promised=f"{peak / promised:.1%}",
    )
    return peak / promised
