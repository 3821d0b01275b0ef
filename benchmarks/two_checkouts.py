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
from typing import Any

CAPTIONS = [
    "a large red star on the left on a noisy blue background",
    "a small green ring",
    "two dogs in the snow",
]


def serve(target_name: str, steps: int) -> None:
    """Decode what is asked for on stdin; answer with (CPU seconds a step, steps, tokens) on
    stdout.
    """
    import torch
    import yaml

    import lanternbench

    torch.set_num_threads(1)
    from lanternbench.engine.decode import generate
    from lanternbench.methods.build import build
    from lanternbench.methods.method import method

    def decode(decoder: Any, caption: str, seed: int, most: int) -> Any:
        return generate(decoder, [caption], seed=seed, max_steps=most)[0]

    random = target_name != "tiny"
    target = lanternbench.load(target_name, "cpu", random_weights=random).target
    captions = CAPTIONS if not random else ["7", "207", "388"]
    decoders = {}
    for line in sys.stdin:
        name, seed = json.loads(line)
        if name not in decoders:
            simulated = 2.0 if random and name != "ar" else None
            preset, _, arguments = name.partition(":")
            parts = (part.partition("=") for part in arguments.split(",") if part)
            chosen = {key: yaml.safe_load(value) for key, _, value in parts}
            decoders[name] = build(target, method(preset, **chosen), simulate_acceptance=simulated)
            decode(decoders[name], captions[0], 0, 8)
        if seed is None:
            few, many = (
                counted(partial(decode, decoders[name], captions[0], 0, n)) for n in (8, 24)
            )
            print(json.dumps([(b - a) / 16 for a, b in zip(few, many, strict=True)]), flush=True)
            continue
        begun = process_time()
        generation = decode(decoders[name], captions[seed % 3], seed, steps)
        spent = process_time() - begun
        tokens = generation.tokens.tolist() if steps >= 1000 else []
        print(json.dumps([spent / generation.steps, generation.steps, tokens]), flush=True)


def counted(work: Callable[[], object]) -> tuple[int, int]:
    """PyTorch operators and Python calls of ``work``."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    work()
    sys.setprofile(None)
    return sum(event.count for event in profile.key_averages()), calls


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("checkouts", nargs=2)
    options.add_argument("methods", nargs="*")
    options.add_argument("--target", default="tiny")
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--restarts", type=int, default=4)
    options.add_argument("--steps", type=int, default=1000, help="of an image, at most")
    arguments = options.parse_args()
    methods = arguments.methods or [
        "ar", "sd", "medusa", "eagle-1", "eagle-2", "lantern", "lantern++", "jacobi", "sjd", "adt-tree",
        "uniform-rsd", "cool-sd",
    ]  # fmt: skip
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    same = dict.fromkeys(methods, True)
    counts: dict[str, list[list[float]]] = {}
    for restart in range(arguments.restarts):
        started = [
            start(folder, arguments) for folder in arguments.checkouts[:: -1 if restart % 2 else 1]
        ]
        servers = started[:: -1 if restart % 2 else 1]
        for name in methods:
            if name not in counts:
                counts[name] = [ask(server, name, None) for server in servers]
            # the first is a warm-up
            for i in range(-(-arguments.rounds // arguments.restarts) + 1):
                seed = 1 + restart * arguments.rounds + i
                answers = {
                    id(server): ask(server, name, seed)
                    for server in (servers if i % 2 else servers[::-1])
                }
                old, new = (answers[id(server)] for server in servers)
                same[name] = same[name] and old[1:] == new[1:]
                if i:
                    pairs[name].append((old[0], new[0]))
        for server in servers:
            server.kill()
            server.wait()
    wide = max(map(len, methods)) + 2
    heads = f"{'old ms/step':>12}{'new ms/step':>12}{'new/old':>9}   {'quartiles':<13}{'operators':>14}{'calls':>12}"
    print(f"{'method':{wide}}{heads}   same tokens")
    for name in methods:
        ratios = [new / old for old, new in pairs[name]]
        low, _, high = quantiles(ratios, n=4)
        old, new = (1e3 * median(side) for side in zip(*pairs[name], strict=True))
        operators, calls = (f"{a:.0f} → {b:.0f}" for a, b in zip(*counts[name], strict=True))
        print(
            f"{name:{wide}}{old:12.3f}{new:12.3f}{new / old:9.3f}   {low:.3f}–{high:.3f}  {operators:>14}{calls:>12}   "
            f"{'yes' if same[name] else 'NO'}"
        )


def start(folder: str, arguments: argparse.Namespace) -> subprocess.Popen:
    environment = os.environ | {
        "PYTHONPATH": folder,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [sys.executable, __file__, "--serve", arguments.target, str(arguments.steps)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, cwd="/", **pipes)


def ask(server: subprocess.Popen, name: str, seed: int | None) -> list:
    """What ``server`` took for one image, or, without a seed, how many operators and calls a step
    has.
    """
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([name, seed]) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
