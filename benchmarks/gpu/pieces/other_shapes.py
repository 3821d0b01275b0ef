"""The same at the shapes of other families: is what holds at 775 M true at 1 and 7 billion?"""

from __future__ import annotations

from benchmarks.gpu import shapes
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.pieces.baseline import limit_s
from benchmarks.gpu.pieces.steps import step_table
from benchmarks.gpu.result import Result

METHODS = ["ar", "eagle-1", "eagle-2", "sjd", "adt-tree", "cool-sd"]


def anole(machine: Machine, result: Result) -> None:
    _measure(machine, result, "anole-7b")


def janus(machine: Machine, result: Result) -> None:
    _measure(machine, result, "janus-pro-1b")


def _measure(machine: Machine, result: Result, name: str) -> None:
    target = shapes.published(machine, name)
    least = 1e3 * limit_s(target, machine.read_rate())
    names = ["ar", "cool-sd"] if machine.small else METHODS
    found = step_table(machine, result, target, names, (3, 2) if machine.small else (32, 6))
    result.note(
        f"`ar` runs at {least / found['ar'][0]:.0%} of the bandwidth limit of {least:.2f} ms a token."
    )
