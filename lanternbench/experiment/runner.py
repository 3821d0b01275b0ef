"""Run a sweep: methods interleaved per prompt on one loaded target, every sample stored as soon as
it is decoded.
"""

import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import torch

from lanternbench import prompts as prompt_sets
from lanternbench.errors import UserError
from lanternbench.experiment.config import expand
from lanternbench.experiment.run_folder import RunFolder, unfinished_shards
from lanternbench.experiment.scoring import Scorer, Scoring
from lanternbench.experiment.shards import Shard
from lanternbench.experiment.worker import Executor, Facts, Finished, Job, OnStep, Say, Unit
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.run_notes import noisy_prompts
from lanternbench.measure.run_record import PromptsRecord, RunConfig, RunRecord
from lanternbench.measure.samples import sample_key
from lanternbench.measure.statistics import look_sizes
from lanternbench.measure.summary import Costs, Summary, all_told_apart, kept_sets, summarise
from lanternbench.metrics import (
    ImageMetric,
    Setup,
    metric_class,
    scorers_for,
    weights_of,
)
from lanternbench.models.catalogue import located
from lanternbench.models.entries import catalogue, shortfall
from lanternbench.notes import Note
from lanternbench.prompts import PromptSet
from lanternbench.settings import Sweep
from lanternbench.utils.json_values import config_hash
from lanternbench.utils.progress import Progress, silent
from lanternbench.utils.text import first_of

# an image on a busy machine takes longer than a few steps say: 1.5 times at a load of 8 on two
# cores
MARGIN = 1.5


def nothing() -> None:
    """Leave everything as it is."""


class Callbacks(NamedTuple):
    """Callbacks of a run, and its time budget: the last methods that do not fit are left out;
    after that time no further prompt is begun, but at least one is completed."""

    progress: Progress = silent
    # (tokens done, of), after each step of an image, where this process decodes it
    on_step: OnStep | None = None
    budget_s: float = inf  # once the models are loaded
    remeasure: bool = False  # prompts whose timing was noisy, once
    begun: Callable[[], None] = nothing  # called before the first sample is measured


