"""The summary of a run: a row per method, every figure with its interval, and what a reader must know."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lanternbench import metrics
from lanternbench.measure.acceptance import acceptance
from lanternbench.measure.contention import contention
from lanternbench.measure.figures import BASELINE, MEASURED, Figures
from lanternbench.measure.samples import IMPORTED
from lanternbench.measure.statistics import Estimate, bootstrap_ratios, draws, paired_test
from lanternbench.measure.summaries import Row, Summary
from lanternbench.measure.timing import setting_changes
from lanternbench.measure.told_apart import LOOKS
from lanternbench.notes import Note

FEW_PROMPTS = 5  # under this an interval is marked as too narrow
LOSSLESS = 1e-3  # the most fidelity loss that float error explains
RANDOM_NOTE = Note(
    "warning",
    None,
    "Metrics named -random come from networks with random weights: their times are real, their values noise.",
)
Sets = dict[str, dict[str, Estimate]]  # label -> figures of its whole set of images


def summarise(figures: Figures, run: Mapping[str, Any], sets: Sets | None = None, seed: int = 0) -> Summary:
    """The summary of a run by the figures of its samples; what is missing has no value, and is never 0.

    run: ``run.json``; its "methods" ({"label", "lossless"}) give the order of rows.
    sets: figures of a whole label, such as {"ar": {"fid-tiny": Estimate(31.2, n=64)}}.
    """
    sets = sets or {}
    whole = sorted({name for found in sets.values() for name in found} - figures.metrics.keys())
    order = [str(method.get("label")) for method in run.get("methods") or []] + list(figures.labels)
    order.sort(key=lambda label: label != BASELINE)
    rows = [
        _row(figures, label, run, {name: sets.get(label, {}).get(name, Estimate()) for name in whole}, seed)
        for label in dict.fromkeys(order)
        if label in figures.labels
    ]
    notes = _notes(figures, run) + _false_claims(rows, run)
    if any(metrics.column(name).random for name in [*figures.metrics, *whole]):
        notes.append(RANDOM_NOTE)
    return Summary(rows, notes, whole, suite=(run.get("config") or {}).get("suite"))


def counts(figures: Figures) -> dict[str, int]:
    """Images by label."""
    return {label: int(figures.of(label).sum()) for label in figures.labels}


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
    kept = {name for found in sets.values() for name in found}
    stale = {None, "speedup", "latency_s", "fidelity_loss", *old.sets} - kept
    notes = [*new.notes, *(note for note in old.notes if note.metric not in stale)]
    text = f"The run went on after it was summed up: all figures here are of its {len(figures)} samples now."
    return replace(
        new, notes=[*dict.fromkeys(notes), Note("info", None, text)], costs=old.costs, reference=old.reference
    )


def _row(figures: Figures, label: str, run: Mapping[str, Any], whole: dict[str, Estimate], seed: int) -> Row:
    """One row; every interval of the row rests on the same resamplings of prompts."""
    own, names = figures.of(label), [*MEASURED, *sorted(figures.metrics)]
    top, bottom = figures.by_prompt(names, own)
    estimates = bootstrap_ratios(top, bottom, draws(len(top)), seed)
    found = {}
    for name, estimate in zip(names, estimates, strict=True):
        images = int((figures.column(name)[1][own] != 0).sum())
        p = _p_value(figures, name, label, seed) if name in figures.metrics else None
        found[name] = estimate._replace(n=images, p=p)
    value, lo, hi, n, _ = found["log_prob"]
    if value is not None:  # of the mean log-probability
        found["perplexity"] = Estimate(_exp(value), _exp(hi), _exp(lo), n)
    steps = figures.steps[label]
    found |= {name: Estimate(value, n=len(steps.latencies)) for name, value in steps.percentiles().items()}
    memory, there = (part[own] for part in figures.column("peak_memory_mb"))
    if there.any():
        found["peak_memory_mb"] = Estimate(float(memory.max()), n=int(there.sum()))
    method, options = figures.methods[label]
    prompts, config = run.get("prompts") or {}, run.get("config") or {}
    return Row(
        label=label,
        method=method,
        n=int(own.sum()),
        figures=found | whole,
        options=options,
        target=(run.get("target") or {}).get("name"),
        dataset=prompts.get("dataset") or str(prompts.get("source") or "").partition(":")[0] or None,
        temperature=options.get("temperature", config.get("temperature")),
        lossless=_lossless(label, run, found["fidelity_loss"].value),
        simulated=config.get("simulate_acceptance") is not None,
        accept_histogram=steps.histogram(),
        accept_len_by_position=steps.accept_len_by_position(),
        phases=steps.phase_shares(),
        acceptance=acceptance(steps.histogram()),
    )


def _exp(log_prob: float | None) -> float | None:
    return None if log_prob is None or log_prob < -600 else math.exp(-log_prob)  # else it has no float


def _claimed(label: str, run: Mapping[str, Any]) -> bool | None:
    return next((m.get("lossless") for m in run.get("methods") or [] if m.get("label") == label), None)


def _lossless(label: str, run: Mapping[str, Any], loss: float | None) -> bool | None:
    """Does the method keep the target's distribution?  What its rules promise, unless the samples show a loss."""
    claimed = _claimed(label, run)
    return False if claimed and loss is not None and loss > LOSSLESS else claimed


