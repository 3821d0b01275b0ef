"""``run``, ``sweep``, ``import``, ``suite``: measurements; ``submit``, ``leaderboard``: results to
cite.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument, Option

from lanternbench.cli import options, output
from lanternbench.cli.options import Given, Takes
from lanternbench.cli.output import (
    display,
    print_cells,
    print_json,
    print_notes,
    print_rows,
    print_table,
)
from lanternbench.errors import UserError
from lanternbench.notes import Note, by_importance, headlines
from lanternbench.settings import (
    Execution,
    Measuring,
    ModelSpec,
    Place,
    Sampling,
    Sweep,
    TimedExecution,
    checked,
)
from lanternbench.utils.device import load_average
from lanternbench.utils.progress import counted

if TYPE_CHECKING:
    from lanternbench.experiment.shards import Shard
    from lanternbench.measure.summary import Summary

NOTES = 3  # lines below the table of a run; more only of warnings
PRESETS = (
    "A preset, see `lanternbench methods`, or a file that `tune` wrote; repeat the option for"
    " several."
)
SHARD = (
    "Measure one part of the prompts, such as 2/8: any scheduler can run the parts on machines"
    " that share --out."
)

Methods = Annotated[list[str], Option("--method", "-m", metavar="NAME", help=PRESETS)]

ShardOption = Annotated[str | None, Option("--shard", metavar="K/N", help=SHARD)]

# settings of code that is imported, and of the baseline that is measured next to it
STATED = (
    *("target", "dtype", "caption", "seed"),
    *Sampling.model_fields,
    *("metrics", "baseline", "name"),
)


def run(
    methods: Methods,
    given: Annotated[Given, Takes(Sweep)],
    place: Annotated[Measuring, Takes()],
    method_options: options.MethodOptions,
    shard: ShardOption = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure one or more methods against autoregressive decoding.

    Example: lanternbench run --method cool-sd --lambda 2
    """
    from lanternbench.experiment.config import of_methods
    from lanternbench.runs import part

    config = of_methods(methods, given, method_options, "the command line")
    execution = TimedExecution(**vars(place))
    finish(*execute(config, execution, part(shard, [config], execution)), as_json)