def run(
    config: Sweep,
    out: Path,
    *,
    fresh: bool = False,
    device: str = "cpu",
    executor: Executor | None = None,
    watch: Callbacks = Callbacks(),  # noqa: B008  (immutable)
    shard: Shard | None = None,
) -> tuple[Path, Summary]:
    """Measure everything in ``config`` that is not stored yet, or one ``shard`` of it; return the
    run folder and its summary, or the shard's as long as others are not finished.

    An interrupted sweep continues where it stopped: what is stored is never computed again, and
    what is computed depends on (seed, prompt, method) alone, whichever ``executor`` computes it,
    by default this process.  Raises UserError before anything is computed if a setting is wrong.
    """
    check(config)
    with closing(executor or Executor()) as workers:
        prompts = prompt_sets.selection(config)
        own = prompts if shard is None else shard.part(prompts)
        facts = workers.start(config, device, -(-len(own) // config.batch) * config.repeats)
        setup = Setup(device=facts.device if torch.cuda.is_available() else "cpu")
        scorers: Sequence[Scorer] = []
        if not config.draws_noise:
            scorers = scorers_for(config.metrics, facts.target.evaluators or "none", setup)
        weights = weights_of(scorers)
        record = record_of(config, facts, prompts)
        with _open(out, record, weights, fresh, shard) as folder:
            folder.score_with(weights)
            record_memory_rate(folder, workers.memory_rate)
            _measure(folder, config, workers, own, watch)
            if watch.remeasure and _discard_noisy(folder):
                _measure(folder, config, workers, own, watch)
            remarks = list(workers.notes())
            if facts.target.remark:
                remarks.append(facts.target.remark)
            finish = partial(_finish, costs=workers.costs, remarks=remarks)
            if shard is None:
                return folder.path, finish(folder, scorers)
            return _finish_shard(folder, shard, scorers, finish)


def _finish_shard(
    folder: RunFolder,
    shard: Shard,
    scorers: Sequence[Scorer],
    finish: Callable[[RunFolder, Sequence[Scorer]], Summary],
) -> tuple[Path, Summary]:
    """Finish a shard, and if it is the last one its run too; return the folder and summary of
    what is finished.
    """
    of_images = [scorer for scorer in scorers if isinstance(scorer, ImageMetric)]
    summary = finish(folder, of_images)  # which says to the other shards that this one is finished
    others = unfinished_shards(folder.whole, shard.of)
    if others:
        unfinished = first_of(others, 8)
        text = f"These are the prompts of shard {shard} alone; unfinished shards: {unfinished}."
        notes = [Note("warning", None, text), *summary.notes]
        return folder.path, summary.model_copy(update={"notes": notes})
    with RunFolder.existing(folder.whole, wait=True) as run:
        run.join(shard.of)
        return run.path, finish(run, scorers)


def _open(
    out: Path, record: RunRecord, weights: dict[str, str], fresh: bool, shard: Shard | None
) -> RunFolder:
    """Return the folder of a run or of its shard, which scores with the ``weights``."""
    if shard is None:
        return RunFolder.open(out, record, fresh)
    scored = record.model_copy(update={"metric_weights": weights})
    return RunFolder.open_shard(out, scored, shard)


def record_memory_rate(folder: RunFolder, measure: Callable[[], float | None]) -> None:
    """Measure how fast memory is read, which takes a second, and store it in a run that begins."""
    if not folder.samples.keys:
        rate = {"memory_gb_per_s": measure()}
        folder.record(environment=folder.run.environment.model_copy(update=rate))


def check(config: Sweep) -> None:
    """Raise UserError for wrong methods or metrics."""
    expand(config)
    for name in (*config.metrics, *config.not_worse):
        metric_class(name)


def check_all(runs: Sequence[Sweep], has_files: bool) -> None:
    """Check every run and its prompts, before models are loaded.  Raises UserError.

    ``has_files``: whether the targets' files must be on this machine.
    """
    for config in runs:
        check(config)
        if has_files:
            located(config.target, config.random_weights)
    for config in {(run.prompts, run.num_prompts, run.caption): run for run in runs}.values():
        prompt_sets.selection(config)


def record_of(config: Sweep, facts: Facts, prompts: PromptSet) -> RunRecord:
    """Return ``run.json`` of a run with these settings and prompts that starts now."""
    settings = config.record(facts.sampling) | {"device": facts.device}
    digest = config_hash(settings | prompts.record())[:8]
    return RunRecord(
        run_id=f"{config.name}-{digest}",
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        config=RunConfig.model_validate(settings),
        config_hash=config_hash(settings),
        environment=facts.environment,
        prompts=PromptsRecord.model_validate(prompts.record()),
        target=facts.target,
        methods=facts.methods,
    )


def _finish(
    folder: RunFolder, scorers: Sequence[Scorer], costs: Costs, remarks: list[str]
) -> Summary:
    """Score whole sets of images if that is still to be done, and write the summary; ``costs``:
    of scores of single images.
    """
    old = folder.summary()
    intact = all(path.is_file() for paths in folder.images.values() for path in paths)
    scoring = Scoring(scorers, Setup(), again=intact)
    scoring.score_sets(folder.images, kept_sets(folder.figures, old))
    notes = list(scoring.notes)
    for scorer in scorers:
        missing = scorer.available()
        if isinstance(scorer, ImageMetric) and missing:
            notes.append(missing)
    for columns in scoring.sets.values():
        unchanged = columns.keys() - scoring.computed
        notes += [note for note in old.notes if note.metric in unchanged]
    notes += [Note("info", None, text) for text in remarks]
    notes += drafter_notes(folder)
    new = summarise(folder.figures, folder.run, scoring.sets)
    summary = new.after(old, notes, costs | scoring.costs)
    folder.finish(summary)
    return summary


def drafter_notes(folder: RunFolder) -> Iterator[Note]:
    """Yield a warning for each method whose published drafter starts far below what the catalogue
    expects of it.
    """
    config = folder.run.config
    row = catalogue().get(config.target.partition("=")[0])
    if row is None or config.draws_noise:
        return
    top, bottom = folder.figures.column("first_token_acceptance")
    for method in expand(config):
        if method.drafter:
            continue
        of_method = folder.figures.of(method.label)
        note = shortfall(
            row,
            method.proposal.drafter_kind or "",
            method.choices.tree,
            config.temperature,
            accepted=round(top[of_method].sum()),
            steps=round(bottom[of_method].sum()),
        )
        if note:
            yield note._replace(text=f"{method.label}: {note.text}")


def missing_units(folder: RunFolder, config: Sweep, prompts: PromptSet) -> list[Unit]:
    """Return what is not stored yet, prompt by prompt or batch by batch, with the methods of each
    in a seeded random order.

    Raises UserError if it would be drawn by other methods than what is stored.
    """
    keys = {method.label: method.key for method in expand(config)}
    _check_keys(folder, keys)
    units = []
    for seed in config.seeds:
        for start in range(0, len(prompts), config.batch):
            group = prompts.prompts[start : start + config.batch]
            unit = []
            for label in _shuffled(list(keys), f"{seed}\0{group[0].id}"):
                missing = [
                    prompt
                    for prompt in group
                    if sample_key(prompt.id, keys[label], seed) not in folder.samples.keys
                ]
                if missing:
                    unit.append(Job(label, missing, seed))
            if unit:
                units.append(unit)
    return units


def _check_keys(folder: RunFolder, keys: Mapping[str, str]) -> None:
    """Raise UserError if the run has other methods with these labels."""
    recorded = {method.label: method.key for method in folder.run.methods}
    for label, key in keys.items():
        if recorded.get(label) != key:
            raise UserError(
                f"run {folder.path.name!r} was begun with other options of '{label}', by another version of"
                " lanternbench or of a plug-in: give --fresh to start a new run next to it"
            )


def _shuffled(labels: list[str], seed: str) -> list[str]:
    generator = random.Random(hashlib.sha256(seed.encode()).digest())
    return generator.sample(labels, len(labels))


def within_budget(
    units: list[Unit], order: list[str], seconds: Mapping[str, float], budget: float
) -> tuple[list[Unit], list[str]]:
    """Return the units that fit in ``budget`` seconds, and the methods left out of them: the last
    of ``order`` first.

    The baseline and one method stay; ``seconds``: an image's, by method.
    """
    total = defaultdict[str, float](float)  # seconds by method
    for unit in units:
        for job in unit:
            total[job.label] += seconds.get(job.label, 0) * len(job.prompts)
    fitting = [label for label in order if label in total]
    left_out: list[str] = []
    least = 2 if BASELINE in fitting else 1
    while len(fitting) > least and sum(total[label] for label in fitting) > budget:
        left_out.insert(0, fitting.pop())
    shortened = [[job for job in unit if job.label in fitting] for unit in units]
    return [unit for unit in shortened if unit], left_out


def _measure(
    folder: RunFolder, config: Sweep, executor: Executor, prompts: PromptSet, watch: Callbacks
) -> None:
    """Make and store the samples that are missing."""
    names = [method.label for method in expand(config)]
    units = missing_units(folder, config, prompts)
    images = len(prompts) * config.repeats

    def say(what: str) -> None:
        watch.progress(len(folder.samples.keys), images * len(names), what)

    deadline = time.monotonic() + watch.budget_s
    complete = images - len(units)
    left_out: list[str] = []
    if units and watch.budget_s < inf:
        say("estimating times")
        seconds = executor.estimate(units)
        budget = (deadline - time.monotonic()) / MARGIN
        units, left_out = within_budget(units, names, seconds, budget)
    measured = [name for name in names if name not in left_out]
    looks = look_sizes(len(names) - 1) if config.until_told_apart else []

    def is_decided() -> bool:
        return complete in looks and all_told_apart(Figures(folder.samples), measured)

    decided = is_decided()
    if units and not decided:
        watch.begun()
        finished = executor.samples(units, prompts.prompts[0].text, say, watch.on_step)
        for is_last_of_unit in _stored(folder, units, finished, say):
            if is_last_of_unit:
                complete += 1
                decided = is_decided()
                if decided or time.monotonic() > deadline:
                    break
    if decided:
        images = complete  # no more are needed
    folder.record(left_out=left_out, told_apart_after=complete if decided else None)
    say("scoring")


def _discard_noisy(folder: RunFolder) -> bool:
    """Discard the samples of prompts whose timing was noisy, of all methods because times are
    paired; return whether there were any.
    """
    noisy = noisy_prompts(folder.figures, folder.run.environment)
    if noisy:
        folder.replace(s for s in folder.samples if (s.prompt_id, s.seed) not in noisy)
    return bool(noisy)


def _stored(
    folder: RunFolder, units: list[Unit], finished: Iterable[Finished], say: Say
) -> Iterator[bool]:
    """Store samples; yield for each whether it is the last of its unit."""
    unit_of: dict[tuple[str, int], int] = {}
    missing = Counter[int]()
    for number, unit in enumerate(units):
        for job in unit:
            missing[number] += len(job.prompts)
            unit_of |= {(prompt.id, job.seed): number for prompt in job.prompts}
    for sample, image, where in finished:
        folder.append(sample, image, where)
        say(f"{sample.label} · {sample.prompt}: {sample.decode_s:.2f} s")
        number = unit_of[sample.prompt_id, sample.seed]
        missing[number] -= 1
        yield missing[number] == 0
