"""``report``, ``compare``, ``score``: what finished runs give, what changed between two, what
their images score.
"""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.output import (
    display,
    print_cells,
    print_json,
    print_notes,
    print_table,
    record,
)
from lanternbench.errors import UserError
from lanternbench.utils.device import choose
from lanternbench.utils.text import one_line

FIGURES = ["speedup", "latency_s", "accept_len", "fidelity_loss"]
ROBUST = ["robust_speedup", "robust_latency_s"]
GATE = "FIGURE<BOUND or FIGURE>BOUND, of the change; % for relative. Figures: speedup, tau, …"
CAPTIONS = "Captions of a plain folder: COCO's .json, or a .tsv/.csv with a column image."
LAYOUT = "Only copy images for an official scorer: geneval or dpg, and where."
CLOCKED = {
    "speedup",
    "latency_s",
    "tokens_per_s",
    "images_per_s",
    "end_to_end_s",
    "end_to_end_speedup",
}


def report(
    runs: Annotated[
        list[str] | None, Argument(metavar="[RUN]...", help="Run ids or folders.")
    ] = None,
    results: options.Results = Path("results"),
    out: Annotated[Path | None, Option(help="Where to write (default: RUN/report).")] = None,
    published: Annotated[
        bool, Option("--published", help="Show the papers' numbers beside ours.")
    ] = False,
    formats: Annotated[
        str | None,
        Option("--format", help="Of md,csv,tex,html,json, comma-separated (default: all)."),
    ] = None,
    methods: Annotated[
        str | None, Option(help="These alone, in this order: labels or names, comma-separated.")
    ] = None,
    columns: Annotated[
        str | None, Option(help="Columns of tables by key: speedup,accept_len,fidelity_loss.")
    ] = None,
    names: Annotated[
        Path | None, Option(metavar="FILE", help="YAML of names in a paper, as `eagle-1: EAGLE`.")
    ] = None,
    grid: Annotated[
        bool, Option("--grid", help="Write grid.png and grid.pdf: images, prompts × methods.")
    ] = False,
    grid_prompts: Annotated[int, Option(min=1, help="How many prompts --grid shows.")] = 4,
    budget: Annotated[
        float, Option(min=0, help="Fidelity loss that the fastest relaxed method may have.")
    ] = 0.1,
    as_json: Annotated[
        bool, Option("--json", help="Print the rows and the files written as JSON.")
    ] = False,
) -> None:
    """Write tables, pictures and one HTML page; the latest run by default.

    Example: lanternbench report --published
    """
    from lanternbench import experiment as store
    from lanternbench.notes import preliminary
    from lanternbench.report.load import View, differing, joined_rows, load_runs, read_names
    from lanternbench.report.write import report as write

    folders = store.find(results, runs or [])
    view = View(
        tuple(options.listed(methods)),
        tuple(options.listed(columns)),
        read_names(names) if names else {},
    )
    form = options.listed(formats) if formats is not None else None
    files = write(folders, out, published, form, budget, view, grid_prompts if grid else 0)
    loaded = view.of(load_runs(folders))
    rows = view.named(joined_rows(loaded))
    if as_json:
        print_json({"rows": rows, "files": [str(f) for f in files]})
        return
    several = len(loaded) > 1
    first = [
        (f"{run.run_id}: " if several else "") + line
        for run in loaded
        if (line := preliminary(run.notes))
    ]
    for line in filter(None, (differing(loaded), *first)):
        print(one_line(line, 4000))
    print_table(rows, view.columns_for(rows, "terminal") if view.columns else None)
    page, kinds = [file for file in files if file.name == "report.html"], dict[str, list[str]]()
    for file in files:
        kinds.setdefault(file.stem, []).append(file.suffix)
    named = ", ".join(
        f"{stem}{' '.join(endings)}" for stem, endings in kinds.items() if stem != "report"
    )
    print_notes([*([f"{files[0].parent}: {named}"] if named else []), *page], bullet="")


