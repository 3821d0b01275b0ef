"""What a step costs the host, by preset: operators, kernels, calls, and microseconds.

    python -m benchmarks.step_operators                  print a table of this checkout
    python -m benchmarks.step_operators --out FILE       also keep its figures as JSON
    python -m benchmarks.step_operators --before FILE    compare with figures kept earlier, and
                                                         write results/step-operators.md

*Launched* steps run operation by operation, as on a CPU.  *Recorded* steps replay their phases, as
on a GPU: a stand-in replays nothing, so that what remains is the host's work around the replays.
Operators are what torch dispatches; kernels leave out views.  Counts repeat exactly; the time is
the CPU time of one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.decoding import misfit
from lanternbench.engine import decode as engine
from lanternbench.lossless.tables import row_end_target
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_target
from lanternbench.models.target import Target
from lanternbench.registry import components
from lanternbench.utils.graph_capture import Graphs

REPORT = Path(__file__).parent / "results" / "step-operators.md"
WARM_UP = 6  # steps: buffers are allocated and phases recorded
COUNTED = 5  # steps; the median counts
TIMED = 40
CAPTION = "a red star"


class Figures(NamedTuple):
    """Medians over steps of one method."""

    operators: float  # of a launched step
    kernels: float
    calls: float  # of Python functions
    around_replays: float  # kernels of a recorded step outside its replays
    recorded_calls: float
    host_us: float


class Operators(TorchDispatchMode):
    """Count the operators that torch dispatches, and those that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        self.kernels += not func.is_view
        return func(*args, **(kwargs or {}))


class Stepper:
    """One decode, a step at a time."""

    def __init__(self, target: Target, name: str):
        simulated = 2.0 if target.graphs is not None and name not in ("ar", "zipar") else None
        self.decoder = build(target, method(name), simulate_acceptance=simulated)
        self.advance: Callable[..., Any] = getattr(self.decoder, "step", None) or engine.step
        self.begin()

    def begin(self) -> None:
        self.state, self.carried = engine.begin(self.decoder, [CAPTION], [1])
        self.state.clock.start()

    def step(self) -> None:
        if not self.state.active:  # a small image is soon whole
            self.begin()
        self.carried, _ = self.advance(self.decoder, self.state, self.carried)
        self.state.clock.end_step()


def python_calls(work: Callable[[], None]) -> int:
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[event] += 1

    sys.setprofile(count)
    work()
    sys.setprofile(None)
    return calls["call"]


class Replays:
    """A stand-in for CUDA graphs: once ``idle``, a replay returns what the last one left."""

    idle = False

    def record(self, work: Callable[..., Any], inputs: list[Tensor]) -> Callable[[], Any]:
        outputs = work(*inputs)

        def replay() -> Any:
            if not self.idle:
                for own, new in zip(outputs, work(*inputs), strict=True):
                    own.copy_(new)
            return outputs

        return replay


@torch.inference_mode()
def figures(target: Target, name: str) -> Figures:
    launched = Stepper(replace(target, graphs=None), name)
    for _ in range(WARM_UP):
        launched.step()
    operators: list[int] = []
    kernels: list[int] = []
    calls: list[int] = []
    for _ in range(COUNTED):
        with Operators() as counted:
            launched.step()
        operators.append(counted.operators)
        kernels.append(counted.kernels)
        calls.append(python_calls(launched.step))
    replays = Replays()
    recorded = Stepper(replace(target, graphs=Graphs(replays.record)), name)
    for _ in range(WARM_UP):
        recorded.step()
    replays.idle = True
    seconds: list[float] = []
    for _ in range(TIMED):
        recorded.state.steps = 2  # uniforms are there for one image
        start = thread_time()
        recorded.step()
        seconds.append(thread_time() - start)
    recorded.state.steps = 2
    with Operators() as around:
        recorded.step()
    recorded_calls = python_calls(recorded.step)
    return Figures(
        median(operators),
        median(kernels),
        median(calls),
        around.kernels,
        recorded_calls,
        1e6 * median(seconds),
    )


def measure() -> dict[str, Figures]:
    torch.set_num_threads(1)
    targets = {"": load_target("tiny", "cpu"), " with row ends": row_end_target()}
    found: dict[str, Figures] = {}
    for suffix, target in targets.items():
        for name in components("preset"):
            if misfit(target, name) is not None:
                continue
            found[name + suffix] = figures(target, name)
            print(name + suffix, found[name + suffix], flush=True)
    return found


HEAD = """# What a step costs the host

Written by `python -m benchmarks.step_operators`: medians of a step on the embedded target, one
prompt, and on a small target of the Chameleon family with row ends.  *Launched*: operators that
torch dispatches, kernels (operators that are no views), calls of Python functions.  *Recorded*:
kernels that the host launches around the replays of a step, Python calls, and microseconds of the
host's CPU time with replays that do nothing.  Before → after.

| preset | operators | kernels | calls | recorded: kernels | calls | host µs |
|---|---|---|---|---|---|---|
"""


def table(before: dict[str, Figures], after: dict[str, Figures]) -> str:
    rows: list[str] = []
    for name, new in after.items():
        old = before.get(name)
        cells = [f"{value:.0f}" for value in new]
        if old is not None:
            cells = [f"{a:.0f} → {b:.0f}" for a, b in zip(old, new, strict=True)]
        rows.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path)
    arguments = parser.parse_args()
    after = measure()
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(after), encoding="utf-8")
    before: dict[str, Figures] = {}
    if arguments.before is not None:
        kept = json.loads(arguments.before.read_text(encoding="utf-8"))
        before = {name: Figures(*values) for name, values in kept.items()}
        REPORT.write_text(table(before, after), encoding="utf-8")
    print(table(before, after))


if __name__ == "__main__":
    main()
