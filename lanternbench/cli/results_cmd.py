"""``report``, ``compare``, ``score``: tables of runs, changes between runs, scores of images."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
from lanternbench.settings import Caption, RunSpec
from lanternbench.utils.text import one_line

if TYPE_CHECKING:
    from lanternbench.measure.change import Change, Condition, Unjudged, Verdict
    from lanternbench.measure.figures import Figures
    from lanternbench.measure.margins import MarginTest
    from lanternbench.measure.run_record import RunRecord
    from lanternbench.measure.summary import Row, Summary
    from lanternbench.metrics import Evaluators, Setup
    from lanternbench.notes import Note
    from lanternbench.report.load import View

FIGURES = ["speedup", "latency_s", "accept_len", "fidelity_loss"]
ROBUST = ["robust_speedup", "robust_latency_s"]
CLOCKED = {
    *("speedup", "latency_s", "tokens_per_s", "images_per_s"),
    *("end_to_end_s", "end_to_end_speedup"),
}
GATE = (
    "A change that fails: FIGURE<BOUND or FIGURE>BOUND; % for relative. Keys: `speedup`, `tau`, …"
)
MAP = (
    'A method of the old run and its name in the new one, such as sjd="sjd window=16"; repeat'
    " the option for several."
)
CAPTIONS = "Captions of a plain folder: COCO's .json, or a .tsv/.csv with a column image."
LAYOUT = "Copy images for an official scorer, geneval or dpg, to a folder instead of scoring."
RUNS = "Run ids or folders."


@dataclass(frozen=True)
class Look:
    """The methods, columns and names of a report."""

    methods: Annotated[
        str | None, Option(help="Only these, in this order: labels or names, comma-separated.")
    ] = None
    columns: Annotated[
        str | None,
        Option(help="Columns of tables: keys such as speedup,accept_len,fidelity_loss."),
    ] = None
    names: Annotated[
        Path | None,
        Option(metavar="FILE", help="YAML file with display names, such as `eagle-1: EAGLE`."),
    ] = None
    grid: Annotated[
        bool, Option("--grid", help="Write grid.png and grid.pdf: images by prompt and method.")
    ] = False
    grid_prompts: Annotated[int, Option(min=1, help="Number of prompts in the grid.")] = 4
    race: Annotated[
        Path | None,
        Option(metavar="FILE.gif", help="Write a GIF of one prompt's images as they are drawn."),
    ] = None
    budget: Annotated[
        float, Option(min=0, help="Maximum fidelity loss of the fastest relaxed method.")
    ] = 0.1

    def view(self) -> View:
        from lanternbench.report.load import View, read_names

        names = read_names(self.names) if self.names else {}
        methods = tuple(options.listed(self.methods))
        return View(methods, tuple(options.listed(self.columns)), names)


def report(
    look: Annotated[Look, Takes()],
    not_worse: Annotated[dict[str, float] | None, From(RunSpec)],
    runs: Annotated[list[str] | None, Argument(metavar="[RUN]...", help=RUNS)] = None,
    results: options.Results = Path("results"),
    out: Annotated[Path | None, Option(help="Folder to write (default: RUN/report).")] = None,
    published: Annotated[
        bool, Option("--published", help="Show the papers' numbers next to ours.")
    ] = False,
    formats: Annotated[
        str | None,
        Option("--format", help="Formats, comma-separated: md,csv,tex,html,json (default: all)."),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print the rows and the names of the files as JSON.")
    ] = False,
) -> None:
    """Write tables, plots and one HTML page; the latest run by default.

    Example: lanternbench report --published
    """
    from lanternbench.experiment import find
    from lanternbench.notes import headlines
    from lanternbench.report.load import differing, intervals_of, joined_rows, load_runs
    from lanternbench.report.race import write_race
    from lanternbench.report.write import report as write

    folders = find(results, runs or [])
    view = look.view()
    kinds = options.listed(formats) if formats is not None else None
    prompts = look.grid_prompts if look.grid else 0
    animated = [write_race(folders, look.race, view)] if look.race else []
    files = write(folders, out, published, kinds, look.budget, view, prompts, not_worse or {})
    loaded = view.of(load_runs(folders))
    rows = view.named(joined_rows(loaded))
    if as_json:
        print_json({"rows": rows, "files": [str(file) for file in [*files, *animated]]})
        return
    difference = differing(loaded)
    if difference is not None:
        print(one_line(difference.text, LONGEST))
    for run in loaded:
        prefix = f"{run.run_id}: " if len(loaded) > 1 else ""
        for line in headlines(run.notes):
            print(one_line(prefix + line, LONGEST))
    print_table(rows, view.columns_for(rows, "terminal") if view.columns else None)
    if any(row.seeds for row in rows):
        print(f"Intervals: {intervals_of(rows)}.")
    print_files(files)
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


class ComparedRun(NamedTuple):
    """One of two runs, with the notes on its figures."""

    folder: Path
    record: RunRecord
    figures: Figures
    notes: list[Note]

    @property
    def noisy(self) -> bool:
        return any(note.fact == "noisy timing" for note in self.notes)


def compare(
    old: Annotated[str, Argument(help="Run id or folder.")],
    new: Annotated[str, Argument(help="Run id or folder.")],
    not_worse: Annotated[dict[str, float] | None, From(RunSpec)],
    fail_if: Annotated[list[str] | None, Option(help=GATE)] = None,
    mapped: Annotated[list[str] | None, Option("--map", metavar="OLD=NEW", help=MAP)] = None,
    results: options.Results = Path("results"),
    as_json: options.AsRows = False,
) -> None:
    """Compare the methods that two runs share, prompt by prompt.

    The exit code is 1 if a change fails a condition of --fail-if: the estimate is beyond the
    bound, and its 95 % interval excludes no change at all.  It is also 1 if a method is not shown
    to be no worse than in the old run, by the margins of --not-worse.

    Example: lanternbench compare main-1a2b3c4d branch-5e6f7a8b --fail-if "speedup<-5%"
    """
    from lanternbench.measure.change import condition, judge

    texts = [condition(text) for text in fail_if or []]
    runs = compared_runs(results, old, new, mapped or [])
    conditions = of_measured(texts, runs)
    notes = notes_on(runs)
    print_notes(notes)
    found, unjudged = changes_of(runs, [one.figure for one in conditions])
    verdict = judge(runs[0].figures, runs[1].figures, conditions) if conditions else None
    if verdict is None and not found:
        text = f"{old} and {new} share no method with two prompts or more"
        raise UserError(f"{text}: compare runs of the same sweep, or name methods with --map")
    judged = judgements(found, verdict)
    tests = judged_margins(runs, not_worse) if not_worse else []
    if as_json:
        print_comparison_as_json(judged, unjudged, verdict, notes, tests)
    else:
        print_comparison(judged)
        print_margins(tests)
        if sentence := conclusion(verdict, unjudged, any(run.noisy for run in runs)):
            print(sentence)
    failed = verdict is not None and not verdict.passed
    if failed or any(test.conclusion != "not worse" for test in tests):
        raise typer.Exit(1)


def of_measured(conditions: Sequence[Condition], runs: Sequence[ComparedRun]) -> list[Condition]:
    """Return the conditions with the names of the metrics that the runs have."""
    from lanternbench.metrics import key_of

    known: set[str] = set()
    for run in runs:
        known.update(run.figures.metrics)
    return [one._replace(figure=key_of(one.figure, known)) for one in conditions]


def changes_of(
    runs: Sequence[ComparedRun], wanted: Sequence[str]
) -> tuple[list[Change], list[Unjudged]]:
    """Return the changes from the first to the second run, and what has none.  Raises UserError if
    neither run has a figure of ``wanted``.
    """
    from lanternbench.measure.change import changes

    old, new = runs
    names = compared_figures(runs)
    found, unjudged = changes(old.figures, new.figures, list(dict.fromkeys([*names, *wanted])))
    names += [one.figure for one in found]
    names += [one.figure for one in unjudged]
    check_wanted(wanted, runs, names)
    return found, unjudged


def judged_margins(runs: Sequence[ComparedRun], margins: dict[str, float]) -> list[MarginTest]:
    """Return the test of each method of both runs in each metric.  Raises UserError."""
    from lanternbench.measure.change import mean_differences
    from lanternbench.measure.margins import judge_margins
    from lanternbench.report.margins import resolved

    old, new = runs
    sizes = resolved(margins, new.record.target.evaluators)
    differences = []
    for scored in sizes:
        found = mean_differences(old.figures, new.figures, scored.key, scored.better)
        if not found:
            text = f"--not-worse {scored.key}: the runs share no method with such scores of images"
            raise UserError(f"{text} over two prompts or more: score both, with --metrics")
        differences += found
    return judge_margins(differences, {scored.key: size for scored, size in sizes.items()})


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


def compared_runs(results: Path, old: str, new: str, mapped: Sequence[str]) -> list[ComparedRun]:
    """Return both runs, the old one with the labels that the new one has for its methods."""
    before = read_compared(results, old)
    after = read_compared(results, new)
    names = renamings(mapped, before.figures.labels, after.figures.labels)
    before.figures.relabel(names)
    return [before, after]


def read_compared(results: Path, name: str) -> ComparedRun:
    from lanternbench.experiment import find, iter_samples, read_run
    from lanternbench.measure.figures import Figures
    from lanternbench.measure.summary import notes_of

    folder = find(results, [name])[0]
    run = read_run(folder)
    figures = Figures(iter_samples(folder))
    return ComparedRun(folder, run, figures, notes_of(figures, run))


def renamings(texts: Sequence[str], old: Iterable[str], new: Iterable[str]) -> dict[str, str]:
    """Return labels of the new run by those of the old run that mean the same method.

    ``texts``: OLD=NEW each.  Raises UserError for labels that the runs do not have.
    """
    names: dict[str, str] = {}
    for text in texts:
        signs = [place for place, sign in enumerate(text) if sign == "="]
        pairs = [(text[:place], text[place + 1 :]) for place in signs]
        fitting = [pair for pair in pairs if pair[0] in old and pair[1] in new]
        if len(fitting) != 1:
            choice = (
                f"a method of the old run ({', '.join(old)}) = one of the new ({', '.join(new)})"
            )
            raise UserError(f"--map {text}: give {choice}")
        names |= fitting
    labels = [names.get(label, label) for label in old]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise UserError(f"--map: two methods of the old run become {twice[0]!r}: map both or none")
    return names


def notes_on(runs: Sequence[ComparedRun]) -> list[str]:
    """Return how the runs differ, and the warnings that concern one of them."""
    from lanternbench.report.load import Run, differing

    difference = differing([Run(run.folder, run.record, [], []) for run in runs])
    notes = [difference.text] if difference is not None else []
    if all(run.record.config.noise == "shared" for run in runs):
        notes.append("Both runs drew with the same noise: differences are of paired images.")
    for run in runs:
        facts = [note.text for note in run.notes if note.fact is not None]
        notes += [f"{run.folder.name}: {text}" for text in facts]
    return notes


def compared_figures(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the figures that are compared by default."""
    names = list(FIGURES)
    if any(run.noisy for run in runs):
        names += ROBUST
    for run in runs:
        names += run.figures.metrics
    return names


