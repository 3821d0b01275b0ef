"""Run a sweep: methods interleaved per prompt on one loaded target, every sample stored as soon as it is made."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from lanternbench import prompts as prompt_sets
from lanternbench.analysis.summary import summarise
from lanternbench.experiment import RunFolder, config_hash, sample_key
from lanternbench.experiment.config import Sweep
from lanternbench.experiment.executors import local as executors
from lanternbench.experiment.executors.local import Executor, Unit
from lanternbench.experiment.scoring import Costs, image_groups, known, score_sets, stored, there, with_record
from lanternbench.experiment.worker import Job
from lanternbench.metrics import ImageMetric, SetMetric, scorers_for
from lanternbench.metrics.setup import Setup
from lanternbench.prompts import Prompt, PromptSet

Progress = Callable[[int, int, str], None]  # done, of, what


def run(
    config: Sweep,
    out: Path,
    *,
    fresh: bool = False,
    run_id: str | None = None,
    device: str = "cpu",
    executor: str | Executor = "local",
    progress: Progress = lambda done, of, what: None,
) -> tuple[Path, dict[str, Any]]:
    """Measure everything that ``config`` asks for and is not stored yet; returns the run folder and its summary.

    An interrupted sweep continues where it stopped: what is stored is never computed again, and what is computed
    depends on (seed, prompt, method) alone, whichever executor computes it: one of ``executors``, or its name.
    Raises UserError before anything is computed if a setting is wrong.
    """
    with closing(executors.executor(executor) if isinstance(executor, str) else executor) as made_by:
        return _run(config, out, fresh, run_id, device, made_by, progress)


def _run(
    config: Sweep, out: Path, fresh: bool, run_id: str | None, device: str, executor: Executor, progress: Progress
) -> tuple[Path, dict[str, Any]]:
    methods = config.methods()
    selected = prompt_sets.load(config.prompts, config.num_prompts, config.seed, config.caption)
    facts = executor.start(config, device, -(-len(selected) // config.batch))
    meaningless = config.random_weights or config.simulate_acceptance is not None
    here = Setup(device=facts.device if torch.cuda.is_available() else "cpu")
    scorers = [] if meaningless else scorers_for(config.metrics, facts.target["evaluators"], here)
    record = config.record() | {"guidance": facts.guidance, "device": facts.device}
    with RunFolder.open(
        out,
        run_id or f"{config.name}-{config_hash(record | selected.record())[:8]}",
        record,
        fresh=fresh,
        environment=facts.environment,
        prompts=selected.record(),
        target=facts.target,
        methods=[
            {"label": m.label, "method": m.preset, "options": m.options, "lossless": facts.lossless[m.label]}
            for m in methods
        ],
    ) as folder:
        spent = _measure(folder, config, executor, selected, progress)
        (sets, notes, costs, real), groups = stored(folder), image_groups(folder)  # ``score`` may have added to them
        intact = there(groups)
        whole = [
            s
            for s in scorers
            if isinstance(s, SetMetric) and not (known(sets, groups, s) and (s.available() or not intact))
        ]
        kept = {f"{name}: " for columns in sets.values() for name in columns} - {f"{s.name}: " for s in whole}
        found, missing, more = score_sets(groups, whole)
        for label, columns in found.items():
            sets.setdefault(label, {}).update(columns)
        summary = summarise(folder.samples(), folder.run, sets, config.seed)
        missing += [f"{s.name}: {why.text}" for s in scorers if isinstance(s, ImageMetric) and (why := s.available())]
        missing += [note for note in notes if note.startswith(tuple(kept))]
        summary["notes"] += missing + simulation_notes(config) + executor.notes()
        summary = with_record(summary, costs | spent | more, real)
        folder.finish(summary)
        return folder.path, summary


def simulation_notes(config: Sweep) -> list[str]:
    """What a reader must know of a run whose images mean nothing."""
    notes = []
    if config.random_weights:
        notes.append("Random weights: the times are real, the images are noise, and no metric is computed.")
    if config.simulate_acceptance:
        notes.append(
            f"Accepted lengths are simulated to a mean of {config.simulate_acceptance:g} tokens a step: the times are "
            "real, the images are noise, and no metric is computed."
        )
    return notes


def plan(prompts: PromptSet, labels: list[str], seed: int, batch: int) -> Iterator[tuple[list[Prompt], list[str]]]:
    """What to run: prompt after prompt (or batch after batch), with the methods of each in a seeded random order."""
    chosen = list(prompts)
    for start in range(0, len(chosen), batch):
        group = chosen[start : start + batch]
        digest = hashlib.sha256(f"{seed}\0{group[0].id}".encode()).digest()
        yield group, random.Random(digest).sample(labels, len(labels))


def left(folder: RunFolder, config: Sweep, prompts: PromptSet) -> list[Unit]:
    """What of the plan is not stored yet."""
    done, labels = folder.done(), [m.label for m in config.methods()]
    units = []
    for group, order in plan(prompts, labels, config.seed, config.batch):
        jobs = [Job(label, [p for p in group if sample_key(p.id, label, config.seed) not in done]) for label in order]
        units.append([job for job in jobs if job.prompts])
    return [unit for unit in units if unit]


def _measure(folder: RunFolder, config: Sweep, executor: Executor, prompts: PromptSet, progress: Progress) -> Costs:
    """Have made what is not stored yet, and store it as it comes; returns what the scores took."""
    units, total = left(folder, config, prompts), len(prompts) * len(config.methods())

    def say(what: str) -> None:
        progress(len(folder.done()), total, what)

    for sample, image, where in executor.samples(units, prompts.prompts[0].text, say) if units else ():
        folder.append(sample, image, where)
    progress(total, total, "scoring")
    return executor.costs
