"""Are the tokens those of launched steps, and of prompts alone?  And does the host wait once a
  step?

In float64, on the embedded model with its trained weights, so that drafts are accepted as in use.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result
from lanternbench.doctor.gpu import CAPTIONS, batch_differs, recorded_differs
from lanternbench.engine.decode import generate
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.registry import components
from lanternbench.settings import Sampling

QUICK = ("ar", "eagle-2", "sjd", "adt-tree", "cool-sd")  # a proposal and a tree of every kind
# what a target with an EAGLE drafter can do
DRAFTED = ("ar", "eagle-1", "eagle-2", "adt-tree", "sjd", "cool-sd")


def presets(machine: Machine) -> list[str]:
    return list(QUICK if machine.small else components("preset"))


def graphs(machine: Machine, result: Result) -> None:
    steps = 2 if machine.small else 48
    target, failed = shapes.exact(machine), 0
    for name in presets(machine):
        found = {
            f"T = {t:g}": recorded_differs(
                target, machine.graphs(), name, CAPTIONS[:1], Sampling(temperature=t), steps=steps
            )
            for t in (1, 0)
        }
        failed += any(found.values())
        result.row("the embedded model, float64", method=name, steps=steps, **_said(found))
    result.bar(
        bars.GRAPHS,
        f"{len(presets(machine)) - failed} of {len(presets(machine))} presets",
        failed == 0,
    )
    target, failed = shapes.row_ends(machine), 0
    for name in DRAFTED[::3] if machine.small else DRAFTED:
        sizes = {"alone": CAPTIONS[:1], "batch of 3": CAPTIONS}
        steps = 5 if machine.small else 16
        found = {
            k: recorded_differs(target, machine.graphs(), name, c, steps=steps)
            for k, c in sizes.items()
        }
        failed += any(found.values())
        result.row("a small Lumina-mGPT, float64", method=name, steps=steps, **_said(found))
    result.bar(
        bars.ROW_ENDS, "the same" if not failed else f"{failed} presets differ", failed == 0
    )


def batch(machine: Machine, result: Result) -> None:
    steps, names, failed = 2 if machine.small else 48, presets(machine), 0
    target = shapes.exact(machine)
    for name in names:
        found = batch_differs(replace(target, graphs=machine.graphs()), name, CAPTIONS, steps)
        failed += found is not None
        result.row(
            "3 prompts, recorded, float64", method=name, steps=steps, **_said({"tokens": found})
        )
    result.bar(bars.BATCH, f"{len(names) - failed} of {len(names)} presets", failed == 0)


def _said(found: dict[str, str | None]) -> dict[str, str]:
    return {k: v or "the same" for k, v in found.items()}


def syncs(machine: Machine, result: Result) -> None:
    few, many = (1, 3) if machine.small else (4, 20)
    target, worst = shapes.exact(machine), 0.0
    for name in presets(machine):
        row = {}
        for mode, graphs in (("launched", None), ("recorded", machine.graphs())):
            decoder = build(replace(target, graphs=graphs), method(name))
            decode = partial(generate, decoder, [CAPTIONS[0]])
            decode(max_steps=many)  # what is made or recorded once, is so here
            waits = [machine.host_waits(partial(decode, max_steps=steps)) for steps in (few, many)]
            row[mode] = (waits[1] - waits[0]) / (many - few)
        worst = max(worst, *row.values())
        result.row("waits a step", method=name, **row)
    result.bar(bars.SYNCS, f"at most {worst:g}", worst <= 1)