def sweep(
    file: Annotated[
        Path, Argument(metavar="CONFIG.yaml", help="A sweep file such as configs/demo.yaml.")
    ],
    given: Annotated[Given, Takes(Sweep, defaults=False)],  # the defaults are the file's
    execution: Annotated[TimedExecution, Takes()],
    shard: ShardOption = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure every method of a sweep file, interleaved prompt by prompt.

    An interrupted sweep continues where it stopped.  Options replace the settings of the file.  If
    settings such as target, seed, temperature, top_k, guidance or batch are lists in the file,
    every combination is a run.

    --until-told-apart compares each method's speed with ar's after 11 to 16 prompts, and again
    each time the number of prompts has doubled, up to three times; p-values are corrected for the
    four comparisons.  It ends within --time-budget.

    Example: lanternbench sweep configs/tradeoff.yaml
    """
    from lanternbench.experiment.config import read_sweeps

    if "until_told_apart" in given:
        given.setdefault("num_prompts", 0)  # in place of the number in the file
    runs = read_sweeps(file, given)
    from lanternbench.experiment.runner import check_all  # loads torch, and names are known now
    from lanternbench.runs import part

    chosen = part(shard, runs, execution)
    with display("checking the sweep"):
        check_all(runs, has_files=execution.executor == "local")
    if dry_run:
        show_plan(runs, execution, as_json, chosen)
    elif as_json and len(runs) > 1:
        finished = [execute(config, execution, chosen) for config in runs]
        print_json({"runs": [output.record(*one) for one in finished]})
    else:
        for config in runs:
            title = config.name if len(runs) > 1 else None
            finish(*execute(config, execution, chosen), as_json, title)


def import_(
    source: Annotated[
        Path, Argument(metavar="FILE|DIR", help=".jsonl, .npz or .safetensors; or images.")
    ],
    label: Annotated[str, Option(help="Name in tables, to which (imported) is added.")],
    given: Annotated[Given, Takes(Sweep, only=STATED)],
    place: Annotated[Place, Takes()],
    steps: Annotated[
        int | None, Option(help="Target forward passes per image, if the file has none.")
    ] = None,
    seconds: Annotated[
        float | None, Option(help="Seconds per image, if the file has none.")
    ] = None,
    prompts: Annotated[
        str | None, Option(help="Prompts of the images (default: the captions in the file).")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Score tokens or images that were made by other code, and compare them with ar.

    Give the sampling settings of the other code.  Tables mark the results as imported.

    Example: lanternbench import tokens.npz --target tiny --label ZipAR --seconds 3.2
    """
    from lanternbench import prompts as sources
    from lanternbench.experiment.config import name_part
    from lanternbench.experiment.config import sweep as configure
    from lanternbench.experiment.scoring import score_run
    from lanternbench.imported import layouts, run
    from lanternbench.metrics import Setup

    target = Path(given["target"].partition("=")[0])
    defaults = {
        "name": f"import-{name_part(target.name)}",
        "prompts": prompts or "captions",
        "num_prompts": 1,
        "methods": ["ar"],
    }
    config = configure(defaults | given, "the command line")
    metrics = config.metrics
    config = config.model_copy(update={"metrics": []})
    if prompts is None and config.caption != "first":
        raise UserError(
            f"--caption {config.caption} chooses among the captions of --prompts: give these too."
        )
    stated = checked(layouts.Stated, {"steps": steps, "seconds": seconds})
    entries = [entry.with_defaults(stated) for entry in layouts.read(source)]
    selected = None
    if prompts is not None:
        selected = sources.load(prompts, None, config.seed, config.caption)
    device = place.choose()
    with display("import") as bars:
        folder = run.import_run(
            entries, label, config, selected, place.out, device, place.fresh, bars.show
        )
        summary = score_run(folder, metrics, Setup(device=device), progress=bars.show)
    finish(folder, summary, as_json)


def suite(
    given: Annotated[Given, Takes(ModelSpec, only=("drafter", "dtype", "compile"))],
    execution: Annotated[Execution, Takes()],
    name: Annotated[
        str | None,
        Argument(metavar="[NAME]", help="A target, or NAME=FOLDER; lists if not given."),
    ] = None,
    methods: Annotated[
        list[str] | None,
        Option("--method", "-m", help="Replaces the suite's methods; repeat it for several."),
    ] = None,
    prompts: Annotated[
        str | None, Option(help="File with the suite's prompts: coco2017:FILE.")
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the frozen protocol of a target.

    An interrupted run continues where it stopped.

    Example: lanternbench suite tiny
    """
    from lanternbench.experiment.config import specs
    from lanternbench.suite import protocol

    if name is None:
        print_suites(as_json)
        return
    given["target"] = name
    if prompts is not None:
        given["prompts"] = prompts
    if methods:
        given["methods"] = specs(methods, {})
    config = protocol.protocol(name.partition("=")[0]).sweep(given)
    if dry_run:
        show_plan([config], execution, as_json)
    else:
        finish(*execute(config, TimedExecution(**vars(execution))), as_json)


def print_suites(as_json: bool) -> None:
    """Print the targets that have a protocol, and its settings."""
    from lanternbench.suite import protocol

    rows = []
    for name in protocol.names():
        frozen = protocol.protocol(name)
        digest = frozen.stamp.partition(" ")[2]
        rows.append({"suite": frozen.name, "settings": frozen.recipe, "hash": digest})
    print_rows(rows, as_json, "suite settings hash")


def submit(
    run: Annotated[str, Argument(help="Id, name or folder of a run of the suite.")],
    out: Annotated[
        Path | None, Option("-o", "--out", help="File to write (default: RUN.json).")
    ] = None,
    results: options.Results = Path("results"),
) -> None:
    """Write a run of the suite as one file that leaderboards accept.

    Example: lanternbench submit suite-v1-tiny
    """
    from lanternbench import experiment as store
    from lanternbench.suite import protocol

    folder = store.find(results, [run])[0]
    record = protocol.submission(folder)
    if reasons := protocol.judged(record)[1]:
        raise UserError(
            f"{folder.name} cannot be submitted: {'; '.join(reasons)}. "
            "Run `lanternbench suite NAME --fresh`."
        )
    path = out or Path(f"{folder.name}.json")
    protocol.write(record, path)
    print(path)


def leaderboard(
    folder: Annotated[Path, Argument(metavar="DIR", help="Folder of submissions.")],
    check: Annotated[
        bool,
        Option("--check", help="Write nothing, and fail if LEADERBOARD.md is not up to date."),
    ] = False,
) -> None:
    """Check submissions, and write LEADERBOARD.md and leaderboard.html.

    Example: lanternbench leaderboard results/leaderboard
    """
    from lanternbench.suite import leaderboard as board
    from lanternbench.utils.files import write_file

    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: give the one that holds the submissions.")
    entries, refused = board.read_folder(folder)
    boards = board.boards(entries)
    pages = dict(zip(board.NAMES, (board.markdown_page(boards), board.html_page(boards))))
    if check:
        check_page(folder, *next(iter(pages.items())))
    else:
        for name, page in pages.items():
            write_file(folder / name, page, "choose a folder that can be written")
            print(folder / name)
    if refused:
        reasons = "; ".join(f"{name}: {', '.join(why)}" for name, why in refused.items())
        raise UserError(
            f"{len(refused)} of {len(refused) + len(entries)} submissions "
            f"are refused ({reasons}): remove them."
        )


def check_page(folder: Path, name: str, page: str) -> None:
    """Raise UserError if a file is not the page of the submissions."""
    path = folder / name
    if not path.is_file() or path.read_text(encoding="utf-8") != page:
        raise UserError(f"{path} is not up to date: run `lanternbench leaderboard {folder}`.")


def execute(
    config: Sweep, execution: TimedExecution, shard: Shard | None = None
) -> tuple[Path, Summary]:
    """Run a sweep, or a shard of it, with progress on stderr; return its folder and summary."""
    from lanternbench import runs
    from lanternbench.experiment.runner import Callbacks

    with display(config.name) as bars:
        watch = Callbacks(bars.show, bars.step, begun=warn_of_load)
        finished = runs.execute(config, execution, watch, shard)
    if bars.done < bars.of:
        images = f"{bars.done} of {bars.of} images are finished"
        minutes = f"{execution.time_budget or 0:g}"
        print_notes([f"--time-budget {minutes}: {images}; the same command continues"])
    return finished


def warn_of_load() -> None:
    """Print a warning if other programs use the machine now."""
    load = load_average()
    cores = os.cpu_count()
    if load is not None and cores is not None and load > cores:
        text = f"The load is {load:.1f} on {cores} cores before anything is measured: timing will be noisy;"
        print_notes([f"{text} stop other programs, or give --remeasure-disturbed"], bullet="")


def finish(path: Path, summary: Summary, as_json: bool, title: str | None = None) -> None:
    """Print a run's summary as JSON, or as a table with its main notes on stderr.

    Reasons why the figures cannot be quoted come first, and every warning is printed.
    """
    if as_json:
        print_json(output.record(path, summary))
        return
    notes = by_importance(summary.all_notes())
    said = headlines(notes)
    for line in [*said, title]:
        if line:
            print(line)
    print_table(summary.rows)
    print_notes([*note_lines(notes, said), f"{path}  ·  next: {output.program()} report"])


def note_lines(notes: Sequence[Note], said: Sequence[str]) -> list[str]:
    """Return the lines below a table: every warning that was not ``said`` above it, what is
    missing in one line, and the first remarks if there is room.
    """
    missing = [str(note) for note in notes if note.kind == "missing"]
    remarks = [str(note) for note in notes if note.kind == "info"]
    warnings = [note for note in notes if note.kind in ("unfit", "warning")]
    lines = [str(note) for note in warnings if note.text not in said]
    if missing:
        lines.append("; ".join(missing))
    return [*lines, *remarks[: max(NOTES - len(lines), 0)]]


def show_plan(runs: list[Sweep], place: Place, as_json: bool, shard: Shard | None = None) -> None:
    """Print the images of sweeps, or of a shard, and the time they take, estimated from a few
    steps per method, and the prompts that their margins need.
    """
    from lanternbench.report.margins import planned

    device = place.choose()
    rows: list[Planned] = []
    for config in runs:
        rows += plan_of(config, device, shard)
    margins = [plan for config in runs for plan in planned(config, place.out)]
    images = sum(row.images for row in rows)
    minutes = sum(row.minutes for row in rows)
    if as_json:
        document = {"plan": rows, "images": images, "minutes": minutes}
        print_json(document | {"not_worse": margins})
        return
    cells = []
    for row in rows:
        times = (f"{row.image_s:.2f}", f"{row.minutes:.1f}")
        cells.append((row.run, row.target, row.method, str(row.images), *times))
    names = ("run", "target", "method")
    print_cells((*names, "images", "s/image", "minutes"), cells, names)
    print(
        f"{images} images: about {minutes:.1f} minutes one after another on this machine's"
        f" {device}, without scoring"
    )
    for plan in margins:
        print(plan)


class Planned(NamedTuple):
    """The images of one method of a sweep, and the time they take."""

    run: str
    target: str
    method: str
    images: int
    image_s: float
    minutes: float


def plan_of(config: Sweep, device: str, shard: Shard | None = None) -> list[Planned]:
    """Return the plan of each method of a sweep, or of its shard."""
    from lanternbench import prompts as sources
    from lanternbench.experiment.worker import Worker

    prompts = sources.selection(config)
    if shard is not None:
        prompts = shard.part(prompts)
    captions = [prompt.text for prompt in prompts.prompts[: config.batch]]
    images = len(prompts) * config.repeats
    rows = []
    with display(config.name) as bars:
        worker = Worker(config, device)
        labels = list(worker.decoders)
        for label in counted(labels, bars.show, lambda label: f"a few steps of {label}"):
            seconds = worker.seconds_per_image(label, captions)
            minutes = seconds * images / 60
            rows.append(Planned(config.name, config.target, label, images, seconds, minutes))
    return rows