def check_wanted(wanted: Sequence[str], runs: Sequence[ComparedRun], known: Sequence[str]) -> None:
    """Raise UserError for a figure of a gate that neither run has."""
    names = dict.fromkeys([*known, *ROBUST])
    measured = []
    for name in names:
        if any(run.figures.column(name)[1].any() for run in runs):
            measured.append(name)
    for name in wanted:
        if name not in measured:
            shown = ("tau" if one == "accept_len" else one for one in measured)
            text = f"--fail-if {name}: neither run has such a figure"
            raise UserError(f"{text}; choose one of {', '.join(shown)}")


class Judgement(NamedTuple):
    """A change, and whether the gate fails by it."""

    change: Change
    failed: bool


def judgements(found: Sequence[Change], verdict: Verdict | None) -> list[Judgement]:
    """Return the changes; those that a gate judges have the gate's intervals."""
    if verdict is None:
        return [Judgement(change, False) for change in found]
    by_place = {(change.label, change.figure): change for change in verdict.judged}
    judged = []
    for change in found:
        change = by_place.get((change.label, change.figure), change)
        judged.append(Judgement(change, change in verdict.failed))
    return judged


def print_comparison_as_json(
    judged: Sequence[Judgement],
    unjudged: Sequence[Unjudged],
    verdict: Verdict | None,
    notes: Sequence[str],
    tests: Sequence[MarginTest],
) -> None:
    gate = None
    if verdict is not None:
        gate = {
            "passed": verdict.passed,
            "judged": len(verdict.judged),
            "said": verdict.sentence(),
        }
    rows = [one.change._asdict() | {"failed": one.failed} for one in judged]
    document = {"changes": rows, "unjudged": unjudged, "gate": gate, "notes": notes}
    print_json(document | {"not_worse": tests})


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


def conclusion(verdict: Verdict | None, unjudged: Sequence[Unjudged], noisy: bool) -> str:
    """Return the last line: what the gate says, and what was not compared."""
    from lanternbench.measure.change import not_compared

    if verdict is None:
        return not_compared(unjudged)
    sentence = verdict.sentence()
    if noisy and any(change.figure in CLOCKED for change in verdict.judged):
        sentence += "; timing was noisy: robust_speedup errs less"
    return sentence


def score(
    machine: Annotated[options.Machine, Takes()],
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
    names = options.listed(metrics) if metrics is not None else None
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
                text = f"{place} is a run and knows its captions"
                raise UserError(f"{text}: leave --captions out.")
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
        text = f"{', '.join(map(str, places))} has no images to export"
        raise UserError(f"{text}: name runs that drew some.")
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
