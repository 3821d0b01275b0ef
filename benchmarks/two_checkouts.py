"""Two checkouts of lanternbench against each other, image by image in turns, on one machine.

    python benchmarks/two_checkouts.py OLD_CHECKOUT NEW_CHECKOUT [METHOD ...] [--target tiny]
    [--rounds 12]
        [--restarts 4]

METHOD may have options that both checkouts know: eagle-2:depth=4,draft_top_k=8,total_nodes=24.

Each checkout runs in a process of its own, one thread each, and one computes while the other
waits.  CPU time per step counts, as wall time on a shared machine does not repeat; the ratio new /
old is that of the medians over images, with the quartiles of the paired ratios.  Where a process
lies in memory shifts its times by 1 to 3 % for as long as it runs, the same checkout against
itself included; so both are restarted, in turns the one and the other first.  The numbers of
PyTorch operators and of Python calls a step have no noise: they say whether a difference is the
code's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from statistics import median, quantiles
from time import process_time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lanternbench.engine.decode import SpeculativeDecoder
    from lanternbench.engine.trace import Generation
    from lanternbench.models.target import Target

CAPTIONS = [
    "a large red star on the left on a noisy blue background",
    "a small green ring",
    "two dogs in the snow",
]
CLASSES = ["7", "207", "388"]  # captions of a target other than the toy one
METHODS = ["ar", "sd", "medusa", "eagle-1", "eagle-2", "lantern", "lantern++", "jacobi", "sjd"]
METHODS += ["adt-tree", "uniform-rsd", "cool-sd"]
WHOLE = 1000  # steps: more than an image has


# the process of one checkout


def serve(target_name: str, steps: int) -> None:
    """Decode what is asked for on stdin; answer with (CPU seconds a step, steps, tokens) on
    stdout.
    """
    import torch

    import lanternbench

    torch.set_num_threads(1)
    is_random = target_name != "tiny"
    target = lanternbench.load(target_name, "cpu", random_weights=is_random).target
    captions = CLASSES if is_random else CAPTIONS
    decoders: dict[str, SpeculativeDecoder] = {}
    for line in sys.stdin:
        name, seed = json.loads(line)
        if name not in decoders:
            decoders[name] = decoder_of(target, name, is_random)
            decode(decoders[name], captions[0], 0, 8)
        if seed is None:
            answer: list[object] = [*count_per_step(decoders[name], captions[0])]
        else:
            begun = process_time()
            generation = decode(decoders[name], captions[seed % 3], seed, steps)
            spent = process_time() - begun
            tokens = generation.tokens.tolist() if steps >= WHOLE else []
            answer = [spent / generation.steps, generation.steps, tokens]
        print(json.dumps(answer), flush=True)


def decoder_of(target: Target, name: str, is_random: bool) -> SpeculativeDecoder:
    """Build a decoder of ``name:option=value,…``; with random weights acceptance is simulated."""
    import yaml

    from lanternbench.methods.build import build
    from lanternbench.methods.method import method

    preset, _, arguments = name.partition(":")
    options = {}
    for part in filter(None, arguments.split(",")):
        key, _, value = part.partition("=")
        options[key] = yaml.safe_load(value)
    simulated = 2.0 if is_random and name != "ar" else None
    return build(target, method(preset, **options), simulate_acceptance=simulated)


def decode(decoder: SpeculativeDecoder, caption: str, seed: int, steps: int) -> Generation:
    from lanternbench.engine.decode import generate

    return generate(decoder, [caption], seed=seed, max_steps=steps)[0]


def count_per_step(decoder: SpeculativeDecoder, caption: str) -> tuple[float, float]:
    """Return the PyTorch operators and the Python calls of a step."""
    short, long = (count(partial(decode, decoder, caption, 0, steps)) for steps in (8, 24))
    return (long[0] - short[0]) / 16, (long[1] - short[1]) / 16


def count(work: Callable[[], object]) -> tuple[int, int]:
    """Return the PyTorch operators and the Python calls of ``work``."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    calls = 0

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        if event == "call":
            calls += 1

    sys.setprofile(count_call)
    work()
    sys.setprofile(None)
    return sum(event.count for event in profile.key_averages()), calls


