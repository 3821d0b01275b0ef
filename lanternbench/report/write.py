"""``report()``: everything that a report of run folders writes: tables, plots, a LaTeX table
and one page.

`report.html` is one file without network, with the answer, tables, plots and images of the runs.
`table.tex` fits a paper: chosen columns, names as papers write them, value ± interval.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lanternbench import metrics
from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE, Steps
from lanternbench.measure.margins import MarginTest
from lanternbench.measure.run_notes import RANDOM_NOTE
from lanternbench.measure.statistics import LOOKS
from lanternbench.measure.summary import Row
from lanternbench.notes import Note, by_importance
from lanternbench.report import load, tables
from lanternbench.report.columns import (
    MISSING,
    columns,
    glossary,
    metric_column,
    metric_keys,
)
from lanternbench.report.findings import (
    BUDGET,
    MARGIN_INTRO,
    Pair,
    answer,
    compared,
    margin_table,
    margin_tests,
    pair_intro,
    pair_table,
)
from lanternbench.report.images import PROMPTS, grid_figure, image_grid, loss_figure, loss_records
from lanternbench.report.latex import latex_table
from lanternbench.report.load import (
    Contents,
    ReportRow,
    Run,
    View,
    differing,
    intervals_of,
    seed_groups,
    warnings_of,
)
from lanternbench.report.plots import Picture, speed_pictures, step_pictures, write_pictures
from lanternbench.report.race import race_of
from lanternbench.report.rendering import templates
from lanternbench.report.style import save
from lanternbench.report.tables import Table, csv_text, figure_table, markdown_escape
from lanternbench.report.tradeoff import speed_column
from lanternbench.utils.files import OUT, replacing, writing
from lanternbench.utils.json_values import versioned

FORMATS = ("md", "csv", "tex", "html", "json")


class Part(NamedTuple):
    """One run in a report: its data, its methods compared in pairs, and its findings."""

    run: Run
    contents: Contents
    pairs: list[Pair]
    margins: list[MarginTest]
    answer: list[str]


class Published(NamedTuple):
    """The papers' figures next to the measured ones: for the page, and as files by name."""

    table: Table
    texts: dict[str, str]


class Report(NamedTuple):
    """The content of a report, whatever the format; ``published``: with the papers' figures."""

    parts: list[Part]
    rows: list[ReportRow]
    notes: list[Note]
    view: View
    published: Published | None

    @property
    def runs(self) -> list[Run]:
        return [part.run for part in self.parts]

    @property
    def warnings(self) -> list[str]:
        return warnings_of(self.rows)


def report(
    run_folders: Sequence[Path],
    out: Path | None = None,
    published: bool = False,
    formats: Sequence[str] | None = None,
    budget: float = BUDGET,
    view: View = View(),  # noqa: B008
    grid: int = 0,
    not_worse: Mapping[str, float] = {},
) -> list[Path]:
    """Write tables, plots and report.html of one or more runs; returns the files, report.html
    last.

    Args:
        run_folders: rows of several runs are joined, with a `run` column.
        out: by default `<run>/report`, or `report` next to the runs if there are several.
        published: whether to compare with the papers' numbers.
        formats: by default all, and the plots.
        budget: the fidelity loss that the answer allows relaxed methods.
        view: which methods and columns to show under which names.
        grid: the number of prompts of which to write the images side by side.
        not_worse: margins by metric, in place of those of the runs.

    Raises UserError if a folder is no run, holds no results, is damaged, or `out` cannot be
    written.
    """
    wanted = FORMATS if formats is None else formats
    check_formats(wanted)
    folders = [Path(folder) for folder in run_folders]
    content = read_report(folders, view, budget, published, max(PROMPTS, grid), not_worse)
    if grid:
        check_draws(content.runs)
    if out is None:
        out = (folders[0] if len(folders) == 1 else folders[0].resolve().parent) / "report"
    out = Path(out)
    with writing(out, OUT):
        out.mkdir(parents=True, exist_ok=True)
    texts = report_texts(content)
    names = [name for name in texts if name.endswith(tuple(wanted))]
    files = [write_text(out / name, texts[name]) for name in names]
    if grid:
        files += write_grids(content, out, grid)
    if "html" in wanted:
        files += write_page(content, out, with_files=formats is None)
    return files


