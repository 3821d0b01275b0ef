"""Two checkouts of lanternbench against each other, image by image in turns, on one machine.

    python benchmarks/two_checkouts.py OLD_CHECKOUT NEW_CHECKOUT [METHOD ...] [--target tiny] [--rounds 12]

METHOD may have options that both checkouts know: eagle-2:depth=4,draft_top_k=8,total_nodes=24.

Each checkout runs in a process of its own, one thread each, and one computes while the other waits.  CPU time per step
counts, as wall time on a shared machine does not repeat; the ratio new / old is that of the medians over images, with
the quartiles of the paired ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from statistics import median, quantiles
from time import process_time

CAPTIONS = ["a large red star on the left on a noisy blue background", "a small green ring", "two dogs in the snow"]


def serve(target_name: str, steps: int) -> None:
    """Decode what is asked for on stdin; answer with (CPU seconds a step, steps, tokens) on stdout."""
    import torch
    import yaml

    torch.set_num_threads(1)
    from lanternbench.models.catalogue import load_with_drafter

    try:
        from lanternbench.engine.decode import generate
        from lanternbench.methods.build import build
        from lanternbench.methods.method import method

        limit = {"max_steps": steps}
    except ImportError:
        from lanternbench.decoding.engine import build, generate
        from lanternbench.decoding.presets import method

        limit = {"most_steps": steps}
    random = target_name != "tiny"
    target = load_with_drafter(target_name, None, "cpu", random)
    captions = CAPTIONS if not random else ["7", "207", "388"]
    decoders = {}
    for line in sys.stdin:
        name, seed = json.loads(line)
        if name not in decoders:
            simulated = 2.0 if random and name != "ar" else None
            preset, _, given = name.partition(":")
            chosen = {k: yaml.safe_load(v) for k, _, v in (part.partition("=") for part in given.split(",") if part)}
            decoders[name] = build(target, method(preset, **chosen), 1.0, None, 1.0, None, simulated)
            generate(decoders[name], captions[:1], seed=0, **dict.fromkeys(limit, 8))
        begun = process_time()
        (made,) = generate(decoders[name], [captions[seed % 3]], seed=seed, **limit)
        spent = process_time() - begun
        print(json.dumps([spent / made.steps, made.steps, made.tokens.tolist() if steps >= 1000 else []]), flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("checkouts", nargs=2)
    options.add_argument("methods", nargs="*")
    options.add_argument("--target", default="tiny")
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--steps", type=int, default=1000, help="of an image, at most")
    given = options.parse_args()
    methods = given.methods or [
        "ar", "sd", "medusa", "eagle-1", "eagle-2", "lantern", "lantern++", "jacobi", "sjd", "adt-tree",
        "uniform-rsd", "cool-sd",
    ]  # fmt: skip
    servers = []
    for folder in given.checkouts:
        environment = os.environ | {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, __file__, "--serve", given.target, str(given.steps)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        servers.append(subprocess.Popen(command, env=environment, text=True, cwd="/", **pipes))

    def ask(server: subprocess.Popen, name: str, seed: int) -> list:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([name, seed]) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    wide = max(map(len, methods)) + 2
    print(f"{'method':{wide}}{'old ms/step':>12}{'new ms/step':>12}{'new/old':>9}   quartiles   same tokens")
    for name in methods:
        pairs = []
        same = True
        for seed in range(given.rounds + 1):  # the first is a warm-up
            order = servers if seed % 2 else servers[::-1]
            found = {id(server): ask(server, name, seed) for server in order}
            old, new = (found[id(server)] for server in servers)
            same = same and old[1:] == new[1:]
            if seed:
                pairs.append((old[0], new[0]))
        ratios = [new / old for old, new in pairs]
        low, _, high = quantiles(ratios, n=4)
        old, new = (1e3 * median(side) for side in zip(*pairs, strict=True))
        print(f"{name:{wide}}{old:12.3f}{new:12.3f}{new / old:9.3f}   {low:.3f}–{high:.3f}   {'yes' if same else 'NO'}")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
