"""Methods against each other, prompt by prompt: how far apart, and whether that may be chance."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.statistics import Floats, bootstrap_ratios, draws, holm_in_two, paired_tests
from lanternbench.measure.told_apart import FLIPS, values_by_prompt
from lanternbench.report.columns import MISSING, metric_column
from lanternbench.report.tables import markdown

TITLES = ["figure", "method", "against", "prompts", "difference", "95 %", "p"]
SPEED, TAU = "speed", "accept_len"
FIGURES = {SPEED: "latency_s", TAU: "accept_len"}  # and every metric
INTRO = (
    "Each line compares a method with another on the prompts that both have: the difference of τ or of a metric, and "
    "for speed how many times as fast, with 95 % bootstrap intervals over prompts. p is that of the two-sided paired "
    "permutation test (of latencies' logarithms), corrected by Holm's method for the number of methods where they are "
    "compared with ar, and for the number of all other pairs where they are compared with each other."
)


class Pair(NamedTuple):
    """``value``: method − against, for speed the ratio of their total latencies; ``p``: adjusted within its family."""

    figure: str
    method: str
    against: str
    prompts: int
    value: float | None
    lo: float | None
    hi: float | None
    p: float

    @property
    def title(self) -> str:
        return {SPEED: "speed", TAU: "τ"}.get(self.figure) or metric_column(self.figure).title

    def cells(self) -> list[str]:
        """As text: figure, the two methods, prompts, difference, its interval, p."""
        form = "{:.2f}×" if self.figure == SPEED else "{:+.3g}"
        value = MISSING if self.value is None else form.format(self.value)
        known = self.lo is not None and self.hi is not None
        bounds = f"[{form.format(self.lo)}, {form.format(self.hi)}]".replace("×", "") if known else MISSING
        p = "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"
        return [self.title, self.method, self.against, str(self.prompts), value, bounds, p]


def pair_table(pairs: list[Pair]) -> str:
    """Pairs as Markdown."""
    return markdown(TITLES, [pair.cells() for pair in pairs], [False] * 3 + [True] * 4)


def compared(figures: Figures, labels: list[str], looks: int = 1) -> list[Pair]:
    """Every figure and pair of methods that share two prompts or more, in the order of ``labels``.

    looks: of a run that was to go on until its methods are told apart.
    """
    names = FIGURES | {name: name for name in figures.metrics}
    return [pair for figure, name in names.items() for pair in _pairs(figure, name, figures, labels, looks)]


def _pairs(figure: str, name: str, figures: Figures, labels: list[str], looks: int) -> list[Pair]:
    table = {label: values_by_prompt(figures, name, label) for label in labels if label in figures.labels}
    if figure == TAU:
        table.pop(BASELINE, None)  # 1 by definition
    pairs = [
        (method, against, here)
        for against, method in combinations(table, 2)
        if (here := np.isfinite(table[method]) & np.isfinite(table[against])).sum() > 1
    ]
    if not pairs:
        return []

    def columns(labels: list[str], scale=lambda x: x) -> Floats:
        return np.stack([np.where(here, scale(table[label]), 0.0) for label, here in zip(labels, shared)], 1)

    ours, theirs, shared = [m for m, _, _ in pairs], [a for _, a, _ in pairs], [here for *_, here in pairs]
    count = draws(len(shared[0]))
    if figure == SPEED:
        estimates = bootstrap_ratios(columns(theirs), columns(ours), count)
        tested = columns(theirs, np.log) - columns(ours, np.log)
    else:
        tested = columns(ours) - columns(theirs)
        estimates = bootstrap_ratios(tested, np.stack(shared, 1).astype(np.float64), count)
    first = [BASELINE in (method, against) for method, against, _ in pairs]
    adjusted = holm_in_two(paired_tests(tested, draws(len(tested), FLIPS)), first, looks)
    return [
        Pair(figure, method, against, int(here.sum()), estimate.value, estimate.lo, estimate.hi, float(p))
        for (method, against, here), estimate, p in zip(pairs, estimates, adjusted, strict=True)
    ]