def write_page(content: Report, out: Path, with_files: bool) -> list[Path]:
    """Write the page, and its plots as files if asked for; returns the files, the page last."""
    speeds, steps = drawn_pictures(content)
    files = []
    if with_files:
        files += write_pictures([*speeds, *steps], out)
        files += write_losses(content, out)
    page = html_page(content, speeds, steps)
    return [*files, write_text(out / "report.html", page)]


def drawn_pictures(content: Report) -> tuple[list[Picture], list[Picture]]:
    """Return the plots of speeds, and those of steps."""
    speeds = speed_pictures(content.rows)
    by_run = content.view.named(load.rows_by_run(content.runs))
    steps = step_pictures(by_run, row_steps(content.parts))
    for picture in [*speeds, *steps]:
        picture.add_warnings(content.warnings)
    return speeds, steps


def read_report(
    folders: Sequence[Path],
    view: View,
    budget: float,
    published: bool,
    prompts: int,
    not_worse: Mapping[str, float],
) -> Report:
    """Read the runs of a report; ``prompts``: the number of which it shows images;
    ``not_worse``: margins in place of the runs' own.
    """
    contents = {}
    for run in load.load_runs(folders):
        contents[run.folder] = load.read_contents(run, prompts)
    # once more, as a run may be going on
    every = [load.load_run(folder, of_run.figures) for folder, of_run in contents.items()]
    labels = {run.folder: [row.label for row in run.rows] for run in every}
    runs = view.of(every)
    parts = []
    for run in runs:
        of_run = contents[run.folder]
        tests = margin_tests(run, of_run, not_worse, view)
        parts.append(make_part(run, of_run, labels[run.folder], view, budget, tests))
    notes = report_notes(runs)
    for part in parts:
        notes += load.damage_notes(part.contents.damaged)
    difference = differing(runs)
    if difference is not None:
        parts[0].answer.insert(0, difference.text)
    rows = view.named(load.joined_rows(runs))
    return Report(parts, rows, notes, view, published_figures(rows) if published else None)


def published_figures(rows: list[ReportRow]) -> Published:
    """Return the papers' figures next to those of rows."""
    from lanternbench.report import papers  # not for every report: it loads all methods

    frame = papers.published_beside(rows)
    table = papers.table(frame)
    if frame.empty:
        return Published(table, {"published.md": f"{papers.NONE}\n"})
    texts = {
        "published.md": table.markdown(),
        "published.csv": csv_text(frame, warnings_of(rows)),
    }
    return Published(table, texts)


def make_part(
    run: Run,
    contents: Contents,
    labels: Sequence[str],
    view: View,
    budget: float,
    margins: list[MarginTest],
) -> Part:
    """Return a run as the page shows it.  p-values are corrected for all of its methods,
    ``labels``, also those not shown.
    """
    names = view.labels({row.label: row.method for row in run.rows})
    looks = LOOKS if run.record.config.until_told_apart else 1
    pairs = []
    for pair in compared(contents.figures, labels, looks):
        if pair.method in names and pair.against in names:
            pair = pair._replace(method=names[pair.method], against=names[pair.against])
            pairs.append(pair)
    rows = [row.model_copy(update={"label": names[row.label]}) for row in run.rows]
    sentences = answer(rows, pairs, run.notes, margins, budget)
    baseline = view.name(BASELINE, BASELINE)
    shown = [pair.with_baseline(baseline) for pair in pairs]
    return Part(run, contents, shown, margins, sentences)


