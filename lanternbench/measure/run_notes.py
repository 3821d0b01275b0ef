"""What a reader of a run's figures must know: what is missing, few or disturbed, and how the run
was made.
"""

from collections.abc import Iterator

import numpy as np

from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.run_record import IMPORTED, Environment, RunRecord, setting_changes
from lanternbench.measure.statistics import LOOKS
from lanternbench.notes import Note

FEW_PROMPTS = 5  # under this an interval is marked as too narrow
SLOW_SHARE = 0.02  # of steps that took twice their median or more
IDLE_SHARE = 0.8  # CPU seconds per second of wall time, on a CPU
_RANDOM = "Metrics named -random come from networks with random weights: their times are real, their values noise."
RANDOM_NOTE = Note("warning", None, _RANDOM)


def counts(figures: Figures) -> dict[str, int]:
    """Images by label."""
    return {label: int(figures.of(label).sum()) for label in figures.labels}


def contention(figures: Figures, environment: Environment) -> Note | None:
    """A warning, with advice, if other programs used the machine: a high load, slow steps, or
    little CPU time.
    """
    recorded = figures.column("load")[1] >= 0
    load, slow, busy = (
        figures.ratio(name, recorded) for name in ("load", "slow_steps", "cpu_share")
    )
    cores = environment.cores
    marks = []
    if load is not None and cores is not None and load > cores:
        marks.append(f"the load was {load:.1f} on {cores} cores")
    if slow is not None and slow > SLOW_SHARE:
        marks.append(f"{slow:.1%} of the steps took more than twice their median")
    if busy is not None and environment.on_cpu and busy < IDLE_SHARE:
        marks.append(f"decoding had the CPU for {busy:.0%} of its time")
    advice = "stop other programs or give fewer --threads and measure again, or read the robust speedup."
    return (
        Note("unfit", "latency_s", f"The clock was disturbed ({'; '.join(marks)}): {advice}")
        if marks
        else None
    )


def run_notes(figures: Figures, run: RunRecord) -> Iterator[Note]:
    """Yield the notes that a reader needs to read the rows of a run correctly."""
    if not len(figures):
        yield Note("warning", None, "The run has no samples yet.")
        return
    text = "Intervals are 95 % bootstrap intervals over prompts; speedup is paired with `ar` by prompt and seed."
    yield Note("info", None, text)
    yield from _progress_notes(figures, run)
    yield from _timing_notes(figures, run)
    fewest = min(
        len(np.unique(figures.codes("prompt")[figures.of(label)])) for label in figures.labels
    )
    if fewest == 1:
        yield Note("warning", None, "A single prompt gives no intervals.")
    elif fewest < FEW_PROMPTS:
        text = (
            f"{fewest} prompts are too few: intervals under {FEW_PROMPTS} prompts are too narrow."
        )
        yield Note("warning", None, text)
    if not run.target.draws_images:
        text = "The target has no image tokeniser: its speed, τ and fidelity are measured, no images and no quality."
        yield Note("missing", None, text)
    if run.target.evaluators == "tiny":
        text = "Metrics named -tiny come from the embedded evaluators and compare only with each other."
        yield Note("info", None, text)
    yield from _setting_notes(run)
    for text in run.prompts.notes:
        yield Note("info", None, text)


def _progress_notes(figures: Figures, run: RunRecord) -> Iterator[Note]:
    now = counts(figures)
    wanted = run.wanted(now)
    each = run.samples_per_method
    if any(now.get(label, 0) < each for label in wanted):
        text = f"The run is not finished ({sum(now.values())} of {each * len(wanted)} samples): columns of different"
        yield Note(
            "unfit",
            None,
            f"{text} methods rest on different prompts, and speedups alone are paired.",
        )
    if left_out := [label for label in run.left_out if label not in now]:
        text = f"Left out to keep the time budget: {', '.join(left_out)}. The same command goes on with them."
        yield Note("warning", None, text)
    if enough := run.told_apart_after:
        text = f"Every method was told apart from ar after {enough} prompts; p-values are corrected for {LOOKS} looks."
        yield Note("info", None, text)


def _timing_notes(figures: Figures, run: RunRecord) -> Iterator[Note]:
    timed = figures.column("latency_s")[1] > 0
    environments = run.environments
    if BASELINE not in figures.labels:
        yield Note(
            "missing", "speedup", "There is no `ar` baseline in this run, so there is no speedup."
        )
    for label in figures.labels if BASELINE in figures.labels else ():
        of_label = figures.of(label)
        if alone := int((figures.paired[of_label] < 0).sum()):
            text = f"{label}: {alone} of {of_label.sum()} samples have no `ar` pair and are left out of speedup."
            yield Note("warning", "speedup", text)
        if apart := int(((figures.paired >= 0) & timed & ~figures.comparable)[of_label].sum()):
            total, changes = int((timed & of_label).sum()), setting_changes(environments)
            why = f"other settings ({'; '.join(changes[:3])})" if changes else "another load"
            rest = (
                f"speedup rests on the other {total - apart}"
                if total > apart
                else "there is no speedup"
            )
            text = f"{label}: {apart} of {total} samples and their `ar` pairs were timed under {why}: {rest}"
            yield Note(
                "warning" if total > apart else "missing",
                "speedup",
                f"{text}; run again with --fresh.",
            )
    imported = [label for label, (method, _) in figures.methods.items() if method == IMPORTED]
    if imported:
        text = f"Not measured here: {', '.join(imported)}; steps and seconds are as their makers state them."
        yield Note("info", None, text)
    if untimed := [
        one for one in figures.labels if not timed[figures.of(one)].any() and one not in imported
    ]:
        text = f"No latency for {', '.join(untimed)}: latency is only valid at batch 1."
        yield Note("missing", "latency_s", text)
    if disturbed := contention(figures, environments[0]):
        yield disturbed
    for environment in environments if timed.any() else ():
        if (environment.workers or 1) > 1:
            shared = (
                "sharing cores and caches"
                if environment.device == "cpu"
                else "each on a GPU of its own"
            )
            text = f"{environment.workers} workers measured latencies beside each other, {shared}: speedups are"
            text += " paired, as a prompt's methods ran on one worker unless it was lost (devices.jsonl names each"
            yield Note(
                "warning", "latency_s", f"{text} sample's), but alone a latency may be shorter."
            )


def _setting_notes(run: RunRecord) -> Iterator[Note]:
    if len(run.environments) > 1:
        text = "The run was resumed in another environment (see run.json): its latencies mix both."
        yield Note("unfit", "latency_s", text)
    dataset = run.prompts.dataset or "demo"
    if run.target.name == "tiny" and dataset not in ("demo", IMPORTED) and "." not in dataset:
        text = f"The target tiny draws coloured shapes and knows no captions of {dataset}: its speed and fidelity count"
        text += ", its images and their scores do not; --prompts demo has captions that it knows."
        yield Note("warning", None, text)
    noise = "the times are real, the images are noise, and no metric is computed."
    if run.config.random_weights:
        yield Note("warning", None, f"Random weights: {noise}")
    if asked := run.config.simulate_acceptance:
        to = (
            f"rates of {asked} by position"
            if isinstance(asked, list)
            else f"a mean of {asked:g} tokens a step"
        )
        yield Note("warning", None, f"Accepted lengths are simulated to {to}: {noise}")
