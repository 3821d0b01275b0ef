"""What CPU threads cost on a busy machine: wall and CPU time of an image, by thread count and
OpenMP's way of waiting.

A process per setting, interleaved image by image in random order, without and with busy loops
beside: one per CPU.

    python -m benchmarks.threads --images 5
    python -m benchmarks.threads --images 5 --target llamagen-b-c2i:grid=8    # 111 M, 64 tokens,
      random weights
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

from benchmarks.clocks import busy_loops

SETTINGS = {  # label: threads, OMP_WAIT_POLICY
    "1 thread": ("1", "PASSIVE"),
    "2 threads, passive": ("2", "PASSIVE"),
    "2 threads, spinning (OpenMP's default)": ("2", ""),
}
WORKER = """
import os, sys, time
if not os.environ["OMP_WAIT_POLICY"]:
    del os.environ["OMP_WAIT_POLICY"]
    import torch  # first, so that lanternbench leaves the policy as it is
import lanternbench
target = sys.argv[2]
model = lanternbench.load(target, "cpu", threads=int(sys.argv[1]), random_weights=target != "tiny")
caption = "a large red circle on the left on a striped blue background" if target == "tiny" else "207"
for line in sys.stdin:
    method, seed = line.split()
    cpu = time.process_time()
    result = model.generate(caption, method, seed=int(seed))
    print(result.stats.decode_s, time.process_time() - cpu, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--methods", default="ar,cool-sd")
    parser.add_argument("--target", default="tiny")
    arguments = parser.parse_args()
    methods, order = arguments.methods.split(","), random.Random(0)
    print(
        "| busy loops beside | method | setting | wall s an image | CPU s an image | wall / 1 thread |"
    )
    print("|---|---|---|---|---|---|")
    with ExitStack() as stack:
        start = partial(_worker, target=arguments.target)
        workers = {
            label: stack.enter_context(start(*setting)) for label, setting in SETTINGS.items()
        }
        for worker in workers.values():
            for method in methods:
                _image(worker, method, 0)
        for loops in (0, os.cpu_count() or 1):
            with busy_loops(loops):
                for method in methods:
                    _compare(workers, method, arguments.images, loops, order)


def _compare(workers: dict, method: str, images: int, loops: int, order: random.Random) -> None:
    times: dict[str, list[tuple[float, float]]] = {label: [] for label in workers}
    for seed in range(images):
        for label in order.sample(list(workers), len(workers)):
            times[label].append(_image(workers[label], method, seed))
    reference = times[next(iter(times))]
    for label, pairs in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a[0] / b[0] for a, b in zip(pairs, reference, strict=True))
        print(
            f"| {loops} | {method} | {label} | {wall:.2f} | {cpu:.2f} | {ratio:.2f} |", flush=True
        )


def _worker(threads: str, policy: str, target: str) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": policy}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, threads, target], env=environment, **pipes
    )


def _image(worker: subprocess.Popen, method: str, seed: int) -> tuple[float, float]:
    """(wall, CPU) seconds of an image."""
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write(f"{method} {seed}\n")
    worker.stdin.flush()
    wall, cpu = map(float, worker.stdout.readline().split())
    return wall, cpu


if __name__ == "__main__":
    main()