def check_formats(formats: Sequence[str]) -> None:
    """Raise UserError for a format that reports do not have."""
    for name in formats:
        if name not in FORMATS:
            choice = ", ".join(FORMATS)
            raise UserError(f"there is no report format {name!r}: choose of {choice}.")


def check_draws(runs: Sequence[Run]) -> None:
    """Raise UserError if a run has no images."""
    for run in runs:
        if not run.record.target.draws_images:
            raise UserError(
                f"{run.run_id} has no images, because its target has no image tokeniser:"
                " leave out --grid."
            )


def row_steps(parts: Sequence[Part]) -> list[Steps | None]:
    return [part.contents.figures.steps.get(row.label) for part in parts for row in part.run.rows]


# --- files ---


def write_text(path: Path, text: str) -> Path:
    with replacing(path, OUT, shared=True) as file:
        file.write(text.encode("utf-8", "replace"))
    return path


def numbered(parts: Sequence[Part]) -> Iterator[tuple[str, Part]]:
    """Yield the parts, each with the end of its files' names: "-1", "-2" if there are several."""
    for number, part in enumerate(parts, 1):
        yield f"-{number}" if len(parts) > 1 else "", part


def write_grids(content: Report, out: Path, prompts: int) -> list[Path]:
    """Write the images of every run side by side."""
    files = []
    for end, part in numbered(content.parts):
        draw = partial(grid_figure, part.run, part.contents, content.view, prompts)
        files += save(draw, out / f"grid{end}", ("png", "pdf"), warnings=content.warnings)
    return files


def write_losses(content: Report, out: Path) -> list[Path]:
    """Write where in the image each run's methods lose fidelity, if they draw several rows at
    once.
    """
    files = []
    for end, part in numbered(content.parts):
        names = content.view.labels({row.label: row.method for row in part.run.rows})
        losses = {}
        for label, name in names.items():
            if label in part.contents.losses:
                losses[name] = part.contents.losses[label]
        records = loss_records(losses)
        if records:
            stem = out / f"loss-by-place{end}"
            text = csv_text(records, content.warnings)
            files.append(write_text(stem.with_suffix(".csv"), text))
            draw = partial(loss_figure, records)
            files += save(draw, stem, ("png", "svg", "pdf"), warnings=content.warnings)
    return files


# --- texts ---


def report_texts(content: Report) -> dict[str, str]:
    """Return every file but the page, by name."""
    texts = {
        "table.md": markdown_page(content),
        "table.csv": csv_text(tables.frame(content.rows)),
        "table.tex": latex_page(content),
        "table.json": json_page(content),
    }
    rates = tables.acceptance_table(content.rows)
    if rates:
        records = tables.acceptance_records(content.rows)
        texts["acceptance.md"] = f"{tables.ACCEPTANCE}\n\n{rates}"
        texts["acceptance.csv"] = csv_text(records, content.warnings)
    categories = []
    comparisons = []
    not_worse = []
    for part in content.parts:
        names = {row.label: content.view.name(row.label, row.method) for row in part.run.rows}
        categories.append(tables.category_table(part.contents.figures, names))
        pairs = pair_table(part.pairs)
        comparisons.append(pairs.markdown() if pairs else "")
        tested = margin_table(part.margins)
        not_worse.append(tested.markdown() if tested else "")
    if any(categories):
        texts["categories.md"] = sections(content.runs, "", categories)
    if any(comparisons):
        intro = pair_intro(run.record.config.noise for run in content.runs)
        texts["pairs.md"] = sections(content.runs, intro, comparisons)
        texts["pairs.csv"] = csv_text(pair_records(content.parts), content.warnings)
    if any(not_worse):
        texts["not-worse.md"] = sections(content.runs, MARGIN_INTRO, not_worse)
        texts["not-worse.csv"] = csv_text(margin_records(content.parts), content.warnings)
    if content.published is not None:
        texts |= content.published.texts
    warnings = "".join(f"- {markdown_escape(text, 2000)}\n" for text in content.warnings)
    for name, text in texts.items():
        if warnings and name.endswith(".md") and name != "table.md":  # which has all notes
            texts[name] = f"{warnings}\n{text}"
    return texts


