"""Notes for the reader of a run's figures: what is missing, few or disturbed, and how the run
was made.
"""

from collections.abc import Iterator, Sequence
from itertools import compress

import numpy as np

from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.run_record import IMPORTED, Environment, RunRecord, setting_changes
from lanternbench.measure.statistics import LOOKS
from lanternbench.notes import Kind, Note
from lanternbench.utils.text import first_of

FEW_PROMPTS = 5  # under this an interval is marked as too narrow
SLOW_SHARE = 0.02  # of steps that took twice their median or more
IDLE_SHARE = 0.8  # CPU seconds per second of wall time, on a CPU
EVEN_PACE = 1.25  # the 90th percentile of a baseline's times over the 10th, on a steady machine
_RANDOM = "Metrics named -random come from networks with random weights: their times are real, their values noise."
RANDOM_NOTE = Note("warning", None, _RANDOM, "random weights")


def counts(figures: Figures) -> dict[str, int]:
    """Return the number of images by label."""
    return {label: int(figures.of(label).sum()) for label in figures.labels}


def contention(figures: Figures, environment: Environment) -> Note | None:
    """Return a warning, with advice, if other programs used the machine: a high load, slow steps,
    or little CPU time.
    """
    load = figures.ratio("load")
    slow = figures.ratio("slow_steps")
    busy = figures.ratio("cpu_share")
    cores = environment.cores
    marks = []
    if load is not None and cores is not None and load > cores:
        marks.append(f"the load was {load:.1f} on {cores} cores")
    if slow is not None and slow > SLOW_SHARE:
        marks.append(f"{slow:.1%} of the steps took more than twice their median")
    if busy is not None and environment.on_cpu and busy < IDLE_SHARE:
        marks.append(f"decoding had the CPU for {busy:.0%} of its time")
    if not marks:
        return None
    advice = "stop other programs, or run again with fewer --threads, or read the robust speedup."
    text = f"Timing was noisy ({'; '.join(marks)}): {advice}"
    return Note("unfit", "latency_s", text, "noisy timing")


def uneven_pace(figures: Figures) -> Note | None:
    """Return a warning if the machine's speed varied while nothing else showed it: a neighbour on
    the same host, or a changing clock rate.

    The baseline does the same work for every image, so its own times tell.
    """
    milliseconds, timed = figures.column("token_ms")
    measured = figures.of(BASELINE) & (timed > 0)
    if measured.sum() < FEW_PROMPTS:
        return None
    low, high = np.percentile(milliseconds[measured] / timed[measured], (10, 90))
    if high <= EVEN_PACE * low:
        return None
    text = (
        f"The machine's speed varied by a factor of {high / low:.2g}: ar, which does the same work"
        f" for every image, took {low:.3g} to {high:.3g} ms a token (10th and 90th percentile)."
        " Intervals of speedups include this, and more prompts make them narrower."
    )
    return Note("warning", "latency_s", text)


def noisy_prompts(figures: Figures, environment: Environment) -> set[tuple[str, int]]:
    """Return (prompt id, seed) of the samples whose timing was noisy, as ``contention`` judges."""
    load, loaded = figures.column("load")
    slow, steps = figures.column("slow_steps")
    busy, timed = figures.column("cpu_share")
    noisy = slow > SLOW_SHARE * steps
    if environment.cores is not None:
        noisy |= load > environment.cores * loaded
    if environment.on_cpu:
        noisy |= busy < IDLE_SHARE * timed
    return set(compress(figures.pairs, noisy))


def run_notes(figures: Figures, run: RunRecord) -> Iterator[Note]:
    """Yield the notes that a reader needs to read the rows of a run correctly."""
    if not len(figures):
        yield Note("warning", None, "The run has no samples yet.")
        return
    text = "Intervals are 95 % bootstrap intervals over prompts; speedup is paired with `ar` by prompt and seed."
    yield Note("info", None, text)
    yield from _progress_notes(figures, run)
    yield from _speedup_notes(figures, run)
    yield from _latency_notes(figures, run)
    yield from _prompt_notes(figures)
    yield from _target_notes(run)
    yield from _setting_notes(run)
    for text in run.prompts.notes:
        yield Note("info", None, text)


def _progress_notes(figures: Figures, run: RunRecord) -> Iterator[Note]:
    now = counts(figures)
    wanted = run.wanted(now)
    per_method = run.samples_per_method
    if any(now.get(label, 0) < per_method for label in wanted):
        done = f"{sum(now.values())} of {per_method * len(wanted)} samples"
        if run.shards is not None:
            done = (
                f"{complete_prompts(figures, wanted)} of {run.prompts.count} prompts are there;"
                f" unfinished shards: {first_of(run.shards.unfinished, 8)} of {run.shards.of}"
            )
        text = f"The run is not finished ({done}): columns of different methods rest on different prompts,"
        yield Note("unfit", None, f"{text} and speedups alone are paired.", "unfinished")
    left_out = [label for label in run.left_out if label not in now]
    if left_out:
        text = f"Left out to keep the time budget: {', '.join(left_out)}. The same command goes on with them."
        yield Note("warning", None, text)
    if run.told_apart_after:
        text = (
            "Every method's speed was statistically distinguishable from ar's after "
            f"{run.told_apart_after} prompts"
        )
        yield Note("info", None, f"{text}; p-values are corrected for {LOOKS} looks.")


