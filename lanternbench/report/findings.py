"""The findings of a run: its methods against each other, prompt by prompt, and what follows as
sentences.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from lanternbench.measure import statistics
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.statistics import (
    ALPHA,
    bootstrap_ratios,
    draws,
    holm_in_two,
    paired_tests,
    prompts_needed,
)
from lanternbench.measure.summary import Row
from lanternbench.notes import Note, preliminary
from lanternbench.report.columns import COLUMN, MISSING, metric_column
from lanternbench.report.tables import Cell, Table
from lanternbench.utils.text import one_line

BUDGET = 0.1  # fidelity loss: total variation per token, a mean
SPEED, TAU = "speed", "accept_len"
INTRO = (
    "Each line compares a method with another on the prompts that both have: the difference of τ or of a metric, and "
    "for speed how many times as fast, with 95 % bootstrap intervals over prompts. p is that of the two-sided paired "
    "permutation test (of latencies' logarithms), corrected by Holm's method for the number of methods where they are "
    "compared with ar, and for the number of all other pairs where they are compared with each other."
)


class Pair(NamedTuple):
    """``value``: method − against, for speed the ratio of their total latencies; ``p``: adjusted
    within its family.
    """

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


def pair_table(pairs: list[Pair]) -> Table | None:
    """Pairs as a table: figure, the two methods, prompts, difference, its interval, p; None
    without any.
    """
    heads = [(title, "", True) for title in ("figure", "method", "against")]
    heads += [(title, "", False) for title in ("prompts", "difference", "95 %", "p")]
    rows = []
    for pair in pairs:
        form = "{:.2f}×" if pair.figure == SPEED else "{:+.3g}"
        value = (
            Cell(MISSING, "") if pair.value is None else Cell(form.format(pair.value), pair.value)
        )
        known = pair.lo is not None and pair.hi is not None
        bounds = (
            f"[{form}, {form}]".format(pair.lo, pair.hi).replace("×", "") if known else MISSING
        )
        names = map(Cell, (pair.title, pair.method, pair.against))
        rows.append(
            [
                *names,
                Cell(str(pair.prompts), pair.prompts),
                value,
                Cell(bounds),
                Cell(pair.p_text, pair.p),
            ]
        )
    return Table(heads, rows, tall=True) if pairs else None


def compared(figures: Figures, labels: list[str], looks: int = 1) -> list[Pair]:
    """Every figure and pair of ``labels`` that share two prompts or more; ``looks``: of a run
    until told apart.
    """
    return [
        pair
        for figure in (SPEED, TAU, *figures.metrics)
        for pair in _pairs(figure, figures, labels, looks)
    ]


def _pairs(figure: str, figures: Figures, labels: list[str], looks: int) -> list[Pair]:
    labels = [label for label in dict.fromkeys(labels) if label in figures.labels]
    if figure == TAU:
        labels = [label for label in labels if label != BASELINE]  # 1 by definition
    values = {
        label: figures.values("latency_s" if figure == SPEED else figure, label)
        for label in labels
    }
    pairs = [(method, against) for against, method in combinations(labels, 2)]
    pairs = [(m, a) for m, a in pairs if np.isfinite(values[m] + values[a]).sum() > 1]
    if not pairs:
        return []
    # [prompts, pairs]
    new, old = (np.stack([values[pair[side]] for pair in pairs], 1) for side in (0, 1))
    shared = np.isfinite(new + old)
    top, bottom = (old, new) if figure == SPEED else (new - old, np.ones_like(new))
    tested = np.log(old) - np.log(new) if figure == SPEED else top
    top, bottom, tested = (np.where(shared, part, 0.0) for part in (top, bottom, tested))
    estimates = bootstrap_ratios(top, bottom, draws(len(top)))
    first = [BASELINE in pair for pair in pairs]
    adjusted = holm_in_two(
        paired_tests(tested, draws(len(tested), statistics.FLIPS)), first, looks
    )
    return [
        Pair(
            figure, method, against, int(count), estimate.value, estimate.lo, estimate.hi, float(p)
        )
        for (method, against), count, estimate, p in zip(
            pairs, shared.sum(0), estimates, adjusted, strict=True
        )
    ]


def answer(
    rows: Sequence[Row], pairs: Sequence[Pair], notes: Sequence[Note], budget: float = BUDGET
) -> list[str]:
    """The sentences of one run: is it fit to be quoted, the fastest method, its cost, and methods
    without a difference.

    pairs: of the run's methods, with p-values corrected for their number; notes: the run's.
    """
    drafting = [row for row in rows if row.label != BASELINE and row.value("speedup") is not None]
    sentences = [preliminary(notes)]
    doubt = " (preliminary)" if sentences[0] else ""
    if drafting:
        lossless = _fastest(
            f"Fastest lossless method{doubt}", [row for row in drafting if row.lossless], pairs
        )
        losses = [(row, row.value("fidelity_loss")) for row in drafting if not row.lossless]
        close = [row for row, loss in losses if loss is not None and loss <= budget]
        name = f"Fastest relaxed method within a fidelity loss of {budget:g}{doubt}"
        none = f"{name}: none." if any(row.lossless is False for row in drafting) else ""
        sentences.append(lossless or "No lossless method was timed beside ar.")
        sentences += [_fastest(name, close, pairs) or none, _told_apart(pairs)]
    else:
        sentences.append("No speedup was measured: methods are compared by accepted length alone.")
    sentences.append(_quality(pairs))
    disturbed = [
        note.text
        for note in notes
        if note.metric == "latency_s" and note.kind in ("unfit", "warning")
    ]
    if not disturbed and any(row.value("robust_latency_s") is not None for row in rows):
        sentences.append("The clock shows no sign of a disturbance.")
    return [sentence for sentence in sentences + disturbed if sentence]


def _fastest(what: str, rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    """The fastest of some rows, with what the tests say of it and ar, and which others may be as
    fast.
    """
    if not rows:
        return ""
    apart = [
        {pair.method, pair.against} for pair in pairs if pair.figure == SPEED and pair.p < ALPHA
    ]
    best = max(rows, key=lambda row: row.value("speedup") or 0.0)
    cost = COLUMN["fidelity_loss"].value(best)
    loss = "" if best.lossless or cost == MISSING else f", fidelity loss {cost}"
    sentence = (
        f"{what}: {one_line(best.label, 60)}, {COLUMN['speedup'].cell(best)} against ar{loss}."
    )
    if {best.label, BASELINE} not in apart:
        return f"{sentence} That may be chance: the tests do not tell it from ar."
    alike = [row.label for row in rows if row is not best and {best.label, row.label} not in apart]
    return f"{sentence} Not told apart from it: {_listed(alike)}." if alike else sentence


def _told_apart(pairs: Sequence[Pair]) -> str:
    """How many pairs of methods the tests tell apart in speed."""
    speed = [pair for pair in pairs if pair.figure == SPEED]
    if not speed:
        return "Too few prompts to tell any methods apart."
    first = [pair for pair in speed if BASELINE in (pair.method, pair.against)]
    others = [pair for pair in speed if pair not in first]
    families = {"methods from ar": first, "pairs of them from each other": others}
    counts = [
        f"{sum(p.p < ALPHA for p in each)} of {len(each)} {what}"
        for what, each in families.items()
        if each
    ]
    prompts, needed = max(pair.prompts for pair in speed), prompts_needed(len(first or others))
    fix = (
        f": measure {needed} prompts or more"
        if prompts < needed
        else ": more prompts tell more apart"
    )
    end = "" if all(pair.p < ALPHA for pair in speed) else fix
    return f"The tests over {prompts} prompts tell apart in speed {' and '.join(counts)} (p < {ALPHA:g}){end}."


def _quality(pairs: Sequence[Pair]) -> str:
    """Which methods differ from ar in a metric."""
    against = [
        pair
        for pair in pairs
        if pair.figure not in (SPEED, TAU) and BASELINE in (pair.method, pair.against)
    ]
    if not against:
        return ""
    each = []
    for pair in against:
        if pair.p < ALPHA:
            other, sign = (pair.method, 1) if pair.against == BASELINE else (pair.against, -1)
            value = MISSING if pair.value is None else f"{sign * pair.value:+.3g}"
            p = pair.p_text if pair.p < 0.001 else f"= {pair.p_text}"
            each.append(f"{one_line(other, 60)} ({pair.title} {value}, p {p})")
    if each:
        return f"Told apart from ar in quality: {_listed(each)}."
    return f"No method is told apart from ar in {_listed(list(dict.fromkeys(pair.title for pair in against)))}."


def _listed(names: Sequence[str]) -> str:
    names = [one_line(name, 90) for name in names]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