def compare(
    old: Annotated[str, Argument(help="Run id or folder.")],
    new: Annotated[str, Argument(help="Run id or folder.")],
    fail_if: Annotated[list[str] | None, Option(help=GATE)] = None,
    results: options.Results = Path("results"),
    as_json: options.AsRows = False,
) -> None:
    """Compare the methods that two runs share, prompt by prompt; exit code 1 if the gate of
    --fail-if fails.

    A change fails if the estimate is beyond the bound and its 95 % interval excludes no change at
    all.

    Example: lanternbench compare main-1a2b3c4d branch-5e6f7a8b --fail-if "speedup<-5%"
    """
    from lanternbench.experiment import find, iter_samples, read_run
    from lanternbench.measure.change import changes, condition, judge, not_compared
    from lanternbench.measure.figures import Figures
    from lanternbench.measure.run_notes import contention
    from lanternbench.report.load import Run, differing

    conditions = [condition(text) for text in fail_if or []]
    places = [find(results, [name])[0] for name in (old, new)]
    infos = [read_run(place) for place in places]
    before, after = (Figures(iter_samples(place)) for place in places)
    notes = [differing([Run(place, info, [], []) for place, info in zip(places, infos)])]
    disturbed = [
        contention(figures, info.get("environment") or {})
        for figures, info in zip((before, after), infos)
    ]
    notes += [f"{place.name}: {note.text}" for place, note in zip(places, disturbed) if note]
    print_notes(filter(None, notes))

    names = [*FIGURES, *(ROBUST if any(disturbed) else []), *before.metrics, *after.metrics]
    wanted = [c.figure for c in conditions]
    compared, unjudged = changes(before, after, list(dict.fromkeys([*names, *wanted])))
    known = dict.fromkeys(
        [*names, *ROBUST, *(c.figure for c in compared), *(u.figure for u in unjudged)]
    )
    measured = {name for name in known for run in (before, after) if run.column(name)[1].any()}
    if absent := [name for name in wanted if name not in measured]:
        choice = ", ".join(
            "tau" if name == "accept_len" else name for name in known if name in measured
        )
        raise UserError(
            f"--fail-if {absent[0]}: neither run has such a figure; choose one of {choice}"
        )
    verdict = judge(before, after, conditions) if conditions else None
    if verdict is None and not compared:
        raise UserError(
            f"{old} and {new} share no method with two prompts or more: compare runs of the same sweep"
        )
    judged = (
        {(change.label, change.figure): change for change in verdict.judged} if verdict else {}
    )
    compared = [judged.get((change.label, change.figure), change) for change in compared]
    failed = [verdict is not None and change in verdict.failed for change in compared]
    if as_json:
        judgements = [
            change._asdict() | {"failed": bad}
            for change, bad in zip(compared, failed, strict=True)
        ]
        gate = verdict and {
            "passed": verdict.passed,
            "judged": len(verdict.judged),
            "said": verdict.sentence(),
        }
        print_json({"changes": judgements, "unjudged": unjudged, "gate": gate, "notes": notes})
    else:
        rows = []
        for change, bad in zip(compared, failed, strict=True):
            form, found = (
                ("{:+.1%}", change.relative) if change.relative else ("{:+.3g}", change.difference)
            )
            value, lo, hi = (form.format(x) for x in found)
            numbers = (
                str(change.prompts),
                f"{change.old:.3f}",
                f"{change.new:.3f}",
                value,
                f"[{lo}, {hi}]",
            )
            rows.append((change.label, change.figure, *numbers, "FAILED" if bad else ""))
        titles = ("method", "figure", "prompts", "old", "new", "change", "95 %", "")
        print_cells(titles, rows, ("method", "figure", ""))
        sentence = verdict.sentence() if verdict else not_compared(unjudged)
        if (
            verdict
            and any(disturbed)
            and not {c.figure for c in verdict.judged}.isdisjoint(CLOCKED)
        ):
            sentence += "; a clock was disturbed: robust_speedup errs less"
        if sentence:
            print(sentence)
    if verdict and not verdict.passed:
        raise typer.Exit(1)