# the process that asks both


class Answer(NamedTuple):
    """One image of one checkout."""

    seconds_per_step: float
    steps: int
    tokens: list[int]


class Server:
    """The process of one checkout."""

    def __init__(self, folder: str, target: str, steps: int):
        environment = os.environ | {
            "PYTHONPATH": folder,
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        command = [sys.executable, __file__, "--serve", target, str(steps)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, cwd="/", **pipes)

    def ask(self, name: str, seed: int | None) -> list:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, seed]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def image(self, name: str, seed: int) -> Answer:
        return Answer(*self.ask(name, seed))

    def counts(self, name: str) -> list[float]:
        """Return the operators and the calls of a step."""
        return self.ask(name, None)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Comparison:
    """What both checkouts took for one method."""

    def __init__(self, name: str):
        self.name = name
        self.old_s: list[float] = []
        self.new_s: list[float] = []
        self.is_same = True
        self.counts: list[list[float]] = []

    def run(self, old: Server, new: Server, first_seed: int, images: int) -> None:
        """Compare ``images`` images after one as a warm-up, each checkout first in turns."""
        if not self.counts:
            self.counts = [old.counts(self.name), new.counts(self.name)]
        for i in range(images + 1):
            seed = first_seed + i
            if i % 2:
                of_old = old.image(self.name, seed)
                of_new = new.image(self.name, seed)
            else:
                of_new = new.image(self.name, seed)
                of_old = old.image(self.name, seed)
            self.is_same = self.is_same and of_old[1:] == of_new[1:]
            if i > 0:
                self.old_s.append(of_old.seconds_per_step)
                self.new_s.append(of_new.seconds_per_step)

    def row(self, width: int) -> str:
        ratios = [new / old for old, new in zip(self.old_s, self.new_s, strict=True)]
        low, _, high = quantiles(ratios, n=4)
        old_ms = 1e3 * median(self.old_s)
        new_ms = 1e3 * median(self.new_s)
        times = f"{old_ms:12.3f}{new_ms:12.3f}{new_ms / old_ms:9.3f}   {low:.3f}–{high:.3f}"
        operators, calls = (f"{a:.0f} → {b:.0f}" for a, b in zip(*self.counts, strict=True))
        same = "yes" if self.is_same else "NO"
        return f"{self.name:{width}}{times}  {operators:>14}{calls:>12}   {same}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("checkouts", nargs=2)
    options.add_argument("methods", nargs="*", default=METHODS)
    options.add_argument("--target", default="tiny")
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--restarts", type=int, default=4)
    options.add_argument("--steps", type=int, default=WHOLE, help="of an image, at most")
    arguments = options.parse_args()
    comparisons = [Comparison(name) for name in arguments.methods]
    images = -(-arguments.rounds // arguments.restarts)
    for restart in range(arguments.restarts):
        old, new = servers(arguments, new_first=bool(restart % 2))
        for comparison in comparisons:
            comparison.run(old, new, 1 + restart * arguments.rounds, images)
        old.stop()
        new.stop()
    width = max(len(comparison.name) for comparison in comparisons) + 2
    times = f"{'old ms/step':>12}{'new ms/step':>12}{'new/old':>9}   {'quartiles':<13}"
    print(f"{'method':{width}}{times}{'operators':>14}{'calls':>12}   same tokens")
    for comparison in comparisons:
        print(comparison.row(width))


def servers(arguments: argparse.Namespace, new_first: bool) -> tuple[Server, Server]:
    """Start the old and the new checkout; which of them starts first shifts their times."""
    old_folder, new_folder = arguments.checkouts
    if new_first:
        new = Server(new_folder, arguments.target, arguments.steps)
        return Server(old_folder, arguments.target, arguments.steps), new
    old = Server(old_folder, arguments.target, arguments.steps)
    return old, Server(new_folder, arguments.target, arguments.steps)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
