"""Shared by ``run``, ``sweep`` and ``suite``: run a configuration, show its table, or its plan."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from rich.console import Console
from typer import Option

from lanternbench.cli import options
from lanternbench.cli.output import print_cells, print_json, print_notes, print_table, program, record
from lanternbench.cli.progress import display
from lanternbench.notes import by_importance, preliminary
from lanternbench.utils.device import choose

if TYPE_CHECKING:
    from lanternbench.experiment.config import Sweep
    from lanternbench.measure.summaries import Summary

NOTES = 3  # lines of them after a run


class Execution(NamedTuple):
    """Where a sweep runs, for how long, and where its run folders lie."""

    device: options.Device = "auto"
    threads: options.Threads = None
    executor: Annotated[
        str,
        Option(help="local, or ray: prompts shared out to the GPUs of a Ray cluster, or to this machine's CPUs."),
    ] = "local"
    workers: Annotated[
        int | None,
        Option(min=1, help="With ray: how many (default: one per GPU; without GPUs, one per --threads CPUs, or CPU)."),
    ] = None
    ray_address: Annotated[
        str | None,
        Option(help="Of a cluster to join (default: RAY_ADDRESS, or a cluster started for this sweep)."),
    ] = None
    time_budget: Annotated[
        float | None,
        Option(
            metavar="MINUTES",
            min=0,
            help="Leave out the last methods that do not fit in it, and begin no further prompt after it.",
        ),
    ] = None
    out: options.Out = Path("results")
    fresh: options.Fresh = False


def execute(config: Sweep, where: Execution) -> tuple[Path, Summary]:
    """Run a sweep with progress on stderr; returns its folder and summary."""
    from lanternbench.experiment import runner as sweeps
    from lanternbench.experiment.executors import executor

    made_by = executor(where.executor, where.workers, where.threads, where.ray_address)
    local, minutes = where.executor == "local", where.time_budget
    device = choose(where.device, where.threads) if local else where.device  # of a cluster its workers know
    done, of = 0, 0
    with display(config.name) as bars:

        def progress(*pieces: Any) -> None:
            nonlocal done, of
            done, of, _ = pieces
            bars.show(*pieces)

        watch = sweeps.Callbacks(progress, bars.step, inf if minutes is None else 60 * minutes)
        finished = sweeps.run(config, where.out, fresh=where.fresh, device=device, executor=made_by, watch=watch)
    if done < of:
        stopped = f"--time-budget {minutes:g}: {done} of {of} images are made; the same command goes on"
        print_notes([stopped], Console(stderr=True))
    return finished


def show(path: Path, summary: Summary, title: str | None = None) -> None:
    """The table of a run on stdout, below what makes it unfit to be quoted; the most important notes on stderr."""
    notes = by_importance(summary.all_notes())
    for line in filter(None, (preliminary(notes), title)):
        print(line)
    print_table(summary.rows)
    missing = "; ".join(str(note) for note in notes if note.kind == "missing")  # one line for all
    lines = list(dict.fromkeys(missing if note.kind == "missing" else str(note) for note in notes))
    more = f" (and {len(lines) - NOTES} more notes)" if len(lines) > NOTES else ""
    print_notes([*lines[:NOTES], f"{path}  ·  next: {program()} report{more}"], Console(stderr=True))


def finish(path: Path, summary: Summary, as_json: bool) -> None:
    """What one run has to show: its table, or its summary as JSON."""
    if as_json:
        print_json(record(path, summary))
    else:
        show(path, summary)


def show_plan(runs: list[Sweep], where: Execution, as_json: bool) -> None:
    """What a sweep would make, and how long that takes on this machine, from a few steps of each method."""
    from lanternbench import prompts as sources
    from lanternbench.experiment.worker import Worker

    rows: list[dict[str, Any]] = []
    device = choose(where.device, where.threads)
    for config in runs:
        prompts = sources.load(config.prompts, config.num_prompts, config.seed, config.caption)
        count = len(prompts) * config.repeats
        captions = [p.text for p in prompts.prompts[: config.batch]]
        with display(config.name) as bars:
            worker = Worker(config, device)
            for done, label in enumerate(worker.decoders):
                bars.show(done, len(worker.decoders), f"a few steps of {label}")
                seconds = worker.seconds_per_image(label, captions)
                row = {"run": config.name, "target": config.target, "method": label, "images": count}
                rows.append(row | {"image_s": seconds, "minutes": seconds * count / 60})
    images, minutes = sum(r["images"] for r in rows), sum(r["minutes"] for r in rows)
    if as_json:
        print_json({"plan": rows, "images": images, "minutes": minutes})
        return
    cells = ((*map(str, list(r.values())[:4]), f"{r['image_s']:.2f}", f"{r['minutes']:.1f}") for r in rows)
    print_cells(("run", "target", "method", "images", "s an image", "minutes"), cells, ("run", "target", "method"))
    print(f"{images} images, about {minutes:.1f} minutes on this machine's {device}, one after the other, scores apart")
