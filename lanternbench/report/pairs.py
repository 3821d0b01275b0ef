"""Methods against each other, prompt by prompt: how far apart, and whether that may be chance."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np

from lanternbench.analysis.summary import Floats, bootstrap_ratios, holm, paired_tests
from lanternbench.report.columns import MISSING, metric_column
from lanternbench.report.load import Row, Run, iter_samples, measured
from lanternbench.report.tables import markdown

PAIR_TITLES = ["figure", "method", "against", "prompts", "difference", "95 %", "p"]
FLIPS = 100_000  # sign patterns: the least p before its correction is 1 / FLIPS
SPEED, TAU = "speed", "accept_len"
INTRO = (
    "Each line compares a method with another on the prompts that both have: the difference of τ or of a metric, and "
    "for speed how many times as fast, with 95 % bootstrap intervals over prompts. p is that of the two-sided paired "
    "permutation test (of latencies' logarithms), corrected for the number of pairs by Holm's method."
)


def pair_table(rows: list[Row]) -> str:
    """``pair_rows`` as Markdown."""
    return markdown(PAIR_TITLES, [pair_cells(row) for row in rows], [False] * 3 + [True] * 4)


def pair_cells(row: Row) -> list[str]:
    """A row as text: figure, the two methods, prompts, difference, its interval, p."""
    title = {SPEED: "speed", TAU: "τ"}.get(row["figure"]) or metric_column(row["figure"]).title
    form = "{:.2f}×" if row["figure"] == SPEED else "{:+.3g}"
    low, high = row["lo"], row["hi"]
    bounds = MISSING if low is None else f"[{form.format(low)}, {form.format(high)}]".replace("×", "")
    p = "< 0.001" if row["p"] < 0.001 else f"{row['p']:.3f}"
    return [title, row["method"], row["against"], str(row["prompts"]), form.format(row["value"]), bounds, p]


def pair_rows(run: Run) -> list[Row]:
    """A row per figure and pair of methods of a run that share two prompts or more, in the order of its table.

    "value" is method − against, or for speed the ratio of their total latencies; "p" is adjusted within the figure.
    """
    found = _by_prompt(sample for sample in iter_samples(run.folder / "samples.jsonl") if sample)
    labels = [row["label"] for row in run.rows]
    return [row for figure, values in found.items() for row in _compared(figure, values, labels)]


def _compared(figure: str, values: dict[str, dict[str, float]], labels: list[str]) -> list[Row]:
    prompts = sorted({prompt for own in values.values() for prompt in own})
    table = {label: np.array([values[label].get(p, np.nan) for p in prompts]) for label in labels if label in values}
    pairs = [
        (method, against, here)
        for against, method in combinations(table, 2)
        if (here := np.isfinite(table[method]) & np.isfinite(table[against])).sum() > 1
    ]
    if not pairs:
        return []

    def columns(which: int, scale=lambda x: x) -> Floats:
        return np.stack([np.where(pair[2], scale(table[pair[which]]), 0.0) for pair in pairs], 1)

    shared = np.stack([here for *_, here in pairs], 1).astype(np.float64)
    if figure == SPEED:
        intervals = bootstrap_ratios(columns(1), columns(0))
        tested = columns(1, np.log) - columns(0, np.log)
    else:
        tested = columns(0) - columns(1)
        intervals = bootstrap_ratios(tested, shared)
    rows = []
    for (method, against, here), interval, p in zip(pairs, intervals, holm(paired_tests(tested, FLIPS)), strict=True):
        value, low, high = interval or (None, None, None)
        rows.append(
            {
                "figure": figure,
                "method": method,
                "against": against,
                "prompts": int(here.sum()),
                "value": value,
                "lo": low,
                "hi": high,
                "p": float(p),
            }
        )
    return rows


def _by_prompt(samples: Iterable[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """Figure -> label -> prompt -> its value, the mean over seeds."""
    sums: dict[str, dict[str, dict[str, list[float]]]] = {SPEED: {}, TAU: {}}

    def add(figure: str, label: str, prompt: str, above: float, below: float) -> None:
        both = sums.setdefault(figure, {}).setdefault(label, {}).setdefault(prompt, [0.0, 0.0])
        both[0], both[1] = both[0] + above, both[1] + below

    for one in map(measured, samples):
        label, (prompt, _) = one["label"], one["pair"]
        if one["seconds"]:
            add(SPEED, label, prompt, one["seconds"], 1)
        if label != "ar" and one["steps"]:
            add(TAU, label, prompt, one["tokens"], one["steps"])
        for name, value in one["metrics"].items():
            add(name, label, prompt, value, 1)
    return {
        figure: {
            label: {prompt: above / below for prompt, (above, below) in own.items()} for label, own in labels.items()
        }
        for figure, labels in sums.items()
    }
