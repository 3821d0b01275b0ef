"""``report``, ``compare``, ``score``: tables of runs, changes between runs, scores of images."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.options import From, Takes
from lanternbench.cli.output import (
    LONGEST,
    display,
    print_cells,
    print_json,
    print_notes,
    print_table,
    record,
)
from lanternbench.errors import UserError
from lanternbench.settings import Caption, Comparing, Machine, ReportSpec
from lanternbench.utils.text import listed, one_line

if TYPE_CHECKING:
    from lanternbench.measure.margins import MarginTest
    from lanternbench.measure.summary import Row, Summary
    from lanternbench.metrics import Evaluators, Setup
    from lanternbench.report.comparison import Comparison, Judgement

CAPTIONS = "Captions of a plain folder: COCO's .json, or a .tsv/.csv with a column image."
LAYOUT = "Copy images for an official scorer, geneval or dpg, to a folder instead of scoring."
RUNS = "Run ids or folders."


def report(
    spec: Annotated[ReportSpec, Takes()],
    runs: Annotated[list[str] | None, Argument(metavar="[RUN]...", help=RUNS)] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print the rows and the names of the files as JSON.")
    ] = False,
) -> None:
    """Write tables, plots and one HTML page; the latest run by default.

    Example: lanternbench report --published
    """
    from lanternbench.notes import headlines
    from lanternbench.report.load import differing, intervals_of
    from lanternbench.report.written import write_report

    written = write_report(runs or [], spec)
    rows = written.rows
    animated = [written.race] if written.race else []
    if as_json:
        print_json({"rows": rows, "files": [str(file) for file in written.files + animated]})
        return
    difference = differing(written.runs)
    if difference is not None:
        print(one_line(difference.text, LONGEST))
    for run in written.runs:
        prefix = f"{run.run_id}: " if len(written.runs) > 1 else ""
        for line in headlines(run.notes):
            print(one_line(prefix + line, LONGEST))
    print_table(rows, written.view)
    if any(row.seeds for row in rows):
        print(f"Intervals: {intervals_of(rows)}.")
    print_files(written.files)
    print_notes(animated, bullet="")


def print_files(files: Sequence[Path]) -> None:
    """Name the files of a report on stderr, the page last."""
    endings: dict[str, list[str]] = {}
    for file in files:
        if file.stem != "report":
            endings.setdefault(file.stem, []).append(file.suffix)
    lines = []
    if endings:
        named = ", ".join(f"{stem}{' '.join(suffixes)}" for stem, suffixes in endings.items())
        lines.append(f"{files[0].parent}: {named}")
    lines += [str(file) for file in files if file.name == "report.html"]
    print_notes(lines, bullet="")


def compare(
    old: Annotated[str, Argument(help="Run id or folder.")],
    new: Annotated[str, Argument(help="Run id or folder.")],
    not_worse: Annotated[dict[str, float] | None, From(Comparing)],
    results: Annotated[Path, From(Comparing)],
    fail_if: Annotated[
        list[str] | None, Option(help=Comparing.model_fields["fail_if"].description)
    ] = None,
    mapped: Annotated[
        list[str] | None,
        Option("--map", metavar="OLD=NEW", help=Comparing.model_fields["mapped"].description),
    ] = None,
    as_json: options.AsRows = False,
) -> None:
    """Compare the methods that two runs share, prompt by prompt.

    The exit code is 1 if a change fails a condition of --fail-if: the estimate is beyond the
    bound, and its 95 % interval excludes no change at all.  It is also 1 if a method is not shown
    to be no worse than in the old run, by the margins of --not-worse.

    Example: lanternbench compare main-1a2b3c4d branch-5e6f7a8b --fail-if "speedup<-5%"
    """
    from lanternbench.report.comparison import compare

    chosen = Comparing(
        results=results, not_worse=not_worse or {}, fail_if=fail_if or [], mapped=mapped or []
    )
    found = compare(old, new, chosen)
    print_notes(found.notes)
    if as_json:
        print_comparison_as_json(found)
    else:
        print_comparison(found.judged)
        print_margins(found.margins)
        if found.conclusion:
            print(found.conclusion)
    if not found.passed:
        raise typer.Exit(1)


def print_margins(tests: Sequence[MarginTest]) -> None:
    """Print a line per method and metric that was judged by a margin."""
    rows = []
    for test in tests:
        bounds = f"[{test.low:+.3g}, {test.high:+.3g}]"
        cells = (test.figure, test.method, f"{test.margin:g}", str(test.prompts))
        rows.append((*cells, f"{test.difference:+.3g}", bounds, test.conclusion))
    titles = ("metric", "method", "margin", "prompts", "difference", "95 % bounds", "conclusion")
    if rows:
        print_cells(titles, rows, ("metric", "method", "conclusion"))


def print_comparison_as_json(found: Comparison) -> None:
    gate = None
    verdict = found.verdict
    if verdict is not None:
        gate = {
            "passed": verdict.passed,
            "judged": len(verdict.judged),
            "said": verdict.sentence(),
        }
    rows = [one.change._asdict() | {"failed": one.failed} for one in found.judged]
    document = {"changes": rows, "unjudged": found.unjudged, "gate": gate, "notes": found.notes}
    print_json(document | {"not_worse": found.margins})


def print_comparison(judged: Sequence[Judgement]) -> None:
    """Print a table with a line per method and figure."""
    rows = []
    for change, failed in judged:
        if change.relative:
            value, lo, hi = (f"{x:+.1%}" for x in change.relative)
        else:
            value, lo, hi = (f"{x:+.3g}" for x in change.difference)
        before_after = (f"{change.old:.3f}", f"{change.new:.3f}")
        interval = (value, f"[{lo}, {hi}]", "FAILED" if failed else "")
        rows.append((change.label, change.figure, str(change.prompts), *before_after, *interval))
    titles = ("method", "figure", "prompts", "old", "new", "change", "95 %", "")
    print_cells(titles, rows, ("method", "figure", ""))


def score(
    machine: Annotated[Machine, Takes()],
    runs: Annotated[
        list[str] | None, Argument(metavar="[RUN]...", help="Runs, or plain folders of images.")
    ] = None,
    metrics: Annotated[
        str | None, Option(help="Names, comma-separated (default: all that suit the target).")
    ] = None,
    reference: Annotated[
        Path | None, Option(help="Folder of real images, or an .npz with their FID statistics.")
    ] = None,
    captions: Annotated[str | None, Option(help=CAPTIONS)] = None,
    caption: Annotated[Caption, Option(help="Caption of a COCO image that is used.")] = "first",
    random_weights: Annotated[
        bool,
        Option("--random-weights", help="Use random networks of full size, to measure the time."),
    ] = False,
    again: Annotated[bool, Option("--again", help="Also score images that have scores.")] = False,
    export: Annotated[tuple[str, Path] | None, Option(metavar="LAYOUT DIR", help=LAYOUT)] = None,
    results: options.Results = Path("results"),
    as_json: Annotated[bool, Option("--json", help="Print the rows and notes as JSON.")] = False,
) -> None:
    """Score saved images; the latest run by default.

    An interrupted command continues where it stopped.

    Example: lanternbench score --metrics image-reward,hpsv2
    """
    from lanternbench.experiment import scoring
    from lanternbench.metrics import Setup
    from lanternbench.metrics.reference import check_reference

    if reference is not None:
        check_reference(reference)
    names = listed(metrics) if metrics is not None else None
    setup = Setup(reference, machine.choose(), random_weights)
    places = scored_places(runs or [], results)
    if export is not None:
        export_images(*export, places)
        return
    scored: list[tuple[Path, Summary]] = []
    with display("scoring") as bars:
        for place in places:
            if not is_run(place):
                summary = scoring.score_folder(
                    place,
                    captions,
                    names,
                    setup,
                    again=again,
                    caption=caption,
                    progress=bars.show,
                )
            elif captions is None:
                summary = scoring.score_run(place, names, setup, again=again, progress=bars.show)
            else:
                raise UserError(f"{place} is a run and knows its captions: leave --captions out.")
            check_scored(place, summary, names, setup)
            scored.append((place, summary))
    if as_json:
        print_json([record(place, summary) for place, summary in scored])
        return
    for place, summary in scored:
        print_scores(summary)
        print_notes(summary.all_notes())
        print_notes([place], bullet="")


def check_scored(place: Path, summary: Summary, names: list[str] | None, setup: Setup) -> None:
    """Raise UserError if none of the metrics that were asked for has a value."""
    from lanternbench.experiment import read_run
    from lanternbench.metrics import scorers_for

    evaluators: Evaluators = "full"
    if is_run(place):
        evaluators = read_run(place).target.evaluators or "tiny"
    keys = [scorer.name for scorer in scorers_for(names, evaluators, setup)]
    if not any(row.value(key) is not None for row in summary.rows for key in keys):
        reasons = [str(note) for note in summary.notes if note.metric in keys]
        cause = "; ".join(reasons) or "no metric was named: give --metrics clip,fid"
        raise UserError(f"{place}: nothing was scored ({cause})")


def is_run(place: Path) -> bool:
    return (place / "run.json").is_file()


def scored_places(names: Sequence[str], results: Path) -> list[Path]:
    """Return the folders of runs, or of images, by default the latest run."""
    from lanternbench.experiment import find

    places = []
    for name in names:
        is_plain = Path(name).is_dir() and not is_run(results / name)
        places.append(Path(name) if is_plain else find(results, [name])[0])
    return places or find(results)


def print_scores(summary: Summary) -> None:
    """Print the rows of a run, or for the images of a plain folder a metric per line."""
    from lanternbench.report.columns import metric_column, metric_keys

    row: Row = summary.rows[0]
    if row.method:
        print_table(summary.rows)
        return
    cells = []
    for column in map(metric_column, metric_keys([row])):
        images = str(row.figure(column.key).n or row.n)
        cells.append((column.title + column.arrow, column.value(row), column.bounds(row), images))
    print_cells(("metric", one_line(row.label), "95 %", "images"), cells, ("metric",))


def export_images(layout: str, folder: Path, places: Sequence[Path]) -> None:
    """Copy the images of all these runs, a folder for each method; those of one prompt are in the
    order of the runs.
    """
    from lanternbench.experiment import read_samples
    from lanternbench.metrics.images import export

    images: dict[str, dict[str, list[Path]]] = {}
    for place in places:
        for sample in read_samples(place):
            if sample.image:
                of_label = images.setdefault(sample.label, {})
                of_label.setdefault(sample.prompt, []).append(place / sample.image)
    if not images:
        raise UserError(
            f"{', '.join(map(str, places))} has no images to export: name runs that drew some."
        )
    for label, name in folder_names(images).items():
        print(f"{one_line(label)}: {export(layout, images[label], folder / name)}")


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """Return a folder's name for each label, without characters that shells or paths read; equal
    names are numbered.
    """
    names: dict[str, str] = {}
    for label in labels:
        stem = re.sub(r"[^\w.=+-]+", "-", label).lstrip(".")[:60] or "method"
        numbered = (f"{stem}-{number}" for number in itertools.count(2))
        choices = itertools.chain([stem], numbered)
        names[label] = next(name for name in choices if name not in names.values())
    return names
