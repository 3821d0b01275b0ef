"""What the other pieces will decode: every preset built at every full size, on the device ``meta``,
where neither a weight nor a GPU is needed; and the operators of its step.
"""

from __future__ import annotations

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.decoding import CAPTIONS, is_foreign, lack, misfit, presets, simulated
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.model import COUNTED
from benchmarks.gpu.result import SAME, Result
from lanternbench.costs.operators import count_operators
from lanternbench.methods.method import method
from lanternbench.models.target import Target

BUILT = "built"


def measure(machine: Machine, result: Result) -> None:
    targets = {name: shapes.full_size(name, "meta") for name in shapes.FULL_SIZE}
    for target in targets.values():
        target.prefix([*CAPTIONS], target.sampling.guidance)  # text features need no package
    outcomes: dict[str, str] = {}
    for name in presets():
        row = {shape: built(target, name) for shape, target in targets.items()}
        result.row("presets at full size", method=name, **row)
        for shape, text in row.items():
            if text == BUILT:
                outcomes[f"{name} at {shape}"] = SAME
            elif not is_foreign(name) and lack(targets[shape], name) is None:
                outcomes[f"{name} at {shape}"] = text
    result.judge(bars.BUILT, outcomes, "pairs of preset and shape")
    count(result)


def built(target: Target, name: str) -> str:
    """Return ``BUILT``, or why the preset cannot be built."""
    reason = misfit(target, name)
    if reason is None:
        simulated(target, name)
    return reason or BUILT


def count(result: Result) -> None:
    """Count the operators of every preset, on the CPU."""
    target = shapes.full_size(shapes.XL, "meta")
    for name in presets():
        if misfit(target, name) is None:
            with result.attempt(name):
                operators = count_operators(method(name), target.options)
                result.row(COUNTED, method=name, **operators._asdict())
