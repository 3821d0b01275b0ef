"""How many prompts tell which difference: the report's own test on resampled prompts of a finished run.

    python -m benchmarks.power results/RUN

Pairs of methods are taken as they differ by prompt, centred, shifted by the difference in question, and resampled;
power is the share of resamplings in which the sign-flip test of two methods finds p < 0.05.  Writes results/power.md.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np

import lanternbench
from lanternbench.measure.statistics import ALPHA, paired_tests

RESULT = Path(__file__).resolve().parent / "results/power.md"
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
    found = np.stack([values[:, a] - values[:, b] for a, b in pairs], 1)
    found = found[:, found.std(0) > 0]
    return found - found.mean(0)


def power(differences: np.ndarray, shift: float, prompts: int, rng: np.random.Generator) -> float:
    """Share of resamplings, over pairs of methods in turn, that the test tells apart."""
    columns = rng.integers(differences.shape[1], size=TRIALS)
    drawn = differences[rng.integers(len(differences), size=(prompts, TRIALS)), columns] + shift
    return float((paired_tests(drawn, 2000) < ALPHA).mean())


def needed(differences: np.ndarray, shift: float) -> str:
    rng = np.random.default_rng(0)
    return next((str(n) for n in PROMPTS if power(differences, shift, n, rng) >= POWER), f"over {PROMPTS[-1]}")


def main(run: Path) -> None:
    frames = lanternbench.load_run(run)
    samples = frames.samples
    samples["tau"] = samples["accept_lengths"].map(np.mean)
    lines = [
        "# Prompts that a difference needs",
        "",
        f"From {samples.prompt_id.nunique()} prompts of a finished run of {samples.label.nunique()} methods on `tiny`, "
        f"by resampling them: the least of {', '.join(map(str, PROMPTS[:4]))} … {PROMPTS[-1]} prompts with which the "
        "paired test of two methods finds the difference 8 times in 10.",
        "",
        "| figure | difference | prompts |",
        "|---|---:|---:|",
    ]
    for title, (name, relative, shifts) in DIFFERENCES.items():
        table = samples.pivot_table(index="prompt_id", columns="label", values=name).dropna(axis=1).to_numpy()
        found = centred(np.log(table) if relative else table)
        for shift in shifts:
            wanted = f"{shift:.0%}" if relative else f"{shift:g}"
            lines.append(f"| {title} | {wanted} | {needed(found, np.log1p(shift) if relative else shift)} |")
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(RESULT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