def _p_value(figures: Figures, name: str, label: str, seed: int) -> float | None:
    """Paired test of a metric against the baseline on prompt means; None under two prompts."""
    if label == BASELINE or len(apart := figures.difference(name, figures.of(label))) < 2:
        return None
    return paired_test(apart, np.zeros_like(apart), draws(len(apart)), seed)


def _false_claims(rows: list[Row], run: Mapping[str, Any]) -> list[Note]:
    return [
        Note("warning", "fidelity_loss", f"{row.label} promises to be lossless, but its samples show a loss.")
        for row in rows
        if _claimed(row.label, run) and row.lossless is False
    ]


def _notes(figures: Figures, run: Mapping[str, Any]) -> list[Note]:
    """Notes that a reader needs to read the rows correctly."""
    if not len(figures):
        return [Note("warning", None, "The run has no samples yet.")]
    text = "Intervals are 95 % bootstrap intervals over prompts; speedup is paired with `ar` by prompt and seed."
    prompts = run.get("prompts") or {}
    notes = [Note("info", None, text), *_progress_notes(figures, run), *_timing_notes(figures, run)]
    fewest = min(len(np.unique(figures.codes("prompt")[figures.of(label)])) for label in figures.labels)
    if fewest == 1:
        notes.append(Note("warning", None, "A single prompt gives no intervals."))
    elif fewest < FEW_PROMPTS:
        text = f"{fewest} prompts are too few: intervals under {FEW_PROMPTS} prompts are too narrow."
        notes.append(Note("warning", None, text))
    if (evaluators := (run.get("target") or {}).get("evaluators")) == "none":
        text = "The target has no image tokeniser: its speed, τ and fidelity are measured, no images and no quality."
        notes.append(Note("missing", None, text))
    if evaluators == "tiny":
        text = "Metrics named -tiny come from the embedded evaluators and compare only with each other."
        notes.append(Note("info", None, text))
    return notes + _setting_notes(run) + [Note("info", None, str(note)) for note in prompts.get("notes") or []]


def asked_for(run: Mapping[str, Any], now: Container[str] = ()) -> tuple[list[str], int]:
    """The methods that a run was to measure, and of how many samples each.

    A method left out to keep a time budget counts if it has samples ``now``.
    """
    prompts, config, left_out = run.get("prompts") or {}, run.get("config") or {}, run.get("left_out")
    labels = [str(method.get("label")) for method in run.get("methods") or []]
    each = (run.get("told_apart_after") or prompts.get("count") or 0, config.get("repeats") or 1)
    absent = [label for label in left_out if label not in now] if isinstance(left_out, list) else []
    wanted = [label for label in labels if label not in absent]
    return wanted, each[0] * each[1] if all(isinstance(n, int) for n in each) else 0


def _progress_notes(figures: Figures, run: Mapping[str, Any]) -> list[Note]:
    """Notes on what the run was to measure and has not."""
    enough, now, notes = run.get("told_apart_after"), counts(figures), []
    wanted, each = asked_for(run, now)
    left_out = [label for label in map(str, run.get("left_out") or []) if label not in now]
    if any(now.get(label, 0) < each for label in wanted):
        text = (
            f"The run is not finished ({sum(now.values())} of {each * len(wanted)} samples): columns of different "
            "methods rest on different prompts, and speedups alone are paired."
        )
        notes.append(Note("unfit", None, text))
    if left_out:
        text = f"Left out to keep the time budget: {', '.join(left_out)}. The same command goes on with them."
        notes.append(Note("warning", None, text))
    if enough:
        text = f"Every method was told apart from ar after {enough} prompts; p-values are corrected for {LOOKS} looks."
        notes.append(Note("info", None, text))
    return notes