def score(
    runs: Annotated[
        list[str] | None, Argument(metavar="[RUN]...", help="Runs, or plain folders of images.")
    ] = None,
    metrics: Annotated[
        str | None, Option(help="Comma-separated; all that suit the target by default.")
    ] = None,
    reference: Annotated[
        Path | None, Option(help="Folder of real images, or FID's .npz statistics of some.")
    ] = None,
    captions: Annotated[str | None, Option(help=CAPTIONS)] = None,
    caption: Annotated[
        str, Option(help="Caption of a COCO image: first, longest, random.")
    ] = "first",
    random_weights: Annotated[
        bool,
        Option("--random-weights", help="Full-size networks without files: what it would take."),
    ] = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    again: Annotated[bool, Option("--again", help="Also score what is scored already.")] = False,
    export: Annotated[tuple[str, Path] | None, Option(metavar="LAYOUT DIR", help=LAYOUT)] = None,
    results: options.Results = Path("results"),
    as_json: Annotated[bool, Option("--json", help="Print the rows and notes as JSON.")] = False,
) -> None:
    """Score saved images; the latest run by default.  Stopped at any point, the same command
    continues.

    Example: lanternbench score --metrics image-reward,hpsv2
    """
    from lanternbench.experiment import find, latest, scoring
    from lanternbench.metrics import Setup
    from lanternbench.metrics.reference import check_reference
    from lanternbench.report.columns import metric_column, metric_keys

    if reference is not None:
        check_reference(reference)
    names = options.listed(metrics) if metrics is not None else None
    setup = Setup(reference, choose(device, threads), random_weights)
    plain = {
        name
        for name in runs or ()
        if Path(name).is_dir() and not (results / name / "run.json").is_file()
    }
    places = [Path(name) if name in plain else find(results, [name])[0] for name in runs or ()]
    places = places or [latest(results)]
    if export is not None:
        _export(*export, places)
        return
    scored = []
    with display("scoring") as bars:
        for place in places:
            if (place / "run.json").is_file():
                if captions is not None:
                    raise UserError(
                        f"{place} is a run and knows its captions: leave --captions out."
                    )
                summary = scoring.score_run(place, names, setup, again=again, progress=bars.show)
            else:
                more: Any = {"caption": caption, "again": again, "progress": bars.show}
                summary = scoring.score_folder(place, captions, names, setup, **more)
            scored.append((place, summary))
    if as_json:
        print_json([record(place, summary) for place, summary in scored])
        return
    for place, summary in scored:
        row = summary.rows[0]
        if row.method:
            print_table(summary.rows)
        else:  # the images of a plain folder, a metric a line
            kinds = map(metric_column, metric_keys([row]))
            cells = (
                (c.title + c.arrow, c.value(row), c.bounds(row), str(row.figure(c.key).n or row.n))
                for c in kinds
            )
            print_cells(("metric", one_line(row.label), "95 %", "images"), cells, ("metric",))
        print_notes(summary.all_notes())
        print_notes([place], bullet="")


def _export(layout: str, folder: Path, places: list[Path]) -> None:
    """The images of all these runs, a folder for each method; those of one prompt in the order of
    the runs.
    """
    from lanternbench.experiment import read_samples
    from lanternbench.metrics.images import export

    images: dict[str, dict[str, list[Path]]] = {}
    for place in places:
        for sample in read_samples(place):
            if sample.image:
                images.setdefault(sample.label, {}).setdefault(sample.prompt, []).append(
                    place / sample.image
                )
    if not images:
        raise UserError(
            f"{', '.join(map(str, places))} has no images to export: name runs that drew some."
        )
    for label, name in folder_names(images).items():
        print(f"{one_line(label)}: {export(layout, images[label], folder / name)}")


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """A folder's name for each label, without signs that shells or paths read; a number tells
    equal ones apart.
    """
    names: dict[str, str] = {}
    for label in labels:
        stem = re.sub(r"[^\w.=+-]+", "-", label).lstrip(".")[:60] or "method"
        choices = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        names[label] = next(name for name in choices if name not in names.values())
    return names
