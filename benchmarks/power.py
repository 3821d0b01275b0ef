"""How many prompts tell which difference: the report's own test on resampled prompts of a finished
run.

``python -m benchmarks.study`` runs it.  Pairs of methods are taken as they differ by prompt,
centred, shifted by the difference in question, and resampled; power is the share of resamplings in
which the sign-flip test of two methods has p < 0.05.  Writes benchmarks/results/power.md.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from benchmarks.result_files import setting, table, write
from lanternbench import load_run
from lanternbench.measure.statistics import ALPHA, paired_tests

PROMPTS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
TRIALS, POWER = 400, 0.8
DIFFERENCES = {
    "speed": ("decode_s", True, (0.02, 0.05, 0.1, 0.2)),
    "accepted length τ": ("tau", True, (0.02, 0.05, 0.1, 0.2)),
    "fidelity loss": ("fidelity_loss", False, (0.002, 0.005, 0.01, 0.02)),
    "CLIP-tiny": ("clip-tiny", False, (0.01, 0.02, 0.05)),
}


def centred(values: np.ndarray) -> np.ndarray:
    """Differences of every pair of methods by prompt [prompts, pairs], their means taken off."""
    pairs = itertools.combinations(range(values.shape[1]), 2)
    differences = np.stack([values[:, a] - values[:, b] for a, b in pairs], 1)
    differences = differences[:, differences.std(0) > 0]
    return differences - differences.mean(0)


def power(differences: np.ndarray, shift: float, prompts: int, rng: np.random.Generator) -> float:
    """Share of resamplings, over pairs of methods in turn, that the test tells apart."""
    columns = rng.integers(differences.shape[1], size=TRIALS)
    drawn = differences[rng.integers(len(differences), size=(prompts, TRIALS)), columns] + shift
    return float((paired_tests(drawn, 2000) < ALPHA).mean())


def needed(differences: np.ndarray, shift: float) -> str:
    rng = np.random.default_rng(0)
    return next(
        (str(n) for n in PROMPTS if power(differences, shift, n, rng) >= POWER),
        f"over {PROMPTS[-1]}",
    )


def report(run: Path) -> None:
    samples = load_run(run).samples
    samples["tau"] = samples["accept_lengths"].map(np.mean)
    rows = []
    for title, (name, relative, shifts) in DIFFERENCES.items():
        values = (
            samples.pivot_table(index="prompt_id", columns="label", values=name)
            .dropna(axis=1)
            .to_numpy()
        )
        differences = centred(np.log(values) if relative else values)
        for shift in shifts:
            wanted = f"{shift:.0%}" if relative else f"{shift:g}"
            rows.append(
                [title, wanted, needed(differences, np.log1p(shift) if relative else shift)]
            )
    about = (
        f"The least of {', '.join(map(str, PROMPTS[:4]))} … {PROMPTS[-1]} prompts with which the paired test of two "
        f"methods finds the difference 8 times in 10, by resampling a run of {samples.label.nunique()} methods on "
        f"`tiny`: {setting(run)}"
    )
    write(
        "power.md",
        [
            "# Prompts that a difference needs",
            "",
            about,
            "",
            *table(["figure", "difference", "prompts"], rows),
        ],
    )
