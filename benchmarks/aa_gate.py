"""How often does the gate of ``compare`` fail between two runs of the same code on this machine?

    python -m benchmarks.aa_gate [METHOD ...] [--pairs 20] [--prompts 16]

Each pair is two runs of the same sweep, one after the other; every prefix of 4, 8, 16, … prompts
is a gate of its own.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from lanternbench.experiment import iter_samples
from lanternbench.experiment.config import sweep
from lanternbench.experiment.runner import run
from lanternbench.measure.change import condition, judge
from lanternbench.measure.figures import Figures
from lanternbench.utils.device import choose

CONDITIONS = ["speedup<-5%", "latency_s>5%", "robust_speedup<-5%", "tau<-2%"]


def first(path: Path, prompts: int) -> Figures:
    """The samples of a run's first prompts."""
    order: dict[str, None] = {}
    figures = Figures()
    for sample in iter_samples(path):
        order.setdefault(sample.prompt_id)
        if list(order).index(sample.prompt_id) < prompts:
            figures.add(sample)
    return figures


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("methods", nargs="*", default=["eagle-1", "lantern++"])
    options.add_argument("--pairs", type=int, default=20)
    options.add_argument("--prompts", type=int, default=16)
    arguments = options.parse_args()
    config = sweep({"methods": arguments.methods, "num_prompts": arguments.prompts, "metrics": []})
    device = choose("cpu", None)
    sizes = [n for n in (4, 8, 16, 32, 64) if n <= arguments.prompts]
    failed = {(text, n): 0 for text in CONDITIONS for n in sizes}
    for pair in range(arguments.pairs):
        with tempfile.TemporaryDirectory() as folder:
            old, new = (
                run(config, Path(folder) / side, device=device)[0] for side in ("old", "new")
            )
            for text, n in failed:
                failed[text, n] += bool(
                    judge(first(old, n), first(new, n), [condition(text)]).failed
                )
        counts = ", ".join(f"{text} at {n}: {count}" for (text, n), count in failed.items())
        print(f"{pair + 1} pairs, false alarms: {counts}", flush=True)


if __name__ == "__main__":
    main()
