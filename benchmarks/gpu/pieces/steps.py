"""What a step of every preset costs, recorded and launched, with acceptance drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.bars import TAU
from benchmarks.gpu.decoding import BASE, drawn, fitting, presets, simulated, timed, use
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.model import Step, StepModel, counted_in
from benchmarks.gpu.result import Result, Row
from lanternbench.engine.decode import Generation
from lanternbench.models.target import Target

TABLE = f"a step in ms, recorded; acceptance drawn to τ = {TAU}"


class Timed(NamedTuple):
    """A recorded step, in ms; ``modelled``: None for a preset that the model does not know."""

    ms: float
    outside_ms: float  # neither forward pass
    tokens: float  # that it commits
    modelled: Step | None

    def gain(self, base: Timed) -> float:
        return base.ms * self.tokens / self.ms


@torch.inference_mode()
def step_table(
    machine: Machine, result: Result, target: Target, names: Sequence[str], steps: tuple[int, int]
) -> dict[str, Timed]:
    """Fill the table, ``ar`` first, and return recorded steps by preset.

    ``steps``: how many are timed recorded, and launched.
    """
    model = StepModel(target, machine.rates(), counted_in(result.folder))
    found: dict[str, Timed] = {}
    for name in fitting(target, names, result):
        with result.attempt(name):
            recorded = timed(simulated(target, name, use(machine, "recorded")), steps[0])
            launched = timed(simulated(target, name), steps[1])
            found[name] = step_of(name, recorded, model.step(name) if model.has(name) else None)
            row = cells(found[name], recorded, launched)
            if BASE in found:
                row["speedup"] = f"{found[name].gain(found[BASE]):.2f}×"
            result.row(TABLE, method=name, **row)
        machine.free()
    return found


def step_of(name: str, image: Generation, modelled: Step | None) -> Timed:
    ms = 1e3 * image.decode_s / image.steps
    forwards = image.phases.get("draft", 0.0) + image.phases["verify"]
    outside = ms - 1e3 * forwards / image.steps
    tokens = 1.0 if name == BASE else TAU
    if modelled is None:  # several rows at once: acceptance is not drawn
        tokens = (drawn(image) - 1) / image.steps
    return Timed(ms, outside, tokens, modelled)


def cells(step: Timed, recorded: Generation, launched: Generation) -> Row:
    """Return a row of the table."""
    row: Row = {"nodes": max(recorded.tree_nodes), "step": round(step.ms, 3)}
    if step.modelled is not None:
        row["model"] = round(step.modelled.ms, 3)
    for phase in ("draft", "verify", "commit"):
        row[phase] = round(1e3 * recorded.phases.get(phase, 0.0) / recorded.steps, 3)
    row["outside forwards"] = f"{step.outside_ms / step.ms:.1%}"
    row["launched"] = round(1e3 * launched.decode_s / launched.steps, 3)
    return row


def measure(machine: Machine, result: Result) -> None:
    target = shapes.target_of(machine, shapes.XL)
    steps = (4, 2) if machine.small else (64, 12)
    found = step_table(machine, result, target, presets(), steps)
    judge_speedup(result, found)
    judge_outside(result, found)


def judge_speedup(result: Result, found: dict[str, Timed]) -> None:
    base = found.get(BASE)
    step = found.get("cool-sd")
    if base is None or step is None or base.modelled is None or step.modelled is None:
        return
    measured = step.gain(base)
    modelled = step.modelled.gain(base.modelled)
    value = f"{measured:.2f}× for {modelled:.2f}×"
    result.bar(bars.COOL_SD, value, measured >= modelled / bars.SLACK)


def judge_outside(result: Result, found: dict[str, Timed]) -> None:
    """Judge the preset whose time outside forward passes exceeds its model most."""
    ratios = {
        name: step.outside_ms / step.modelled.outside_ms
        for name, step in found.items()
        if step.modelled is not None
    }
    if not ratios:
        return
    worst = max(ratios, key=lambda name: ratios[name])
    step = found[worst]
    value = f"{ratios[worst]:.2f} times ({worst}: {step.outside_ms:.2f} ms of {step.ms:.2f} ms)"
    result.bar(bars.OUTSIDE, value, ratios[worst] <= bars.OUTSIDE_SLACK)
