"""Run a sweep: methods interleaved per prompt on one loaded target, every sample stored as soon as
it is decoded.
"""

import hashlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import NamedTuple

import torch

from lanternbench import prompts as prompt_sets
from lanternbench.errors import UserError
from lanternbench.experiment.config import expand
from lanternbench.experiment.run_folder import RunFolder
from lanternbench.experiment.scoring import Progress, Scoring, previous_summary, silent
from lanternbench.experiment.worker import Executor, Facts, Job, OnStep, Unit
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.run_record import MethodRecord, PromptsRecord, RunConfig, RunRecord
from lanternbench.measure.samples import sample_key
from lanternbench.measure.statistics import look_sizes
from lanternbench.measure.summary import Costs, Summary, all_told_apart, kept_sets, summarise
from lanternbench.methods.method import Method
from lanternbench.metrics import ImageMetric, SetMetric, Setup, scorers_for, weights_of
from lanternbench.models.entries import catalogue, shortfall
from lanternbench.notes import Note
from lanternbench.prompts import PromptSet
from lanternbench.settings import Sweep
from lanternbench.utils.json_values import config_hash

# an image on a busy machine takes longer than a few steps say: 1.5 times at a load of 8 on two
# cores
MARGIN = 1.5


class Callbacks(NamedTuple):
    """Callbacks of a run, and its time budget: the last methods that do not fit are left out;
    after that time no further prompt is begun, but at least one is completed."""

    progress: Progress = silent
    # (tokens done, of), after each step of an image, where this process decodes it
    on_step: OnStep | None = None
    budget_s: float = inf  # once the models are loaded


