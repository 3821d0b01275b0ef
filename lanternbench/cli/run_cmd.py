"""``run``, ``sweep``, ``import``, ``suite``: measure methods; ``submit``, ``leaderboard``: results
to be cited.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from lanternbench.cli import options, output
from lanternbench.cli.output import (
    display,
    print_cells,
    print_json,
    print_notes,
    print_rows,
    print_table,
)
from lanternbench.errors import UserError
from lanternbench.notes import by_importance, preliminary
from lanternbench.utils.device import choose

if TYPE_CHECKING:
    from lanternbench.experiment.config import Sweep
    from lanternbench.measure.summary import Summary

NOTES = 3  # lines of them after a run
MODEL = "target drafter dtype compile random_weights simulate_acceptance"
RUN = f"{MODEL} prompts num_prompts caption seed repeats temperature top_k top_p guidance batch metrics baseline name"
WORKERS = (
    "With ray: how many (default: one per GPU; without GPUs, one per --threads CPUs, or CPU)."
)
BUDGET = "Leave out the last methods that do not fit in it, and begin no further prompt after it."
PRESETS = (
    "A preset: see `lanternbench methods`; or a file that `tune` wrote; may be given repeatedly."
)
IMPORT = "target caption top_k guidance dtype seed baseline metrics name"
SWEEP = f"prompts num_prompts seed repeats temperature batch {MODEL} until_told_apart name"


class Execution(NamedTuple):
    """Where a sweep runs, for how long, and where its run folders lie."""

    device: options.Device = "auto"
    threads: options.Threads = None
    executor: Annotated[
        str,
        Option(
            help="local, or ray: prompts shared out to the GPUs of a Ray cluster, or to this machine's CPUs."
        ),
    ] = "local"
    workers: Annotated[int | None, Option(min=1, help=WORKERS)] = None
    ray_address: Annotated[
        str | None,
        Option(
            help="Of a cluster to join (default: RAY_ADDRESS, or a cluster started for this sweep)."
        ),
    ] = None
    time_budget: Annotated[float | None, Option(metavar="MINUTES", min=0, help=BUDGET)] = None
    out: options.Results = Path("results")
    fresh: options.Fresh = False


def run(
    methods: Annotated[list[str], Option("--method", "-m", help=PRESETS)],
    settings: Annotated[dict[str, Any], options.Takes(RUN)],
    where: Annotated[Execution, options.Takes("device threads out fresh")],
    method_options: options.MethodOptions,
    as_json: options.AsJson = False,
) -> None:
    """Measure one method, or several, against autoregressive decoding.

    Example: lanternbench run --method cool-sd --lambda 2
    """
    from lanternbench.experiment.config import sweep

    settings = {"name": _name(methods, settings["target"], settings["prompts"])} | settings
    config = sweep(
        settings | {"methods": options.specs(methods, method_options)}, "the command line"
    )
    finish(*execute(config, where), as_json)


def _name(methods: list[str], target: str, prompts: str) -> str:
    """Of the run: its methods, and the target and prompts where they are not the default."""
    from lanternbench.experiment.config import name_part, prompts_name

    parts = [
        "run",
        "+".join(Path(m).stem if m.endswith((".yaml", ".yml")) else m for m in methods),
    ]
    parts += [] if target == "tiny" else [Path(target.partition("=")[0]).name]
    parts += [] if prompts == "demo" else [prompts_name(prompts)]
    return name_part("-".join(parts))


def sweep(
    file: Annotated[
        Path, Argument(metavar="CONFIG.yaml", help="A sweep file such as configs/demo.yaml.")
    ],
    # the defaults are the file's
    settings: Annotated[dict[str, Any], options.Takes(SWEEP, defaults=False)],
    where: Annotated[
        Execution,
        options.Takes("device threads executor workers ray_address time_budget out fresh"),
    ],
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure every method of a sweep file, interleaved prompt by prompt; continues where it
    stopped.

    What is given here is in place of the file's.

    --until-told-apart tests each method against ar after 11 to 16 prompts and three times after
    twice as many, with p corrected for four looks; it ends within --time-budget.

    A list as target, seed, temperature, top_k, guidance or batch makes a run of every combination.

    Example: lanternbench sweep configs/tradeoff.yaml
    """
    from lanternbench.experiment.config import read_sweeps

    if "until_told_apart" in settings:
        settings.setdefault("num_prompts", 0)  # the file's number is no bound
    runs = read_sweeps(file, settings)
    if dry_run:
        show_plan(runs, where, as_json)
        return
    if as_json and len(runs) > 1:
        print_json({"runs": [output.record(*execute(config, where)) for config in runs]})
        return
    for config in runs:
        finish(*execute(config, where), as_json, title=config.name if len(runs) > 1 else None)


