"""What this machine is, and the rates that explain the rest: memory, products, launches."""

from __future__ import annotations

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result


def measure(machine: Machine, result: Result) -> None:
    for key, value in machine.facts().items():
        result.row("facts", fact=key, value=str(value))
    rates = machine.rates(0.0 if machine.small else 3.0)
    result.row("rates", what="memory reads, GB/s", value=round(rates.bandwidth))
    result.row(
        "rates", what="bfloat16 products, TFLOP/s", value=round(rates.tflops["bfloat16"], 1)
    )
    result.row("rates", what="a small launch, µs", value=round(rates.issue, 2))
    result.row("rates", what="the same in a CUDA graph, µs", value=round(rates.gap, 2))