def run(
    config: Sweep,
    out: Path,
    *,
    fresh: bool = False,
    device: str = "cpu",
    executor: Executor | None = None,
    watch: Callbacks = Callbacks(),  # noqa: B008  (immutable)
) -> tuple[Path, Summary]:
    """Measure everything in ``config`` that is not stored yet; returns the run folder and its
    summary.

    An interrupted sweep continues where it stopped: what is stored is never computed again, and
    what is computed depends on (seed, prompt, method) alone, whichever ``executor`` computes it,
    by default this process.  Raises UserError before anything is computed if a setting is wrong.
    """
    with closing(executor or Executor()) as workers:
        prompts = prompt_sets.load(config.prompts, config.num_prompts, config.seed, config.caption)
        facts = workers.start(config, device, -(-len(prompts) // config.batch) * config.repeats)
        setup = Setup(device=facts.device if torch.cuda.is_available() else "cpu")
        scorers = []
        if not config.draws_noise:
            scorers = scorers_for(config.metrics, facts.target.evaluators or "none", setup)
        with open_run(out, config, facts, prompts, expand(config), fresh) as folder:
            folder.score_with(weights_of(scorers))
            costs = _measure(folder, config, workers, prompts, watch)
            remarks = workers.notes()
            if facts.target.remark:
                remarks.append(facts.target.remark)
            summary = _summary(folder, config, scorers, costs, remarks)
            folder.finish(summary)
            return folder.path, summary


def open_run(
    out: Path,
    config: Sweep,
    facts: Facts,
    prompts: PromptSet,
    methods: Sequence[Method],
    fresh: bool,
) -> RunFolder:
    """The run folder of these settings and prompts, new or continued.  Raises UserError if it
    cannot be used.
    """
    settings = config.record(facts.sampling) | {"device": facts.device}
    digest = config_hash(settings | prompts.record())[:8]
    record = RunRecord(
        run_id=f"{config.name}-{digest}",
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        config=RunConfig.model_validate(settings),
        config_hash=config_hash(settings),
        environment=facts.environment,
        prompts=PromptsRecord.model_validate(prompts.record()),
        target=facts.target,
        methods=[
            MethodRecord(
                label=one.label,
                key=one.key,
                method=one.preset,
                options=one.options,
                lossless=facts.lossless[one.label],
            )
            for one in methods
        ],
    )
    return RunFolder.open(out, record, fresh)


def _summary(
    folder: RunFolder,
    config: Sweep,
    scorers: list[ImageMetric | SetMetric],
    costs: Costs,
    remarks: list[str],
) -> Summary:
    """Score whole sets of images where that is still to be done, and sum up; ``costs``: of scores
    of single images.
    """
    old = previous_summary(folder)
    intact = all(path.is_file() for paths in folder.images.values() for path in paths)
    scoring = Scoring(scorers, Setup(), again=intact)
    scoring.score_sets(folder.images, kept_sets(folder.figures, old))
    unchanged = {name for columns in scoring.sets.values() for name in columns} - scoring.computed
    summary = summarise(folder.figures, folder.run, scoring.sets)
    notes = summary.notes + scoring.notes
    notes += [note for s in scorers if isinstance(s, ImageMetric) and (note := s.available())]
    notes += [note for note in old.notes if note.metric in unchanged]
    notes += [Note("info", None, text) for text in remarks] + drafter_notes(folder, config)
    costs = old.costs | costs | scoring.costs
    notes = list(dict.fromkeys(notes))
    changes = {"notes": notes, "costs": costs, "reference": old.reference}
    return summary.model_copy(update=changes)


def drafter_notes(folder: RunFolder, config: Sweep) -> list[Note]:
    """A warning for each method whose published drafter starts far below what the catalogue
    expects of it.
    """
    row = catalogue().get(config.target.partition("=")[0])
    if row is None or config.draws_noise:
        return []
    top, bottom = folder.figures.column("first_token_acceptance")
    notes = []
    for m in (m for m in expand(config) if not m.drafter):
        rows = folder.figures.of(m.label)
        accepted, steps = round(top[rows].sum()), round(bottom[rows].sum())
        note = shortfall(
            row,
            m.proposal.drafter_kind or "",
            m.choices.tree,
            folder.run.config.temperature,
            accepted,
            steps,
        )
        notes += [note._replace(text=f"{m.label}: {note.text}")] if note else []
    return notes


def missing_units(folder: RunFolder, config: Sweep, prompts: PromptSet) -> list[Unit]:
    """What is not stored yet, prompt by prompt or batch by batch, with the methods of each in a
    seeded random order.

    Raises UserError where it would be drawn by other methods, or with other seeds, than what is
    stored.
    """
    done, keys = folder.done, {m.label: m.key for m in expand(config)}
    recorded = {method.label: method.key for method in folder.run.methods}
    if other := [label for label, key in keys.items() if recorded.get(label) != key]:
        text = f"run {folder.path.name!r} was begun with other options of '{other[0]}', by another version of"
        raise UserError(
            f"{text} lanternbench or of a plug-in: give --fresh to start a new run beside it"
        )
    units = []
    for seed, start in itertools.product(config.seeds, range(0, len(prompts), config.batch)):
        group = prompts.prompts[start : start + config.batch]
        seeded = random.Random(hashlib.sha256(f"{seed}\0{group[0].id}".encode()).digest())
        order = seeded.sample(list(keys), len(keys))
        jobs = [
            Job(m, [p for p in group if sample_key(p.id, keys[m], seed) not in done], seed)
            for m in order
        ]
        units.append([job for job in jobs if job.prompts])
    return [unit for unit in units if unit]


def within_budget(
    units: list[Unit], order: list[str], seconds: Mapping[str, float], budget: float
) -> tuple[list[Unit], list[str]]:
    """The units that fit in ``budget`` seconds, and the methods left out of them: the last of
    ``order`` first.

    The baseline and one method stay; ``seconds``: an image's, by method.
    """
    images = Counter(job.label for unit in units for job in unit for _ in job.prompts)
    fitting = [label for label in order if label in images]
    least = 1 + (BASELINE in fitting)
    while (
        len(fitting) > least
        and sum(seconds.get(label, 0) * images[label] for label in fitting) > budget
    ):
        fitting.pop()
    units = [[job for job in unit if job.label in fitting] for unit in units]
    return [unit for unit in units if unit], [
        label for label in order if label in images and label not in fitting
    ]


def _measure(
    folder: RunFolder, config: Sweep, executor: Executor, prompts: PromptSet, watch: Callbacks
) -> Costs:
    """Make and store the samples that are missing; returns the cost of the scores."""
    names = [m.label for m in expand(config)]
    units, images = missing_units(folder, config, prompts), len(prompts) * config.repeats

    def say(what: str) -> None:
        watch.progress(len(folder.done), images * len(names), what)

    deadline, complete, left_out = (
        time.monotonic() + watch.budget_s,
        images - len(units),
        list[str](),
    )
    if units and watch.budget_s < inf:
        say("estimating times")
        seconds = executor.estimate(units)
        units, left_out = within_budget(
            units, names, seconds, (deadline - time.monotonic()) / MARGIN
        )
    looks = look_sizes(len(names) - 1) if config.until_told_apart else []
    measured = [name for name in names if name not in left_out]

    def told_apart() -> bool:
        return complete in looks and all_told_apart(Figures(folder.samples), measured)

    if done := told_apart():  # a run that stopped there before
        units = []
    missing = [sum(len(job.prompts) for job in unit) for unit in units]
    unit_of = {
        (p.id, job.seed): i for i, unit in enumerate(units) for job in unit for p in job.prompts
    }
    for sample, image, where in (
        executor.samples(units, prompts.prompts[0].text, say, watch.on_step) if units else ()
    ):
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
