"""A token of ``ar`` beside the loop that one writes with transformers, at a target's shape with
random weights.

    python -m benchmarks.beside_transformers [--target llamagen-b-c2i] [--threads 2] [--rounds 7]

Both in float32 with CFG, one prompt, in turns on the same threads.  Writes
benchmarks/results/beside-transformers.md.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch

from benchmarks.gpu.plain_loop import plain_seconds
from benchmarks.result_files import table, write
from lanternbench.costs.forward_cost import bandwidth
from lanternbench.engine.decode import generate
from lanternbench.experiment.environment import environment
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_with_drafter
from lanternbench.profile.step_profile import read_bytes
from lanternbench.settings import ModelSpec

TOKENS = 96


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--target", default="llamagen-b-c2i")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--rounds", type=int, default=7)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)

    target = load_with_drafter(ModelSpec(target=chosen.target, random_weights=True))
    decoder = build(target, method("ar"))
    caption = "7"
    prompt = target.prefix([caption], target.guidance).valid.shape[1]
    generate(decoder, [caption], max_steps=8)
    ours, plain = [], []
    for _ in range(chosen.rounds):
        made = generate(decoder, [caption], max_steps=TOKENS)[0]
        ours.append(1e3 * made.decode_s / made.steps)
        plain.append(1e3 * plain_seconds(target, prompt, TOKENS, lambda: None))
        print(f"{ours[-1]:.1f} ms beside {plain[-1]:.1f} ms", flush=True)
    ratios = sorted(b / a for a, b in zip(ours, plain, strict=True))
    read, limit = (
        read_bytes(target.model) / median(ours) / 1e6,
        bandwidth(torch.device("cpu")).best,
    )
    rows = [
        [
            "lanternbench",
            f"{median(ours):.1f}",
            f"{median(ratios):.2f}× ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        ],
        ["transformers, static cache", f"{median(plain):.1f}", "1"],
    ]
    machine = environment()
    about = (
        f"`{chosen.target}`, random weights, float32, CFG, {TOKENS} tokens, {chosen.rounds} rounds in turns; "
        f"{machine['cpu']}, {chosen.threads} threads, torch {machine['torch']}. lanternbench reads {read:.1f} of the "
        f"{limit:.1f} GB/s that the probe reads."
    )
    titles = ["loop", "ms a token", "ratio of the round's times, median (range)"]
    write("beside-transformers.md", ["# Beside a plain loop", "", about, "", *table(titles, rows)])


if __name__ == "__main__":
    main()