def sections(runs: Sequence[Run], intro: str, tables: Sequence[str]) -> str:
    """Return a Markdown text with a section for each run that has a table."""
    by_run = [(run.run_id, table) for run, table in zip(runs, tables) if table]
    return templates().get_template("sections.md").render(intro=intro, sections=by_run)


def pair_records(parts: Sequence[Part]) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    for part in parts:
        for pair in part.pairs:
            records.append({"run": part.run.run_id, **pair._asdict()})
    return records


def margin_records(parts: Sequence[Part]) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    for part in parts:
        for test in part.margins:
            records.append({"run": part.run.run_id, **test._asdict()})
    return records


def recipe_lines(runs: Sequence[Run]) -> list[str]:
    return ["; ".join(f"{name} {value}" for name, value in run.recipe.items()) for run in runs]


def markdown_page(content: Report) -> str:
    chosen = content.view.columns_for(content.rows, "md")
    return (
        templates()
        .get_template("table.md")
        .render(
            parts=content.parts,
            recipes=recipe_lines(content.runs),
            notes=content.notes,
            table=tables.markdown_table(content.rows, chosen),
            glossary=glossary(chosen),
        )
    )


def latex_page(content: Report) -> str:
    setups = []
    for recipe in (run.recipe for run in content.runs):
        setting = f"({recipe['prompts']}, temperature {recipe['temperature']})"
        setups.append(f"Decoding methods on {recipe['target']} {setting}")
    caption = " ".join(["; ".join(dict.fromkeys(setups)) + ".", *content.warnings])
    recipes = ". ".join(dict.fromkeys(recipe_lines(content.runs)))
    fixed = content.view.columns_for(content.rows, "tex") if content.view.columns else None
    return latex_table(content.rows, caption, recipes, fixed)


