"""Shared by ``run`` and ``sweep``: run a configuration, show its table, or its plan."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from lanternbench.cli.output import number_table, print_json, print_notes, print_table, record, stdout
from lanternbench.cli.program import program
from lanternbench.cli.progress import display
from lanternbench.notes import by_importance, preliminary
from lanternbench.utils.device import choose

if TYPE_CHECKING:
    from lanternbench.experiment.config import Sweep
    from lanternbench.measure.summaries import Summary

NOTES = 3  # lines of them after a run


def execute(
    config: Sweep,
    device: str,
    threads: int | None,
    out: Path,
    fresh: bool,
    executor: str = "local",
    workers: int | None = None,
    ray_address: str | None = None,
    minutes: float | None = None,
) -> tuple[Path, Summary]:
    """Run a sweep with progress on stderr; returns its folder and summary."""
    from lanternbench.experiment import runner as sweeps
    from lanternbench.experiment.executors import executor as make_executor

    made_by = make_executor(executor, workers, threads, ray_address)
    chosen = choose(device, threads) if executor == "local" else device  # of a cluster its workers know
    counts = (0, 0)
    with display(config.name) as shown:

        def progress(done: int, of: int, what: str) -> None:
            nonlocal counts
            counts = done, of
            shown.show(done, of, what)

        watch = sweeps.Callbacks(progress, shown.step, inf if minutes is None else 60 * minutes)
        found = sweeps.run(config, out, fresh=fresh, device=chosen, executor=made_by, watch=watch)
    if counts[0] < counts[1]:
        stopped = f"--time-budget {minutes:g}: {counts[0]} of {counts[1]} images are made; the same command goes on"
        print_notes([stopped], Console(stderr=True))
    return found


def show(path: Path, summary: Summary, title: str | None = None) -> None:
    """The table of a run on stdout, below what makes it unfit to be quoted; the most important notes on stderr."""
    notes = by_importance(summary.all_notes())
    for line in filter(None, (preliminary(notes), title)):
        print(line)
    print_table(summary.rows)
    console = Console(stderr=True)
    missing = "; ".join(str(note) for note in notes if note.kind == "missing")  # one line for all
    lines = list(dict.fromkeys(missing if note.kind == "missing" else str(note) for note in notes))
    print_notes(lines[:NOTES], console)
    more = f" (and {len(lines) - NOTES} more notes)" if len(lines) > NOTES else ""
    print_notes([f"{path}  ·  next: {program()} report{more}"], console)


def finish(path: Path, summary: Summary, as_json: bool) -> None:
    """What one run has to show: its table, or its summary as JSON."""
    if as_json:
        print_json(record(path, summary))
    else:
        show(path, summary)


def show_plan(runs: list[Sweep], device: str, threads: int | None, as_json: bool) -> None:
    """What a sweep would make, and how long that takes on this machine, from a few steps of each method."""
    from lanternbench import prompts as sources
    from lanternbench.experiment.worker import Worker

    rows: list[dict[str, Any]] = []
    chosen = choose(device, threads)
    for config in runs:
        prompts = sources.load(config.prompts, config.num_prompts, config.seed, config.caption)
        count = len(prompts) * config.repeats
        captions = [p.text for p in prompts.prompts[: config.batch]]
        with display(config.name) as shown:
            worker = Worker(config, chosen)
            seconds: dict[str, float] = {}
            for label in worker.decoders:
                shown.show(len(seconds), len(worker.decoders), f"a few steps of {label}")
                seconds[label] = worker.seconds_per_image(label, captions)
        rows += [
            {"run": config.name, "target": config.target, "method": label, "images": count, "image_s": each,
             "minutes": each * count / 60}
            for label, each in seconds.items()
        ]  # fmt: skip
    images, minutes = sum(r["images"] for r in rows), sum(r["minutes"] for r in rows)
    if as_json:
        print_json({"plan": rows, "images": images, "minutes": minutes})
        return
    words = ("run", "target", "method")
    table = number_table((*words, "images", "s an image", "minutes"), words)
    for row in rows:
        names = (Text(str(row[key])) for key in words)
        table.add_row(*names, str(row["images"]), f"{row['image_s']:.2f}", f"{row['minutes']:.1f}")
    stdout().print(table)
    print(f"{images} images, about {minutes:.1f} minutes on this machine's {chosen}, one after the other, scores apart")
