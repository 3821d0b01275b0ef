"""Changes of a method's figures between two runs, over the prompts that both have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lanternbench.analysis.figures import Figures
from lanternbench.analysis.statistics import Floats, draws, resampled


class Change(NamedTuple):
    """``relative``: new / old − 1 with its 95 % interval; ``difference``: new − old with its own."""

    label: str
    figure: str
    prompts: int
    old: float
    new: float
    relative: tuple[float, float, float] | None
    difference: tuple[float, float, float]


def changes(old: Figures, new: Figures, names: list[str]) -> list[Change]:
    """Every figure in ``names`` of every label that both runs have, where two prompts or more are shared."""
    return [
        found
        for label in old.labels
        if label in new.labels
        for name in names
        if (found := _change(old, new, label, name)) is not None
    ]


def _change(old: Figures, new: Figures, label: str, name: str) -> Change | None:
    before, after = _by_prompt(old, label, name), _by_prompt(new, label, name)
    shared = [prompt for prompt in before if prompt in after]
    if len(shared) < 2:
        return None
    sums = np.array([[*before[p], *after[p]] for p in shared])  # [prompts, 4]
    top_old, bottom_old, top_new, bottom_new = resampled(sums, draws(len(shared))).T
    first, second = (sums[:, i].sum() / sums[:, i + 1].sum() for i in (0, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        olds, news = top_old / bottom_old, top_new / bottom_new
        relative = _interval(second / first - 1, news / olds - 1) if first > 0 else None
    difference = _interval(second - first, news - olds)
    return Change(label, name, len(shared), float(first), float(second), relative, difference)


def _interval(value: float, resampled: Floats) -> tuple[float, float, float]:
    lo, hi = np.percentile(resampled[np.isfinite(resampled)], [2.5, 97.5])
    return float(value), float(lo), float(hi)


def _by_prompt(figures: Figures, label: str, name: str) -> dict[str, tuple[float, float]]:
    """(top, bottom) of a figure of one label by prompt id, over its seeds."""
    top, bottom = figures.of_prompts(name, figures.of(label))
    return {prompt: (top[i], bottom[i]) for prompt, i in figures.prompts.items() if bottom[i] > 0}
