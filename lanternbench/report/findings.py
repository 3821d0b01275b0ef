"""The findings of a run: its methods against each other, prompt by prompt, and sentences that
follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeVar

import numpy as np

from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.margins import MarginTest, detectable
from lanternbench.measure.statistics import (
    ALPHA,
    FLIPS,
    LOOKS,
    Estimate,
    Floats,
    bootstrap_ratios,
    draws,
    holm_in_two,
    paired_tests,
    prompts_needed,
)
from lanternbench.measure.summary import Row
from lanternbench.notes import Note, headlines
from lanternbench.report.columns import COLUMN, MISSING, metric_column
from lanternbench.report.load import Contents, Run, View
from lanternbench.report.tables import Cell, Table, table_of
from lanternbench.settings import ReportSpec
from lanternbench.utils.text import one_line

WIDTH = 1.96  # standard errors from the value to the end of a 95 % interval
SPEED, TAU = "speed", "accept_len"
TEXTS = ("figure", "method", "against", "conclusion")  # columns of tables that hold words
INTRO = (
    "Each line compares a method with another on the prompts that both have: the difference of τ"
    " or of a metric, and for speed how many times as fast, with 95 % bootstrap intervals over"
    " prompts. p is that of the two-sided paired permutation test (of latencies' logarithms),"
    " corrected by Holm's method: for the number of methods if they are compared with ar, and for"
    " the number of all other pairs if they are compared with each other."
)
NOISE = {
    "independent": " Every method drew with noise of its own.",
    "shared": " All methods drew with the same noise, so that differences are of paired images.",
}


def pair_intro(runs: Sequence[Run]) -> str:
    """Return what the lines of the comparison mean."""
    noise = dict.fromkeys(run.record.config.noise for run in runs)
    return INTRO + "".join(NOISE[one] for one in noise)


MARGIN_INTRO = (
    "Each line tests whether a method is worse than ar by the margin or more, by a one-sided paired"
    " t test over prompts. The bounds are one-sided 95 % bounds of the difference, positive if the"
    " method is better; p is corrected by Holm's method for the number of lines. Not worse: p <"
    " 0.05. Worse: the test of the opposite hypothesis. Undecided: no difference was found, and"
    " none of the size of the margin was ruled out."
    " A figure of whole sets of images, such as FID, rests on 200 bootstrap resamplings of the"
    " prompts, the same for both methods: an approximation, because repeated images move such"
    " figures; most of that cancels in the difference of equal counts."
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
        return "speed" if self.figure == SPEED else metric_column(self.figure).title

    @property
    def is_significant(self) -> bool:
        return self.p < ALPHA

    @property
    def has_baseline(self) -> bool:
        return BASELINE in (self.method, self.against)

    def cells(self) -> dict[str, Cell]:
        value = MISSING
        bounds = MISSING
        form = ".2f" if self.figure == SPEED else "+.3g"
        if self.value is not None:
            value = f"{self.value:{form}}" + ("×" if self.figure == SPEED else "")
        if self.lo is not None and self.hi is not None:
            bounds = f"[{self.lo:{form}}, {self.hi:{form}}]"
        return {
            "figure": Cell(self.title),
            "method": Cell(self.method),
            "against": Cell(self.against),
            "prompts": Cell(str(self.prompts), self.prompts),
            "difference": Cell(value, "" if self.value is None else self.value),
            "95 %": Cell(bounds),
            "p": Cell(p_text(self.p), self.p),
        }


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def pair_table(pairs: Sequence[Pair]) -> Table:
    """Return pairs as a table: figure, the two methods, prompts, difference, its interval, p."""
    return table_of([pair.cells() for pair in pairs], TEXTS)


@dataclass(frozen=True)
class ShownRun(Run):
    """A run in a report, whose rows are those shown: its samples, the displayed names of its
    methods by label, its methods compared in pairs and with margins, and its findings.
    """

    contents: Contents
    names: dict[str, str]
    pairs: list[Pair]
    margins: list[MarginTest]
    answer: list[str]


Tested = TypeVar("Tested", Pair, MarginTest)


def shown_run(run: Run, contents: Contents, view: View, spec: ReportSpec) -> ShownRun:
    """Return a run as a report shows it.  p-values are corrected for all of its methods, also
    those not shown.
    """
    looks = LOOKS if run.record.config.until_told_apart else 1
    pairs = compared(contents.figures, [row.label for row in run.rows], looks)
    tests = judged_by_margins(run, contents, spec.not_worse)
    shown = view.chosen(run.rows)
    names = view.labels(shown)
    spoken = names | {BASELINE: BASELINE}  # sentences and tests find the baseline by its label
    margins = named(tests, spoken)
    rows = [row.model_copy(update={"label": spoken[row.label]}) for row in shown]
    sentences = answer(rows, named(pairs, spoken), run.notes, margins, spec.budget)
    return ShownRun(
        run.folder,
        run.record,
        shown,
        run.notes,
        contents,
        names,
        named(pairs, names),
        margins,
        sentences,
    )


def judged_by_margins(
    run: Run, contents: Contents, asked: Mapping[str, float]
) -> list[MarginTest]:
    """Return the tests of a run's methods against the margins that are asked for, else its own.
    Raises UserError as ``margins.margin_tests``.
    """
    sizes = asked or run.record.config.not_worse
    if not sizes:
        return []
    from lanternbench.report.margins import margin_tests  # loads torch

    return margin_tests(run, contents, sizes, must_judge=bool(asked))


def named(tests: Sequence[Tested], names: Mapping[str, str]) -> list[Tested]:
    """Return the tests of methods that have a name, by these names."""
    return [
        test._replace(method=names[test.method], against=names[test.against])
        for test in tests
        if test.method in names and test.against in names
    ]


def compared(figures: Figures, labels: Sequence[str], looks: int = 1) -> list[Pair]:
    """Return every figure and pair of ``labels`` that share two prompts or more.

    ``looks``: the number of times that the run looked at its p-values before it ended.
    """
    labels = [label for label in dict.fromkeys(labels) if label in figures.labels]
    # the accepted length of the baseline is 1 by definition
    drafting = [label for label in labels if label != BASELINE]
    pairs = compared_by(SPEED, figures, labels, looks)
    pairs += compared_by(TAU, figures, drafting, looks)
    for metric in figures.metrics:
        pairs += compared_by(metric, figures, labels, looks)
    return pairs


def compared_by(figure: str, figures: Figures, labels: Sequence[str], looks: int) -> list[Pair]:
    name = "latency_s" if figure == SPEED else figure
    values = {label: figures.values(name, label) for label in labels}
    pairs = comparable(values)
    if not pairs:
        return []
    new = np.stack([values[method] for method, _ in pairs], 1)  # [prompts, pairs]
    old = np.stack([values[against] for _, against in pairs], 1)
    prompts = np.isfinite(new + old).sum(0)
    estimates, p = compared_values(figure, new, old)
    p = holm_in_two(p, [BASELINE in pair for pair in pairs], looks)
    return [
        Pair(figure, *pairs[i], int(prompts[i]), *estimate[:3], float(p[i]))
        for i, estimate in enumerate(estimates)
    ]


def comparable(values: Mapping[str, Floats]) -> list[tuple[str, str]]:
    """Return the pairs of labels whose values [prompts] share two prompts or more."""
    pairs = []
    for against, method in combinations(values, 2):
        if np.isfinite(values[method] + values[against]).sum() > 1:
            pairs.append((method, against))
    return pairs


def compared_values(figure: str, new: Floats, old: Floats) -> tuple[list[Estimate], Floats]:
    """Return how many times as fast new latencies [prompts, pairs] are, or the mean difference of
    other values, and p-values [pairs].
    """
    top = new - old
    bottom = np.ones_like(top)
    differences = top
    if figure == SPEED:
        top = old
        bottom = new
        differences = np.log(old) - np.log(new)
    shared = np.isfinite(new + old)
    top = np.where(shared, top, 0.0)
    bottom = np.where(shared, bottom, 0.0)
    estimates = bootstrap_ratios(top, bottom, draws(len(new)))
    differences = np.where(shared, differences, 0.0)
    return estimates, paired_tests(differences, draws(len(new), FLIPS))


def answer(
    rows: Sequence[Row],
    pairs: Sequence[Pair],
    notes: Sequence[Note],
    margins: Sequence[MarginTest],
    budget: float,
) -> list[str]:
    """Return the sentences of one run: whether it is fit to be quoted, the fastest method, its
    cost, and methods without a difference.

    ``pairs``: of the run's methods, with p-values corrected for their number; ``notes``: the
    run's.
    """
    is_unfit = any(note.kind == "unfit" for note in notes)
    doubt = " (preliminary)" if is_unfit else ""
    sentences = headlines(notes)
    timed = [row for row in rows if row.label != BASELINE and row.value("speedup") is not None]
    if timed:
        sentences += fastest_methods(timed, pairs, budget, doubt)
        sentences.append(significant_speeds(pairs))
    else:
        sentences.append("No speedup was measured: methods are compared by accepted length alone.")
    sentences.append(significant_qualities(pairs))
    sentences += margin_sentences(margins)
    warnings = [note for note in notes if note.kind in ("unfit", "warning")]
    noisy = [note.text for note in warnings if note.metric == "latency_s"]
    if not noisy and any(row.value("robust_latency_s") is not None for row in rows):
        sentences.append("The timing shows no sign of disturbance.")
    return [sentence for sentence in sentences + noisy if sentence]


def fastest_methods(
    timed: Sequence[Row], pairs: Sequence[Pair], budget: float, doubt: str
) -> list[str]:
    """Return sentences on the fastest lossless and relaxed methods."""
    lossless = [row for row in timed if row.lossless]
    relaxed = [row for row in timed if row.lossless is False]
    affordable = []
    for row in timed:
        loss = row.value("fidelity_loss")
        if not row.lossless and loss is not None and loss <= budget:
            affordable.append(row)
    sentences = []
    if lossless:
        sentences.append(fastest(f"Fastest lossless method{doubt}", lossless, pairs))
    else:
        sentences.append("No lossless method was timed with ar.")
    kind = f"Fastest relaxed method within a fidelity loss of {budget:g}{doubt}"
    if affordable:
        sentences.append(fastest(kind, affordable, pairs))
    elif relaxed:
        sentences.append(f"{kind}: none.")
    return sentences


def fastest(kind: str, rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    """Name the fastest row, whether the tests distinguish it from ar, and which others may be as
    fast.
    """
    distinct = [
        {pair.method, pair.against}
        for pair in pairs
        if pair.figure == SPEED and pair.is_significant
    ]
    best = max(rows, key=lambda row: row.value("speedup") or 0.0)
    cost = COLUMN["fidelity_loss"].value(best)
    loss = "" if best.lossless or cost == MISSING else f", fidelity loss {cost}"
    speed = COLUMN["speedup"].cell(best)
    sentence = f"{kind}: {one_line(best.label, 60)}, {speed} against ar{loss}."
    if {best.label, BASELINE} not in distinct:
        return f"{sentence} That may be chance: the tests do not distinguish it from ar."
    equals = [row.label for row in rows if {best.label, row.label} not in distinct]
    equals.remove(best.label)
    if equals:
        return f"{sentence} Not statistically distinguishable from it: {listed(equals)}."
    return sentence


def significant_speeds(pairs: Sequence[Pair]) -> str:
    """Say how many pairs of methods the tests distinguish in speed."""
    speed = [pair for pair in pairs if pair.figure == SPEED]
    if not speed:
        return "Too few prompts to distinguish any methods."
    with_baseline = [pair for pair in speed if pair.has_baseline]
    others = [pair for pair in speed if not pair.has_baseline]
    counts = []
    if with_baseline:
        counts.append(f"{count_of(with_baseline)} methods from ar")
    if others:
        counts.append(f"{count_of(others)} other pairs of methods from each other")
    prompts = max(pair.prompts for pair in speed)
    sentence = f"Over {prompts} prompts, the tests distinguish the speed of {' and '.join(counts)}"
    sentence = f"{sentence} (p < {ALPHA:g})"
    if all(pair.is_significant for pair in speed):
        return f"{sentence}."
    needed = prompts_needed(len(with_baseline or others))
    if prompts < needed:
        return f"{sentence}: measure {needed} prompts or more."
    return f"{sentence}: more prompts would distinguish more."


def count_of(pairs: Sequence[Pair]) -> str:
    significant = [pair for pair in pairs if pair.is_significant]
    return f"{len(significant)} of {len(pairs)}"


def significant_qualities(pairs: Sequence[Pair]) -> str:
    """Name the methods that differ from ar in a metric."""
    with_baseline = [
        pair for pair in pairs if pair.figure not in (SPEED, TAU) and pair.has_baseline
    ]
    if not with_baseline:
        return ""
    differences = [difference(pair) for pair in with_baseline if pair.is_significant]
    if differences:
        return f"Different from ar in quality: {listed(differences)}."
    largest: dict[str, float] = {}  # difference that would have been found, by metric
    for pair in with_baseline:
        if pair.lo is None or pair.hi is None:
            continue
        error = (pair.hi - pair.lo) / (2 * WIDTH)
        size = detectable(error, len(with_baseline))
        largest[pair.title] = max(size, largest.get(pair.title, 0.0))
    if not largest:
        return "Too few prompts to find differences from ar in quality."
    sizes = [f"{size:.2g} in {title}" for title, size in largest.items()]
    return (
        "No difference from ar in quality was found; these prompts find a difference of"
        f" {listed(sizes)} with a power of 80 %."
    )


def difference(pair: Pair) -> str:
    """Return a method with its difference from ar in a metric."""
    value = pair.value or 0.0
    method = pair.method
    if method == BASELINE:
        method = pair.against
        value = -value
    p = p_text(pair.p)
    if pair.p >= 0.001:
        p = f"= {p}"
    return f"{one_line(method, 60)} ({pair.title} {value:+.3g}, p {p})"


def listed(names: Sequence[str]) -> str:
    *first, last = [one_line(name, 90) for name in names]
    return f"{', '.join(first)} and {last}" if first else last


def margin_table(tests: Sequence[MarginTest]) -> Table:
    """Return tests as a table: figure, the two methods, margin, prompts, difference, its bounds,
    p, conclusion.
    """
    return table_of([_cells(test) for test in tests], TEXTS)


def _cells(test: MarginTest) -> dict[str, Cell]:
    return {
        "figure": Cell(metric_column(test.figure).title),
        "method": Cell(test.method),
        "against": Cell(test.against),
        "margin": Cell(f"{test.margin:g}", test.margin),
        "prompts": Cell(str(test.prompts), test.prompts),
        "difference": Cell(f"{test.difference:+.3g}", test.difference),
        "95 % bounds": Cell(f"[{test.low:+.3g}, {test.high:+.3g}]"),
        "p": Cell(p_text(test.p), test.p),
        "conclusion": Cell(test.sentence),
    }


def margin_sentences(tests: Sequence[MarginTest]) -> list[str]:
    """Return a sentence per metric and conclusion, which names the methods."""
    groups: dict[tuple[str, str], list[MarginTest]] = {}
    for test in tests:
        groups.setdefault((test.figure, test.conclusion), []).append(test)
    return [_sentence(group) for group in groups.values()]


def _sentence(group: Sequence[MarginTest]) -> str:
    first = group[0]
    title = metric_column(first.figure).title
    methods = listed([test.method for test in group])
    if first.conclusion == "not worse":
        return f"Not worse than ar in {title} by more than {first.margin:g} (95 %): {methods}."
    if first.conclusion == "worse":
        return f"Worse than ar in {title} (95 %): {methods}."
    needed = max(test.prompts_needed for test in group)
    return (
        f"Undecided whether worse than ar in {title} by more than {first.margin:g}: {methods};"
        f" about {needed:,} prompts would decide."
    )