def json_page(content: Report) -> str:
    document = {
        "rows": content.rows,
        "notes": content.notes,
        "recipes": {run.run_id: run.recipe for run in content.runs},
        "answers": {part.run.run_id: part.answer for part in content.parts},
        "pairs": pair_records(content.parts),
        "not_worse": margin_records(content.parts),
    }
    text = json.dumps(versioned(document), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


# --- notes ---


def report_notes(runs: Sequence[Run]) -> list[Note]:
    """Return notes to read before the numbers: the runs' notes and those that follow from the
    rows.
    """
    notes: list[Note] = []
    for run in runs:
        name = run.run_id if len(runs) > 1 else None
        for note in [*run.notes, *speedup_notes(run)]:
            notes.append(note._replace(run=name))
    rows = [row for run in runs for row in run.rows]
    reasons = {
        "step_compression": "The plots show step compression because there are no speedups.",
        "robust_speedup": (
            "Other programs disturbed the timing: the plots show the robust speedup."
        ),
    }
    speed = speed_column(rows).key
    if speed in reasons:
        notes.append(Note("info", None, reasons[speed]))
    difference = differing(runs)
    if difference is not None:
        notes.append(difference)
    if len(seed_groups(runs)) < len(runs):
        text = f"Intervals are {intervals_of(load.joined_rows(runs))}."
        notes.append(Note("info", None, text))
    return by_importance([*notes, *metric_notes(rows)])


def speedup_notes(run: Run) -> Iterator[Note]:
    """Yield why a run has no speedup, unless its own notes explain it."""
    explained = {note.metric for note in run.notes if note.kind == "missing"}
    has_baseline = any(BASELINE in (row.method, row.label) for row in run.rows)
    has_speedup = any(row.value("speedup") is not None for row in run.rows)
    if not has_baseline and "speedup" not in explained:
        text = "there is no ar baseline, so no speedup is given."
        yield Note("missing", "speedup", text)
    if has_baseline and not has_speedup and "latency_s" not in explained:
        text = "there are no valid latencies (batch above 1), so no speedup is given."
        yield Note("missing", "speedup", text)


def metric_notes(rows: Sequence[Row]) -> Iterator[Note]:
    keys = [key for key in metric_keys(rows) if any(row.value(key) is not None for row in rows)]
    toy = [metric_column(key).title for key in keys if metrics.column(key).embedded]
    if toy:
        text = f"{', '.join(toy)}: scored by the toy evaluators; not comparable with the papers'"
        yield Note("info", None, f"{text} metrics.")
    if any(metrics.column(key).random for key in keys):
        yield RANDOM_NOTE
    for key in keys:
        estimates = [row.figure(key) for row in rows if row.value(key) is not None]
        counts = {estimate.n for estimate in estimates if estimate.lo is None and estimate.n}
        if counts:
            span = " to ".join(map(str, sorted({min(counts), max(counts)})))
            text = f"{metric_column(key).title} is over {span} images per row and changes with"
            yield Note("info", None, f"{text} their number: compare equal counts only.")


# --- the page ---


def html_page(content: Report, speeds: Sequence[Picture], steps: Sequence[Picture]) -> str:
    """Return the whole page.  Text from files is escaped; a CSP forbids network."""
    runs = content.runs
    grids = [image_grid(part.run, part.contents, content.view) for part in content.parts]
    races = [race_of(part.run, part.contents, content.view) for part in content.parts]
    said = {sentence for part in content.parts for sentence in part.answer}
    notes = [note for note in content.notes if note.text not in said]
    notes += [Note("info", None, text) for grid in grids for text in grid.notes]
    return (
        templates()
        .get_template("report.html")
        .render(
            parts=content.parts,
            facts=page_facts(runs),
            notes=list(dict.fromkeys(notes)),
            results=results_table(content),
            glossary=glossary(columns(content.rows)),
            intervals=intervals_of(content.rows),
            plots=speeds,
            step_pictures=steps,
            view=content.view,
            pair_intro=pair_intro(run.record.config.noise for run in runs),
            pair_tables=[pair_table(part.pairs) for part in content.parts],
            margin_intro=MARGIN_INTRO,
            margin_tables=[margin_table(part.margins) for part in content.parts],
            published=content.published and content.published.table,
            grids=grids,
            races=races,
            drawn=any(run.record.target.draws_images for run in runs),
            environments=[environment_lists(run) for run in runs],
        )
    )


def page_facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return what the head of the page says of the runs."""
    facts = {
        "Target": [run.target for run in runs],
        "Prompts": [run.recipe["prompts"] for run in runs],
        "Hardware": [run.hardware for run in runs],
        "Made": [(run.record.created or MISSING).replace("T", " ")[:16] for run in runs],
    }
    return {name: " · ".join(dict.fromkeys(values)) for name, values in facts.items()}


def results_table(content: Report) -> Table:
    """Return all columns; those that were not chosen, by default those that do not fit a terminal,
    are folded.
    """
    every = columns(content.rows)
    shown = [column.key for column in content.view.columns_for(content.rows, "terminal")]
    if not content.view.columns:
        shown.append("lossless")
    narrow = ("lossless", "step_compression", "tree_depth")
    folded = [i for i, column in enumerate(every) if column.test or column.key not in shown]
    dispensable = [i for i, column in enumerate(every) if column.key in narrow]
    table = figure_table(content.rows, every)
    return table._replace(folded=frozenset(folded), dispensable=frozenset(dispensable))


def environment_lists(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the environment and configuration of a run as ("outer.inner", text) pairs."""
    environment = flat(run.record.environment.written())
    return [("environment", environment), ("config", flat(run.record.config.written()))]


def flat(content: dict[str, object]) -> list[tuple[str, str]]:
    """Return nested dicts as ("outer.inner", text) pairs."""
    pairs = []
    for record in pd.json_normalize(content, max_level=8).to_dict("records"):
        for name, value in record.items():
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            pairs.append((str(name), text))
    return pairs