def import_(
    source: Annotated[
        Path, Argument(metavar="FILE|DIR", help=".jsonl, .npz or .safetensors; or images.")
    ],
    label: Annotated[str, Option(help="What the tables call it, followed by (imported).")],
    settings: Annotated[dict[str, Any], options.Takes(IMPORT)],
    where: Annotated[Execution, options.Takes("device threads out fresh")],
    steps: Annotated[
        int | None, Option(min=1, help="Target forwards an image, if unsaid.")
    ] = None,
    seconds: Annotated[float | None, Option(min=0, help="Seconds an image, if unsaid.")] = None,
    prompts: Annotated[
        str | None, Option(help="What it was made with (default: its captions).")
    ] = None,
    temperature: Annotated[
        float, Option(help="Of the sampling that it was made with, as top-k and top-p.")
    ] = 1.0,
    top_p: float = 1.0,
    as_json: options.AsJson = False,
) -> None:
    """Score tokens or images of other code beside ar; the tables mark them as imported.

    Example: lanternbench import tokens.npz --target tiny --label ZipAR --seconds 3.2
    """
    from lanternbench import prompts as sources
    from lanternbench.experiment import scoring
    from lanternbench.experiment.config import name_part, sweep
    from lanternbench.imported import run
    from lanternbench.metrics import Setup

    entries = [
        entry._replace(
            seconds=seconds if entry.seconds is None else entry.seconds, steps=entry.steps or steps
        )
        for entry in run.read(source)
    ]
    selected = (
        None
        if prompts is None
        else sources.load(prompts, None, settings["seed"], settings["caption"])
    )
    settings = {
        "name": f"import-{name_part(Path(settings['target'].partition('=')[0]).name)}"
    } | settings
    settings |= {"prompts": prompts or "captions", "temperature": temperature, "top_p": top_p}
    config = sweep(
        settings | {"metrics": [], "methods": ["ar"], "num_prompts": 1}, "the command line"
    )
    device = choose(where.device, where.threads)
    with display("import") as bars:
        folder = run.import_run(
            entries, label, config, selected, where.out, device, where.fresh, bars.show
        )
        summary = scoring.score_run(
            folder, settings["metrics"], Setup(device=device), progress=bars.show
        )
    finish(folder, summary, as_json)


