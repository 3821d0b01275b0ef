"""Which methods a run tells apart from the baseline in speed, and after how many prompts it may look."""

import numpy as np

from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.statistics import ALPHA, Floats, draws, holm, paired_tests, prompts_needed

LOOKS = 4  # of a run that goes on until its methods are told apart; each takes twice the prompts of the one before
FLIPS = 100_000  # sign patterns: the least p before its correction is 1 / FLIPS


def look_sizes(methods: int) -> list[int]:
    """Prompts at each look of a run with so many methods beside the baseline."""
    return [prompts_needed(methods, LOOKS) << look for look in range(LOOKS)]


def all_told_apart(figures: Figures, labels: list[str]) -> bool:
    """Is each method told apart from the baseline, by the test of latencies' logarithms and Holm over the methods?"""
    if BASELINE not in figures.labels or not set(labels) <= figures.labels.keys():
        return False
    base = np.log(values_by_prompt(figures, "latency_s", BASELINE))
    apart = [np.log(values_by_prompt(figures, "latency_s", label)) - base for label in labels if label != BASELINE]
    tested = np.nan_to_num(np.stack(apart, 1))
    return bool((LOOKS * holm(paired_tests(tested, draws(len(tested), FLIPS))) < ALPHA).all())


def values_by_prompt(figures: Figures, name: str, label: str) -> Floats:
    """A figure of one label by prompt, over its seeds: [all prompts], NaN where it has none."""
    samples, timed = figures.of(label), name == "latency_s"
    if timed:  # as in ``speedup``: what was timed otherwise than its baseline's is left out
        samples &= figures.comparable | (figures.paired < 0)
    top, bottom = figures.of_prompts(name, samples)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(bottom > 0, top / bottom, np.nan)
    return np.where(values > 0, values, np.nan) if timed else values
