"""The same at the shapes of other families: whether what holds at 775 M holds at 1 and 7 billion."""

from __future__ import annotations

from benchmarks.gpu import shapes
from benchmarks.gpu.decoding import BASE, EAGLE_ALONE
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.pieces.steps import step_table
from benchmarks.gpu.result import Result


def anole(machine: Machine, result: Result) -> None:
    _measure(machine, result, shapes.ANOLE)


def janus(machine: Machine, result: Result) -> None:
    _measure(machine, result, shapes.JANUS)


def _measure(machine: Machine, result: Result, name: str) -> None:
    target = shapes.target_of(machine, name)
    steps = (3, 2) if machine.small else (32, 6)
    base = step_table(machine, result, target, EAGLE_ALONE, steps).get(BASE)
    if base is not None and base.modelled is not None:
        modelled = base.modelled
        result.note(
            f"`ar` takes {base.ms / modelled.ms:.2f} times its model: {modelled.gigabytes:.2f} GB and "
            f"{modelled.kernels:.0f} kernels, {modelled.ms:.2f} ms."
        )
