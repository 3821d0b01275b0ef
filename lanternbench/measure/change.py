"""Changes of a method's figures between two runs, over the prompts that both have.

A figure is a ratio R = Σ top / Σ bottom.  To first order its change is a sum over prompts, of which prompt i adds
(topᵢ − R·bottomᵢ) / mean(bottom) / n: its interval is Student's t of these.  A bootstrap's interval cannot leave the
range of the values seen, and of four prompts all fall by chance in 6 % of comparisons; t holds its level from two on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lanternbench.measure.figures import AGAINST_BASELINE, BASELINE, Figures
from lanternbench.measure.statistics import ALPHA, Floats, student_t

DEFINED = {*AGAINST_BASELINE, "accept_len", "step_compression", "fidelity_loss"}  # figures that ar has by definition
Interval = tuple[float, float, float]  # value, lower and upper bound


class Change(NamedTuple):
    """``relative``: new / old − 1 with its interval, None where a figure is not above 0; ``difference``: new − old."""

    label: str
    figure: str
    prompts: int
    old: float
    new: float
    relative: Interval | None
    difference: Interval


class Unjudged(NamedTuple):
    """A figure of a method that has no change, and why; ``lost``: the old run has it, and the new one does not."""

    label: str
    figure: str
    why: str
    lost: bool


def changes(old: Figures, new: Figures, names: list[str], tests: int = 1) -> tuple[list[Change], list[Unjudged]]:
    """The figures ``names`` of all methods of either run: their changes, and those of which one run has no value.

    tests: how many intervals are to hold together with 95 % (Bonferroni).
    """
    compared, left = [], []
    for label in dict.fromkeys([*old.labels, *new.labels]):
        for name in names:
            if label == BASELINE and name in DEFINED:
                continue
            before, after = _by_prompt(old, label, name), _by_prompt(new, label, name)
            shared = [prompt for prompt in before if prompt in after]
            if len(shared) > 1:
                sums = np.array([[*before[p], *after[p]] for p in shared])
                compared.append(Change(label, name, len(shared), *_change(sums, tests)))
            elif before or after:
                left.append(Unjudged(label, name, _why(label, old, new, before, after), bool(before and not after)))
    return compared, left


def _why(label: str, old: Figures, new: Figures, before: dict, after: dict) -> str:
    for run, figures, known in (("old", old, before), ("new", new, after)):
        if label not in figures.labels:
            return f"not in the {run} run"
        if not known:
            return f"not measured in the {run} run"
    return "no shared prompt" if not before.keys() & after.keys() else "one shared prompt"


def _change(sums: Floats, tests: int) -> tuple[float, float, Interval | None, Interval]:
    """(old, new, relative, difference) from sums [prompts, 4]: top and bottom of the old run, and of the new one."""
    n = len(sums)
    old, new = (float(sums[:, i].sum() / sums[:, i + 1].sum()) for i in (0, 2))
    moved_old, moved_new = (
        (sums[:, i] - value * sums[:, i + 1]) / sums[:, i + 1].mean() for i, value in ((0, old), (2, new))
    )
    t = student_t(n - 1, ALPHA / tests)

    def half_width(moved: Floats) -> float:
        return t * math.sqrt(float(moved @ moved) / (n * (n - 1)))

    half = half_width(moved_new - moved_old)
    difference = (new - old, new - old - half, new - old + half)
    if old <= 0 or new <= 0:
        return old, new, None, difference
    ratio, spread = new / old, math.exp(min(half_width(moved_new / new - moved_old / old), 700.0))
    return old, new, (ratio - 1, ratio / spread - 1, ratio * spread - 1), difference


def _by_prompt(figures: Figures, label: str, name: str) -> dict[str, tuple[float, float]]:
    """(top, bottom) of a figure of one label by prompt id, over its seeds."""
    top, bottom = figures.of_prompts(name, figures.of(label))
    return {prompt: (top[i], bottom[i]) for prompt, i in figures.prompts.items() if bottom[i] > 0}