def suite(
    settings: Annotated[dict[str, Any], options.Takes("drafter dtype compile")],
    where: Annotated[
        Execution, options.Takes("device threads executor workers ray_address out fresh")
    ],
    name: Annotated[
        str | None, Argument(metavar="[NAME]", help="A target, or NAME=FOLDER; none: list.")
    ] = None,
    methods: Annotated[
        list[str] | None, Option("--method", "-m", help="In place of the suite's; repeatable.")
    ] = None,
    prompts: Annotated[
        str | None, Option(help="Where the suite's prompts lie: coco2017:FILE.")
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the frozen protocol of a target; continues where it stopped.

    Example: lanternbench suite tiny
    """
    from lanternbench.suite import protocol

    if name is None:
        protocols = map(protocol.protocol, protocol.names())
        rows = [
            {"suite": p.name, "settings": p.recipe, "hash": p.stamp.partition(" ")[2]}
            for p in protocols
        ]
        print_rows(rows, as_json, "suite settings hash")
        return
    target = name.partition("=")[0]
    settings |= {"target": name} | ({"prompts": prompts} if prompts is not None else {})
    settings |= {"methods": options.specs(methods, {})} if methods else {}
    config = protocol.protocol(target).sweep(settings)
    if dry_run:
        show_plan([config], where, as_json)
    else:
        finish(*execute(config, where), as_json)


def submit(
    run: Annotated[str, Argument(help="A run of the suite: its id, name or folder.")],
    out: Annotated[
        Path | None, Option("-o", "--out", help="The file (default: RUN.json).")
    ] = None,
    results: options.Results = Path("results"),
) -> None:
    """Write a run of the suite as one file; refuses what a leaderboard would refuse.

    Example: lanternbench submit suite-v1-tiny
    """
    from lanternbench import experiment as store
    from lanternbench.suite import protocol

    folder = store.find(results, [run])[0]
    record = protocol.submission(folder)
    if reasons := protocol.judged(record)[1]:
        raise UserError(
            f"{folder.name} cannot be submitted: {'; '.join(reasons)}. Run the suite again with --fresh."
        )
    path = out or Path(f"{folder.name}.json")
    protocol.write(record, path)
    print(path)


def leaderboard(
    folder: Annotated[Path, Argument(metavar="DIR", help="Folder of submissions.")],
    check: Annotated[
        bool, Option("--check", help="Write nothing: is LEADERBOARD.md what they give?")
    ] = False,
) -> None:
    """Check submissions and write LEADERBOARD.md; a page, leaderboard.html, too.

    Example: lanternbench leaderboard results/leaderboard
    """
    from lanternbench.suite import leaderboard as board
    from lanternbench.utils.files import replacing

    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: give the one that holds the submissions.")
    entries, refused = board.read_folder(folder)
    boards = board.boards(entries)
    if check:
        path = folder / board.NAMES[0]
        if not path.is_file() or path.read_text(encoding="utf-8") != board.markdown_page(boards):
            raise UserError(
                f"{path} is not what the submissions give: run `lanternbench leaderboard {folder}`."
            )
    for name, page in zip(
        board.NAMES, () if check else (board.markdown_page(boards), board.html_page(boards))
    ):
        with replacing(folder / name, "choose a folder that can be written") as file:
            file.write(page.encode("utf-8", "replace"))
        print(folder / name)
    if refused:
        each = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in refused.items())
        of = len(refused) + len(entries)
        raise UserError(f"{len(refused)} of {of} submissions are refused ({each}): remove them.")


def execute(config: Sweep, where: Execution) -> tuple[Path, Summary]:
    """Run a sweep with progress on stderr; returns its folder and summary."""
    from lanternbench.experiment import runner as sweeps
    from lanternbench.experiment.worker import executor

    workers = executor(where.executor, where.workers, where.threads, where.ray_address)
    local, minutes = where.executor == "local", where.time_budget
    # of a cluster its workers know
    device = choose(where.device, where.threads) if local else where.device
    with display(config.name) as bars:
        watch = sweeps.Callbacks(bars.show, bars.step, inf if minutes is None else 60 * minutes)
        finished = sweeps.run(
            config, where.out, fresh=where.fresh, device=device, executor=workers, watch=watch
        )
    if bars.done < bars.of:
        print_notes(
            [
                f"--time-budget {minutes:g}: {bars.done} of {bars.of} images are made; the same command goes on"
            ]
        )
    return finished


def finish(path: Path, summary: Summary, as_json: bool, title: str | None = None) -> None:
    """A run's summary as JSON, or its table below what makes it unfit to be quoted, and on stderr
    its main notes.
    """
    if as_json:
        print_json(output.record(path, summary))
        return
    notes = by_importance(summary.all_notes())
    for line in filter(None, (preliminary(notes), title)):
        print(line)
    print_table(summary.rows)
    missing = "; ".join(str(note) for note in notes if note.kind == "missing")  # one line for all
    lines = list(dict.fromkeys(missing if note.kind == "missing" else str(note) for note in notes))
    more = f" (and {len(lines) - NOTES} more notes)" if len(lines) > NOTES else ""
    print_notes([*lines[:NOTES], f"{path}  ·  next: {output.program()} report{more}"])


def show_plan(runs: list[Sweep], where: Execution, as_json: bool) -> None:
    """What a sweep would make, and how long that takes on this machine, from a few steps of each
    method.
    """
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
                row = {
                    "run": config.name,
                    "target": config.target,
                    "method": label,
                    "images": count,
                }
                rows.append(row | {"image_s": seconds, "minutes": seconds * count / 60})
    images, minutes = sum(r["images"] for r in rows), sum(r["minutes"] for r in rows)
    if as_json:
        print_json({"plan": rows, "images": images, "minutes": minutes})
        return
    cells = (
        (*map(str, list(r.values())[:4]), f"{r['image_s']:.2f}", f"{r['minutes']:.1f}")
        for r in rows
    )
    print_cells(
        ("run", "target", "method", "images", "s an image", "minutes"),
        cells,
        ("run", "target", "method"),
    )
    print(
        f"{images} images, about {minutes:.1f} minutes on this machine's {device}, one after the other, scores apart"
    )
