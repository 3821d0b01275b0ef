"""Every method that can share noise: are its images those of ``ar``, what does the coupling cost in
accepted length, and how many prompts does a difference of quality need?

``python -m benchmarks.shared_noise`` decodes demo prompts in batches on ``tiny`` (``--prompts N``, ``--methods``).
Seconds are CPU seconds of one thread, which other programs hardly change.  Writes
benchmarks/results/shared-noise.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.power import centred, needed
from benchmarks.result_files import table, write
from lanternbench.engine.decode import Generation, generate
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, method
from lanternbench.metrics import Setup, scorers_for
from lanternbench.models.catalogue import load_target
from lanternbench.models.target import Target
from lanternbench.prompts import load
from lanternbench.registry import components
from lanternbench.settings import Noise, Sampling

BATCH = 32
DIFFERENCE = 0.02  # of CLIP-tiny
APPROXIMATE: tuple[tuple[str, dict[str, Any]], ...] = (("zipar", {"window": 4}),)


class Decoded(NamedTuple):
    """The images of one method, of all prompts."""

    tokens: Tensor  # [prompts, L]
    tau: float  # tokens a step, the prefill's left out
    seconds: float  # CPU seconds an image, in a batch


def decoded(target: Target, one: Method, captions: Sequence[str], noise: Noise) -> Decoded:
    decoder = build(target, one, Sampling(noise=noise))
    images: list[Generation] = []
    seconds = 0.0
    for start in range(0, len(captions), BATCH):
        clock = time.process_time()
        batch = generate(decoder, list(captions[start : start + BATCH]))
        seconds += time.process_time() - clock
        images += batch
    new_tokens = sum(sum(image.accept_lengths) for image in images)
    steps = sum(image.steps for image in images)
    tokens = torch.stack([image.tokens for image in images])
    return Decoded(tokens, new_tokens / steps, seconds / len(images))


def psnr(image: Image.Image, other: Image.Image) -> float:
    """Peak signal-to-noise ratio in dB; 99 for equal images."""
    error = np.square(np.asarray(image, float) - np.asarray(other, float)).mean()
    return min(99.0, float(10 * np.log10(255**2 / max(error, 1e-9))))


def lossless_methods(names: Sequence[str]) -> list[Method]:
    found = []
    for name, preset in components("preset").items():
        wanted = not names or name in names
        if wanted and preset.lossless and name not in ("ar", "dflash"):
            found.append(method(name))
    return found


def lossless_table(target: Target, captions: Sequence[str], names: Sequence[str]) -> list[str]:
    rows = []
    plain = decoded(target, method("ar"), captions, "shared")
    for one in lossless_methods(names):
        exact = decoded(target, one, captions, "independent")
        shared = decoded(target, one, captions, "shared")
        differ = int((shared.tokens != plain.tokens).any(1).sum())
        rows.append(
            [
                one.label,
                f"{differ} of {len(captions)}",
                f"{shared.tau:.2f}",
                f"{exact.tau:.2f}",
                f"{plain.seconds / shared.seconds:.2f}",
                f"{plain.seconds / exact.seconds:.2f}",
            ]
        )
        print(rows[-1], flush=True)
    titles = [
        "method",
        "images that are not ar's",
        "τ",
        "τ, `exact`",
        "speedup",
        "speedup, `exact`",
    ]
    return table(titles, rows)


def quality_tables(target: Target, captions: Sequence[str]) -> list[str]:
    """Agreement with ``ar``'s images, and the prompts that a difference needs."""
    scorer = scorers_for(["clip-tiny"], target.evaluators, Setup())[0]
    agreement = []
    prompts = []
    scores: dict[tuple[str, str], np.ndarray] = {}
    pictures: dict[tuple[str, str], list[Image.Image]] = {}
    tokens: dict[tuple[str, str], Tensor] = {}
    approximate = [method(name, **options) for name, options in APPROXIMATE]
    for noise in ("shared", "independent"):
        for one in [method("ar"), *approximate]:
            key = (one.label, noise)
            tokens[key] = decoded(target, one, captions, noise).tokens
            pictures[key] = target.images(tokens[key], list(captions))
            values = [
                scorer.score([i], [c])[0] for i, c in zip(pictures[key], captions, strict=True)
            ]
            scores[key] = np.array(values, float)
            print(key, flush=True)
    for one in approximate:
        cells = [one.label]
        wanted = [one.label]
        for noise in ("shared", "independent"):
            mine, of_ar = (one.label, noise), ("ar", noise)
            same = (tokens[mine] == tokens[of_ar]).double().mean()
            pairs = zip(pictures[mine], pictures[of_ar], strict=True)
            decibels = np.mean([psnr(image, other) for image, other in pairs])
            both = np.stack([scores[mine], scores[of_ar]], 1)
            spread = centred(both)
            cells += [f"{same:.3f}", f"{decibels:.1f}"]
            wanted += [f"{spread.std():.3f}", needed(spread, DIFFERENCE)]
        agreement.append(cells)
        prompts.append(wanted)
    return [
        *table(
            ["method", "tokens of ar", "PSNR, dB", "tokens, independent", "PSNR, independent"],
            agreement,
        ),
        "",
        f"Prompts with which the paired test finds a difference of {DIFFERENCE} in CLIP-tiny 8 times in 10, and the "
        "standard deviation of the differences by prompt:",
        "",
        *table(
            ["method", "deviation", "prompts", "deviation, independent", "prompts, independent"],
            prompts,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--methods", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target = load_target("tiny")
    captions = [prompt.text for prompt in load("demo", arguments.prompts)]
    with torch.inference_mode():
        quality = quality_tables(target, captions)
        print("\n".join(quality), flush=True)
        tokens = lossless_table(target, captions, arguments.methods)
    about = f"{len(captions)} demo prompts on `tiny`, T = 1, in batches of {BATCH}; speedups in CPU seconds of one thread."
    write("shared-noise.md", ["# Shared noise", "", about, "", *tokens, "", *quality])


if __name__ == "__main__":
    main()
