"""Run a sweep: methods interleaved per prompt on one loaded target, every sample stored as soon as it is made."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import NamedTuple

import torch

from lanternbench import prompts as prompt_sets
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, config_hash, sample_key
from lanternbench.experiment.config import Sweep
from lanternbench.experiment.executors import Executor, Unit
from lanternbench.experiment.executors import executor as make_executor
from lanternbench.experiment.executors.base import labels
from lanternbench.experiment.scoring import (
    files_exist,
    has_values,
    previous_summary,
    score_sets,
    unique,
)
from lanternbench.experiment.worker import Facts, Job, OnStep
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.summaries import Costs, Summary
from lanternbench.measure.summary import kept_sets, summarise
from lanternbench.measure.told_apart import all_told_apart, look_sizes
from lanternbench.methods.method import Method
from lanternbench.metrics import ImageMetric, SetMetric, scorers_for
from lanternbench.metrics.setup import Setup
from lanternbench.models.entries import catalogue, shortfall
from lanternbench.notes import Note
from lanternbench.prompts import Prompt, PromptSet

MARGIN = 1.5  # an image on a busy machine takes longer than a few steps say: 1.5 times at a load of 8 on two cores
Progress = Callable[[int, int, str], None]  # samples done, samples in all, what is being done or was just done


class Callbacks(NamedTuple):
    """Callbacks of a run, and its time budget.

    ``on_step`` (tokens done, of) is called after each step of an image, where this process decodes it.  ``budget_s``:
    seconds once the models are loaded.  The last methods that do not fit are left out; after that time no further
    prompt is begun, but at least one is completed.
    """

    progress: Progress = lambda done, of, what: None
    on_step: OnStep | None = None
    budget_s: float = inf


def run(
    config: Sweep,
    out: Path,
    *,
    fresh: bool = False,
    device: str = "cpu",
    executor: str | Executor = "local",
    watch: Callbacks = Callbacks(),  # noqa: B008  (immutable)
) -> tuple[Path, Summary]:
    """Measure everything that ``config`` asks for and is not stored yet; returns the run folder and its summary.

    An interrupted sweep continues where it stopped: what is stored is never computed again, and what is computed
    depends on (seed, prompt, method) alone, whichever ``executor`` computes it: one of ``executors``, or its name.
    Raises UserError before anything is computed if a setting is wrong.
    """
    with ExitStack() as stack:
        made_by = make_executor(executor) if isinstance(executor, str) else executor
        stack.callback(made_by.close)
        selected = prompt_sets.load(config.prompts, config.num_prompts, config.seed, config.caption)
        methods = config.methods()
        facts = made_by.start(config, device, -(-len(selected) // config.batch) * config.repeats)
        meaningless = config.random_weights or config.simulate_acceptance is not None
        here = Setup(device=facts.device if torch.cuda.is_available() else "cpu")
        scorers = [] if meaningless else scorers_for(config.metrics, facts.target["evaluators"], here)
        folder = stack.enter_context(open_run(out, config, facts, selected, methods, fresh))
        spent = _measure(folder, config, made_by, selected, watch)
        remarks = [facts.target["remark"]] if "remark" in facts.target else []
        summary = _summary(folder, config, scorers, spent, [*made_by.notes(), *remarks])
        folder.finish(summary)
        return folder.path, summary


def open_run(
    out: Path, config: Sweep, facts: Facts, prompts: PromptSet, methods: Sequence[Method], fresh: bool
) -> RunFolder:
    """The run folder of these settings and prompts, new or continued.  Raises UserError if it cannot be used."""
    record = config.record() | {"guidance": facts.guidance, "device": facts.device}
    return RunFolder.open(
        out,
        f"{config.name}-{config_hash(record | prompts.record())[:8]}",
        record,
        fresh=fresh,
        environment=facts.environment,
        prompts=prompts.record(),
        target=facts.target,
        methods=[
            {"label": m.label, "key": m.key, "method": m.preset, "options": m.options}
            | {"lossless": facts.lossless[m.label]}
            for m in methods
        ],
    )


def _summary(
    folder: RunFolder, config: Sweep, scorers: list[ImageMetric | SetMetric], spent: Costs, remarks: list[str]
) -> Summary:
    """Score whole sets of images where that is still to be done, and sum up; ``spent``: on scores of single images."""
    old, groups = previous_summary(folder), folder.images  # ``score`` may have added to them
    sets, intact = kept_sets(folder.figures, old), files_exist(groups)
    whole = [
        s
        for s in scorers
        if isinstance(s, SetMetric) and not (has_values(sets, groups, s) and (s.available() or not intact))
    ]
    found, said, more = score_sets(groups, whole)
    kept = {name for columns in sets.values() for name in columns} - {s.name for s in whole}
    for label, columns in found.items():
        sets.setdefault(label, {}).update(columns)
    summary = summarise(folder.figures, folder.run, sets, config.seed)
    said += [note for s in scorers if isinstance(s, ImageMetric) and (note := s.available())]
    said += [note for note in old.notes if note.metric in kept]
    said += [Note("info", None, text) for text in remarks] + drafter_notes(folder, config)
    notes, costs = unique(summary.notes + said), old.costs | spent | more
    return replace(summary, notes=notes, costs=costs, reference=old.reference)


def drafter_notes(folder: RunFolder, config: Sweep) -> list[Note]:
    """A warning for each method whose published drafter starts far below what the catalogue expects of it."""
    row = catalogue().get(config.target.partition("=")[0])
    if row is None or config.random_weights or config.simulate_acceptance is not None:
        return []
    top, bottom = folder.figures.column("first_token_acceptance")
    notes = []
    for m in (m for m in config.methods() if not m.drafter):
        own = folder.figures.of(m.label)
        accepted, steps = round(top[own].sum()), round(bottom[own].sum())
        note = shortfall(row, m.proposal.drafter_kind or "", m.choices.tree, config.temperature, accepted, steps)
        notes += [] if note is None else [Note(note.kind, note.metric, f"{m.label}: {note.text}")]
    return notes


def plan(prompts: PromptSet, labels: list[str], seed: int, batch: int) -> Iterator[tuple[list[Prompt], list[str]]]:
    """The order of a run: prompt by prompt (or batch by batch), with the methods of each in a seeded random order."""
    chosen = list(prompts)
    for start in range(0, len(chosen), batch):
        group = chosen[start : start + batch]
        digest = hashlib.sha256(f"{seed}\0{group[0].id}".encode()).digest()
        yield group, random.Random(digest).sample(labels, len(labels))


def missing_units(folder: RunFolder, config: Sweep, prompts: PromptSet) -> list[Unit]:
    """The part of the plan that is not stored yet.

    Raises UserError where it would be drawn by other methods, or with other seeds, than what is stored.
    """
    done, methods = folder.done(), {m.label: m.key for m in config.methods()}
    recorded = {str(m.get("label")): m["key"] for m in folder.run["methods"] if "key" in m}
    keys = methods if recorded else {label: label for label in methods}  # runs of before have labels as keys
    units = []
    for seed in config.seeds:
        for group, order in plan(prompts, list(methods), seed, config.batch):
            jobs = [Job(m, [p for p in group if sample_key(p.id, keys[m], seed) not in done], seed) for m in order]
            units.append([job for job in jobs if job.prompts])
    units = [unit for unit in units if unit]
    other = [label for label, key in methods.items() if recorded.get(label) != key]
    if other and (recorded or units):
        what = f"other options of '{other[0]}'" if recorded else "other seeds"
        raise UserError(
            f"run {folder.path.name!r} was begun with {what}, by another version of lanternbench or of a plug-in: "
            "give --fresh to start a new run beside it"
        )
    return units


def within_budget(
    units: list[Unit], order: list[str], seconds: Mapping[str, float], budget: float
) -> tuple[list[Unit], list[str]]:
    """The units that fit in ``budget`` seconds, and the methods left out of them: the last of ``order`` first.

    The baseline and one method stay; ``seconds``: an image's, by method.
    """
    images = Counter({label: 0 for label in order if label in labels(units)})
    for job in (job for unit in units for job in unit):
        images[job.label] += len(job.prompts)
    kept = list(images)
    while len(kept) > 1 + (BASELINE in kept) and sum(seconds.get(label, 0) * images[label] for label in kept) > budget:
        kept.pop()
    fitting = [[job for job in unit if job.label in kept] for unit in units]
    return [unit for unit in fitting if unit], [label for label in images if label not in kept]


def _measure(
    folder: RunFolder,
    config: Sweep,
    executor: Executor,
    prompts: PromptSet,
    watch: Callbacks,
) -> Costs:
    """Make and store the samples that are missing; returns the cost of the scores."""
    names = [m.label for m in config.methods()]
    units, total = missing_units(folder, config, prompts), len(prompts) * len(names) * config.repeats

    def say(what: str) -> None:
        watch.progress(len(folder.done()), total, what)

    deadline, complete = time.monotonic() + watch.budget_s, len(prompts) * config.repeats - len(units)
    left_out: list[str] = []
    if units and watch.budget_s < inf:
        say("estimating times")
        found = executor.estimate(labels(units), [p.text for p in units[0][0].prompts])
        units, left_out = within_budget(units, names, found, (deadline - time.monotonic()) / MARGIN)
    looks = look_sizes(len(names) - 1) if config.until_told_apart else []
    measured = [name for name in names if name not in left_out]

    def told_apart() -> bool:
        return complete in looks and all_told_apart(Figures(folder.samples()), measured)

    done = told_apart()  # a run that stopped there before
    if done:
        units = []
    missing = {i: sum(len(job.prompts) for job in unit) for i, unit in enumerate(units)}
    unit_of = {(p.id, job.seed): i for i, unit in enumerate(units) for job in unit for p in job.prompts}
    made = executor.samples(units, prompts.prompts[0].text, say, watch.on_step) if units else ()
    for sample, image, where in made:
        folder.append(sample, image, where)
        say(f"{sample.label} · {sample.prompt}: {sample.decode_s:.2f} s")
        unit = unit_of[sample.prompt_id, sample.seed]
        missing[unit] -= 1
        if not missing[unit]:
            complete += 1
            if (done := told_apart()) or time.monotonic() > deadline:
                break
    folder.record(left_out=left_out, told_apart_after=complete if done else None)
    say("scoring")
    return executor.costs