def _timing_notes(figures: Figures, run: Mapping[str, Any]) -> list[Note]:
    """Notes on latencies and speedups."""
    notes = []
    timed = figures.column("latency_s")[1] > 0
    if BASELINE not in figures.labels:
        text = "There is no `ar` baseline in this run, so there is no speedup."
        notes.append(Note("missing", "speedup", text))
    else:
        for label in figures.labels:
            own = figures.of(label)
            if alone := int((figures.paired[own] < 0).sum()):
                text = f"{label}: {alone} of {own.sum()} samples have no `ar` pair and are left out of speedup."
                notes.append(Note("warning", "speedup", text))
            if apart := int(((figures.paired >= 0) & timed & ~figures.comparable)[own].sum()):
                notes.append(_apart(label, apart, int((timed & own).sum()), run))
    imported = [label for label, (method, _) in figures.methods.items() if method == IMPORTED]
    untimed = [label for label in figures.labels if not timed[figures.of(label)].any() and label not in imported]
    if imported:
        text = f"Not measured here: {', '.join(imported)}; steps and seconds are as their makers state them."
        notes.append(Note("info", None, text))
    if untimed:
        text = f"No latency for {', '.join(untimed)}: latency is only valid at batch 1."
        notes.append(Note("missing", "latency_s", text))
    disturbed = contention(figures, run.get("environment") or {})
    notes += [disturbed] if disturbed else []
    for crew in _environments(run) if timed.any() else ():
        if (crew.get("workers") or 1) > 1:
            shared = "sharing cores and caches" if crew.get("device") == "cpu" else "each on a GPU of its own"
            text = (
                f"{crew['workers']} workers measured latencies beside each other, {shared}: speedups are paired, as a "
                "prompt's methods ran on one worker unless it was lost (devices.jsonl names each sample's), but alone "
                "a latency may be shorter."
            )
            notes.append(Note("warning", "latency_s", text))
    return notes


def _apart(label: str, apart: int, of: int, run: Mapping[str, Any]) -> Note:
    """``apart`` of a label's samples have a baseline's that was timed otherwise."""
    changes = setting_changes(_environments(run))
    why = f"other settings ({'; '.join(changes[:3])})" if changes else "another load"
    what = "there is no speedup" if apart == of else f"speedup rests on the other {of - apart}"
    text = (
        f"{label}: {apart} of {of} samples and their `ar` pairs were timed under {why}: {what}; run again with --fresh."
    )
    return Note("missing" if apart == of else "warning", "speedup", text)


def _environments(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [run.get("environment") or {}, *(entry.get("environment") or {} for entry in run.get("resumed") or [])]


def _setting_notes(run: Mapping[str, Any]) -> list[Note]:
    """Notes on how the run was set up and resumed."""
    config, notes = run.get("config") or {}, []
    if any("environment" in entry for entry in run.get("resumed") or []):
        text = "The run was resumed in another environment (see run.json): its latencies mix both."
        notes.append(Note("unfit", "latency_s", text))
    dataset = str((run.get("prompts") or {}).get("dataset") or "demo")
    if (run.get("target") or {}).get("name") == "tiny" and dataset not in ("demo", IMPORTED) and "." not in dataset:
        text = (
            f"The target tiny draws coloured shapes and knows no captions of {dataset}: its speed and fidelity count, "
            "its images and their scores do not; --prompts demo has captions that it knows."
        )
        notes.append(Note("warning", None, text))
    noise = "the times are real, the images are noise, and no metric is computed."
    if config.get("random_weights"):
        notes.append(Note("warning", None, f"Random weights: {noise}"))
    if config.get("simulate_acceptance"):
        asked = config["simulate_acceptance"]
        to = f"rates of {asked} by position" if isinstance(asked, list) else f"a mean of {asked:g} tokens a step"
        text = f"Accepted lengths are simulated to {to}: {noise}"
        notes.append(Note("warning", None, text))
    return notes
