"""The summary of a run: a row per method, every figure with its interval, and what a reader must know."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lanternbench import metrics
from lanternbench.measure import statistics
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.run_notes import RANDOM_NOTE, counts, run_notes
from lanternbench.measure.samples import MEASURED
from lanternbench.measure.statistics import Estimate, bootstrap_ratios, draws, paired_test
from lanternbench.measure.steps import acceptance
from lanternbench.measure.summaries import Row, Summary
from lanternbench.notes import Note

LOSSLESS = 1e-3  # the most fidelity loss that float error explains
Sets = dict[str, dict[str, Estimate]]  # label -> figures of its whole set of images


def summarise(figures: Figures, run: Mapping[str, Any], sets: Sets | None = None, seed: int = 0) -> Summary:
    """The summary of a run by the figures of its samples; what is missing has no value, and is never 0.

    run: ``run.json``; its "methods" ({"label", "lossless"}) give the order of rows.
    sets: figures of a whole label, such as {"ar": {"fid-tiny": Estimate(31.2, n=64)}}.
    """
    sets = sets or {}
    whole = sorted({name for values in sets.values() for name in values} - figures.metrics.keys())
    claims = {str(method.get("label")): method.get("lossless") for method in run.get("methods") or []}
    order = sorted(dict.fromkeys([*claims, *figures.labels]), key=lambda label: label != BASELINE)
    rows, notes = [], list(run_notes(figures, run))
    for label in order:
        if label not in figures.labels:
            continue
        row = _row(figures, label, run, {name: sets.get(label, {}).get(name, Estimate()) for name in whole}, seed)
        # a method keeps the distribution by what it claims, unless samples show a loss
        claimed, loss = claims.get(label), row.value("fidelity_loss")
        wrong = bool(claimed and loss is not None and loss > LOSSLESS)
        rows.append(replace(row, lossless=False if wrong else claimed))
        if wrong:
            text = f"{label} promises to be lossless, but its samples show a loss."
            notes.append(Note("warning", "fidelity_loss", text))
    if any(metrics.column(name).random for name in [*figures.metrics, *whole]):
        notes.append(RANDOM_NOTE)
    return Summary(rows, notes, whole, suite=(run.get("config") or {}).get("suite"))


def kept_sets(figures: Figures, summary: Summary) -> Sets:
    """The summary's figures of whole sets of images, where these are the same still."""
    now = counts(figures)
    return {
        row.label: {name: row.figures[name] for name in summary.sets if name in row.figures}
        for row in summary.rows
        if row.n == now.get(row.label)
    }


def renewed(figures: Figures, run: Mapping[str, Any], old: Summary) -> Summary:
    """The summary of a run that went on after ``old`` was written: of the samples that are there now."""
    sets = kept_sets(figures, old)
    new = summarise(figures, run, sets, int((run.get("config") or {}).get("seed") or 0))
    stale = {None, "speedup", "latency_s", "fidelity_loss", *old.sets}.difference(*sets.values())
    text = f"The run went on after it was summed up: all figures here are of its {len(figures)} samples now."
    notes = dict.fromkeys([*new.notes, *(note for note in old.notes if note.metric not in stale)])
    return replace(new, notes=[*notes, Note("info", None, text)], costs=old.costs, reference=old.reference)


def _row(figures: Figures, label: str, run: Mapping[str, Any], whole: dict[str, Estimate], seed: int) -> Row:
    """One row; every interval of the row rests on the same resamplings of prompts."""
    of_label, names = figures.of(label), [*MEASURED, *sorted(figures.metrics)]
    top, bottom = figures.by_prompt(names, of_label)
    estimates = {}
    for name, estimate in zip(names, bootstrap_ratios(top, bottom, draws(len(top)), seed), strict=True):
        images = int((figures.column(name)[1][of_label] != 0).sum())
        p = _p_value(figures, name, label, seed) if name in figures.metrics else None
        estimates[name] = estimate._replace(n=images, p=p)
    value, lo, hi, n, _ = estimates["log_prob"]
    if value is not None:  # of the mean log-probability
        estimates["perplexity"] = Estimate(_exp(value), _exp(hi), _exp(lo), n)
    steps = figures.steps[label]
    estimates |= {name: Estimate(value, n=len(steps.latencies)) for name, value in steps.percentiles().items()}
    memory, recorded = (part[of_label] for part in figures.column("peak_memory_mb"))
    if recorded.any():
        estimates["peak_memory_mb"] = Estimate(float(memory.max()), n=int(recorded.sum()))
    method, options = figures.methods[label]
    prompts, config, histogram = run.get("prompts") or {}, run.get("config") or {}, steps.histogram()
    return Row(
        label=label,
        method=method,
        n=int(of_label.sum()),
        figures=estimates | whole,
        options=options,
        target=(run.get("target") or {}).get("name"),
        dataset=prompts.get("dataset") or str(prompts.get("source") or "").partition(":")[0] or None,
        temperature=options.get("temperature", config.get("temperature")),
        simulated=config.get("simulate_acceptance") is not None,
        accept_histogram=histogram,
        accept_len_by_position=steps.accept_len_by_position(),
        phases=steps.phase_shares(),
        acceptance=acceptance(histogram),
    )


def _exp(log_prob: float | None) -> float | None:
    return None if log_prob is None or log_prob < -600 else math.exp(-log_prob)  # else it has no float


def _p_value(figures: Figures, name: str, label: str, seed: int) -> float | None:
    """Paired test of a metric against the baseline on prompt means; None under two prompts."""
    if label == BASELINE or len(apart := figures.difference(name, figures.of(label))) < 2:
        return None
    return paired_test(apart, np.zeros_like(apart), draws(len(apart)), seed)


def all_told_apart(figures: Figures, labels: list[str]) -> bool:
    """Is each method's speed told apart from the baseline's, by the test of log latencies with Holm over methods?"""
    if BASELINE not in figures.labels or not set(labels) <= figures.labels.keys():
        return False
    base = np.log(figures.values("latency_s", BASELINE))
    apart = [np.log(figures.values("latency_s", label)) - base for label in labels if label != BASELINE]
    tested = np.nan_to_num(np.stack(apart, 1))
    p = statistics.holm(statistics.paired_tests(tested, draws(len(tested), statistics.FLIPS)))
    return bool((statistics.LOOKS * p < statistics.ALPHA).all())
