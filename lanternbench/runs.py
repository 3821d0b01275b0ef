"""Runs, for the commands and from Python: measure a sweep, and log it with a tracker."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lanternbench.component import Choices
from lanternbench.errors import UserError, unknown
from lanternbench.experiment import config, runner
from lanternbench.experiment.shards import Shard
from lanternbench.experiment.worker import executor
from lanternbench.measure.summary import Summary
from lanternbench.methods.method import canonical, options
from lanternbench.settings import MethodSpec, Sweep, TimedExecution, checked
from lanternbench.utils.progress import Progress, silent

if TYPE_CHECKING:
    from lanternbench.report.frames import RunFrames

SWEEP = Sweep.model_fields.keys() - {"methods", "suite"}
EXECUTION = TimedExecution.model_fields.keys()


def run(
    methods: str | MethodSpec | Sequence[str | MethodSpec],
    progress: Progress | None,
    settings: Mapping[str, object],
) -> "RunFrames":
    """Measure methods: see ``lanternbench.run``."""
    from lanternbench.report.frames import run_frames

    several = (
        [methods] if isinstance(methods, str) or not isinstance(methods, Sequence) else methods
    )
    given = {name: value for name, value in settings.items() if value is not None}
    shard = given.pop("shard", None)
    known = ["shard", *SWEEP, *EXECUTION, *Choices._fields, *options()]
    for name in given:
        if canonical(name) not in known:
            raise unknown(f"run has no setting '{name}'", name, sorted(known))
    of_sweep = {name: given.pop(name) for name in SWEEP & given.keys()}
    of_execution = {name: given.pop(name) for name in EXECUTION & given.keys()}
    execution = checked(TimedExecution, of_execution, "run")
    sweep = config.of_methods(several, of_sweep, given, "run")
    chosen = part(None if shard is None else str(shard), [sweep], execution)
    path, summary = execute(sweep, execution, runner.Callbacks(progress or silent), chosen)
    return replace(run_frames(path), notes=summary.all_notes())


def part(text: str | None, sweeps: Sequence[Sweep], execution: TimedExecution) -> Shard | None:
    """Return the shard to measure, if one is given.  Raises UserError for a wrong one, and for
    options that it cannot have.
    """
    if text is None:
        return None
    decides = any(sweep.until_told_apart for sweep in sweeps)
    if decides or execution.fresh or execution.time_budget is not None:
        flags = "--until-told-apart, --time-budget or --fresh"
        raise UserError(
            f"--shard cannot go with {flags}, which concern all prompts: leave these out; another"
            " --out or --name starts a new run"
        )
    return Shard.parse(text)


def execute(
    sweep: Sweep,
    execution: TimedExecution,
    watch: runner.Callbacks,
    shard: Shard | None = None,
) -> tuple[Path, Summary]:
    """Measure what is missing of a sweep, or of a shard; return its folder and summary.

    Raises UserError before anything is computed if a setting is wrong, or the tracker cannot
    start; one that fails at the end is a note of the summary.
    """
    workers = executor(
        execution.executor, execution.workers, execution.threads, execution.ray_address
    )
    device = execution.device
    if execution.executor == "local":  # a cluster's workers choose for themselves
        device = execution.choose()
    tracker = None
    if execution.tracker is not None:
        from lanternbench.report.tracking import started

        runner.check(sweep)
        tracker = started(execution.tracker, sweep)
    watch = watch._replace(budget_s=execution.seconds, remeasure=execution.remeasure_disturbed)
    path, summary = runner.run(
        sweep,
        execution.out,
        fresh=execution.fresh,
        device=device,
        executor=workers,
        watch=watch,
        shard=shard,
    )
    if tracker is not None:
        notes = [*summary.notes, *tracker.log(path)]
        summary = summary.model_copy(update={"notes": notes})
    return path, summary
