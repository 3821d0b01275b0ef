"""Methods against each other, prompt by prompt: how far apart, and whether that may be chance."""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.statistics import FLIPS, bootstrap_ratios, draws, holm_in_two, paired_tests
from lanternbench.report.columns import MISSING, metric_column
from lanternbench.report.tables import Cell, Table

TITLES = ["figure", "method", "against", "prompts", "difference", "95 %", "p"]
SPEED, TAU = "speed", "accept_len"
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

    @property
    def p_text(self) -> str:
        return "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"

    def cells(self) -> list[Cell]:
        """Figure, the two methods, prompts, difference, its interval, p."""
        form = "{:.2f}×" if self.figure == SPEED else "{:+.3g}"
        names = [Cell(self.title), Cell(self.method), Cell(self.against), Cell(str(self.prompts), self.prompts)]
        value = Cell(MISSING, "") if self.value is None else Cell(form.format(self.value), self.value)
        known = self.lo is not None and self.hi is not None
        bounds = f"[{form}, {form}]".format(self.lo, self.hi).replace("×", "") if known else MISSING
        return [*names, value, Cell(bounds), Cell(self.p_text, self.p)]


def pair_table(pairs: list[Pair]) -> Table | None:
    """Pairs as a table; None without any."""
    heads = [(title, "", title in ("figure", "method", "against")) for title in TITLES]
    return Table(heads, [pair.cells() for pair in pairs], tall=True) if pairs else None


def compared(figures: Figures, labels: list[str], looks: int = 1) -> list[Pair]:
    """Every figure and pair of ``labels`` that share two prompts or more; ``looks``: of a run until told apart."""
    return [pair for figure in (SPEED, TAU, *figures.metrics) for pair in _pairs(figure, figures, labels, looks)]


def _pairs(figure: str, figures: Figures, labels: list[str], looks: int) -> list[Pair]:
    labels = [label for label in dict.fromkeys(labels) if label in figures.labels]
    if figure == TAU:
        labels = [label for label in labels if label != BASELINE]  # 1 by definition
    name = "latency_s" if figure == SPEED else figure
    values = {label: figures.values(name, label) for label in labels}
    pairs = [(method, against) for against, method in combinations(labels, 2)]
    pairs = [(m, a) for m, a in pairs if np.isfinite(values[m] + values[a]).sum() > 1]
    if not pairs:
        return []
    new, old = (np.stack([values[pair[side]] for pair in pairs], 1) for side in (0, 1))  # [prompts, pairs]
    shared = np.isfinite(new + old)
    top, bottom = (old, new) if figure == SPEED else (new - old, np.ones_like(new))
    tested = np.log(old) - np.log(new) if figure == SPEED else top
    top, bottom, tested = (np.where(shared, part, 0.0) for part in (top, bottom, tested))
    estimates = bootstrap_ratios(top, bottom, draws(len(top)))
    first = [BASELINE in pair for pair in pairs]
    adjusted = holm_in_two(paired_tests(tested, draws(len(tested), FLIPS)), first, looks)
    return [
        Pair(figure, method, against, int(count), estimate.value, estimate.lo, estimate.hi, float(p))
        for (method, against), count, estimate, p in zip(pairs, shared.sum(0), estimates, adjusted, strict=True)
    ]
