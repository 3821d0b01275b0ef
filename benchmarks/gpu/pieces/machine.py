"""What this machine is, and the three rates that explain the rest: memory, arithmetic, launches."""

from __future__ import annotations

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result

LAUNCHES = 1000


def measure(machine: Machine, result: Result) -> None:
    for key, value in machine.facts().items():
        result.row("facts", fact=key, value=value)
    result.row("rates", what="memory reads, GB/s", value=round(machine.read_rate()))
    side = 64 if machine.small else 8192
    a = torch.randn(side, side, device=machine.device, dtype=torch.bfloat16)
    rate = 2 * side**3 / machine.seconds(lambda: a @ a) / 1e12
    result.row("rates", what=f"bfloat16 product of {side} × {side}, TFLOP/s", value=round(rate, 1))
    x = torch.zeros(8, device=machine.device)

    def launch() -> None:
        for _ in range(LAUNCHES):
            x.add_(1.0)

    result.row(
        "rates",
        what="a small launch, µs",
        value=round(1e6 * machine.seconds(launch, 3) / LAUNCHES, 2),
    )
    replay = machine.record(lambda: [x + 1.0 for _ in range(LAUNCHES)], [])
    result.row(
        "rates",
        what="the same in a CUDA graph, µs",
        value=round(1e6 * machine.seconds(replay, 3) / LAUNCHES, 2),
    )