def complete_prompts(figures: Figures, labels: Sequence[str]) -> int:
    """Return the number of prompts of which every method has a sample."""
    complete = {prompt for prompt, _ in figures.pairs}
    for label in labels:
        complete &= {prompt for prompt, _ in compress(figures.pairs, figures.of(label))}
    return len(complete)


def _speedup_notes(figures: Figures, run: RunRecord) -> Iterator[Note]:
    """Yield what speedups rest on: samples with a baseline, timed under the same settings."""
    if BASELINE not in figures.labels:
        text = "There is no `ar` baseline in this run, so there is no speedup."
        yield Note("missing", "speedup", text)
        return
    timed = figures.column("latency_s")[1] > 0
    has_pair = figures.paired >= 0
    changes = setting_changes(run.environments)
    why = "another load"
    if changes:
        why = f"other settings ({'; '.join(changes[:3])})"
    for label in figures.labels:
        of_label = figures.of(label)
        alone = int((of_label & ~has_pair).sum())
        if alone:
            text = f"{label}: {alone} of {of_label.sum()} samples have no `ar` pair"
            yield Note("warning", "speedup", f"{text} and are left out of speedup.")
        total = int((of_label & timed).sum())
        apart = int((of_label & timed & has_pair & ~figures.comparable).sum())
        if apart:
            kind: Kind = "missing"
            rest = "there is no speedup"
            if total > apart:
                kind = "warning"
                rest = f"speedup rests on the other {total - apart}"
            text = f"{label}: {apart} of {total} samples and their `ar` pairs were timed under {why}: {rest}"
            yield Note(kind, "speedup", f"{text}; run again with --fresh.")


def _latency_notes(figures: Figures, run: RunRecord) -> Iterator[Note]:
    """Yield what latencies were measured, and what disturbed them."""
    timed = figures.column("latency_s")[1] > 0
    untimed = []
    for label, (method, _) in figures.methods.items():
        if method == IMPORTED:
            text = (
                f"{label} was not measured by this run: steps and seconds are as its maker"
                " reports them."
            )
            yield Note("warning", None, text, "imported", label)
        elif not timed[figures.of(label)].any():
            untimed.append(label)
    if untimed:
        text = f"No latency for {', '.join(untimed)}: latency is only valid at batch 1."
        yield Note("missing", "latency_s", text)
    disturbed = contention(figures, run.environment) or uneven_pace(figures)
    if disturbed:
        yield disturbed
    for environment in run.environments:
        if timed.any() and environment.workers is not None and environment.workers > 1:
            shared = "each on a GPU of its own"
            if environment.device == "cpu":
                shared = "sharing cores and caches"
            text = (
                f"{environment.workers} workers measured latencies at the same time, {shared}:"
                " speedups are paired, because a prompt's methods ran on one worker unless it was"
                " lost (devices.jsonl names that of each sample), but alone a latency may be"
                " shorter."
            )
            yield Note("warning", "latency_s", text)


def _prompt_notes(figures: Figures) -> Iterator[Note]:
    """Yield whether the prompts are enough for intervals."""
    prompts = figures.codes("prompt")
    fewest = min(len(np.unique(prompts[figures.of(label)])) for label in figures.labels)
    if fewest == 1:
        yield Note("warning", None, "A single prompt gives no intervals.")
    elif fewest < FEW_PROMPTS:
        text = f"{fewest} prompts are too few: intervals under {FEW_PROMPTS} prompts"
        yield Note("warning", None, f"{text} are too narrow.")


def _target_notes(run: RunRecord) -> Iterator[Note]:
    """Yield what the target cannot do."""
    if not run.target.draws_images:
        text = "The target has no image tokeniser: its speed, τ and fidelity are measured, no images and no quality."
        yield Note("missing", None, text)
    if run.target.evaluators == "tiny":
        text = "Metrics named -tiny come from the bundled evaluators and compare only with each other."
        yield Note("info", None, text)
    dataset = run.prompts.dataset or "demo"
    is_foreign = dataset not in ("demo", IMPORTED) and "." not in dataset
    if run.target.name == "tiny" and is_foreign:
        text = (
            f"The target tiny draws coloured shapes and knows no captions of {dataset}: its speed"
            " and fidelity count, its images and their scores do not; --prompts demo has captions"
            " that it knows."
        )
        yield Note("warning", None, text)


def _setting_notes(run: RunRecord) -> Iterator[Note]:
    """Yield which settings make times or images unusual."""
    if len(run.environments) > 1:
        text = "The run was resumed in another environment (see run.json): its latencies mix both."
        if run.shards is not None:
            changes = first_of(setting_changes(run.environments), 3, "; ")
            text = (
                f"Shards ran on machines that differ ({changes}): latencies mix them, and every"
                " speedup is a ratio of times of one shard."
            )
        yield Note("unfit", "latency_s", text, "another environment")
    noise = "the times are real, the images are noise, and no metric is computed."
    if run.config.random_weights:
        yield Note("warning", None, f"Random weights: {noise}", "random weights")
    asked = run.config.simulate_acceptance
    if asked is not None:
        goal = f"rates of {asked} by position"
        if not isinstance(asked, list):
            goal = f"a mean of {asked:g} tokens a step"
        text = f"Accepted lengths are simulated to {goal}: {noise}"
        yield Note("warning", None, text, "simulated acceptance")
