"""The files of a report of run folders: tables, plots, a LaTeX table and one page.

`report.html` is one file without network, with the answer, tables, plots and images of the runs.
`table.tex` fits a paper: chosen columns, names as papers write them, value ± interval.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from lanternbench import metrics
from lanternbench.errors import UserError
from lanternbench.measure.figures import Steps
from lanternbench.measure.run_notes import RANDOM_NOTE
from lanternbench.measure.summary import Row
from lanternbench.notes import Note, by_importance
from lanternbench.report import load, papers, tables
from lanternbench.report.columns import (
    MISSING,
    columns,
    glossary,
    metric_column,
    metric_keys,
)
from lanternbench.report.findings import (
    MARGIN_INTRO,
    ShownRun,
    margin_table,
    pair_intro,
    pair_table,
    shown_run,
)
from lanternbench.report.images import PROMPTS, grid_figure, image_grid, loss_figure, loss_records
from lanternbench.report.latex import latex_table
from lanternbench.report.load import (
    ReportRow,
    Run,
    View,
    differing,
    intervals_of,
    load_run,
    read_contents,
    read_names,
    seed_groups,
    warnings_of,
)
from lanternbench.report.plots import Picture, speed_pictures, step_pictures, write_pictures
from lanternbench.report.race import race_of
from lanternbench.report.rendering import templates
from lanternbench.report.style import save
from lanternbench.report.tables import Table, csv_text, figure_table, markdown_escape
from lanternbench.report.tradeoff import speed_column
from lanternbench.settings import ReportSpec
from lanternbench.utils.files import OUT, make_folder, write_file
from lanternbench.utils.json_values import json_text

FORMATS = ("md", "csv", "tex", "html", "json")


class Report(NamedTuple):
    """The content of a report, whatever the format; ``published``: with the papers' figures."""

    runs: list[ShownRun]
    rows: list[ReportRow]
    notes: list[Note]
    view: View
    published: pd.DataFrame | None

    @property
    def warnings(self) -> list[str]:
        return warnings_of(self.rows)


def read_report(folders: Sequence[Path], spec: ReportSpec) -> Report:
    """Read the runs of a report.  Raises UserError for a damaged run, and for methods, names and
    margins that these runs cannot have.
    """
    names = spec.names or {}
    if isinstance(names, Path):
        names = read_names(names)
    view = View(spec.methods, spec.columns, names)
    loaded = []
    for folder in folders:
        contents = read_contents(folder, max(PROMPTS, spec.grid_prompts))
        loaded.append((load_run(folder, contents), contents))
    view.check_methods([run for run, _ in loaded])
    runs = []
    for run, contents in loaded:
        if view.chosen(run.rows):
            runs.append(shown_run(run, contents, view, spec))
    difference = differing(runs)
    if difference is not None:
        runs[0].answer.insert(0, difference.text)
    rows = view.named(load.joined_rows(runs))
    published = papers.published_beside(rows) if spec.published else None
    return Report(runs, rows, report_notes(runs), view, published)


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


# --- files ---


def write_files(content: Report, out: Path, spec: ReportSpec) -> list[Path]:
    """Write the files of a report, by default of all formats and the plots; returns them,
    report.html last.
    """
    wanted = tuple(spec.formats or FORMATS)
    if spec.grid:
        check_draws(content.runs)
    make_folder(out, OUT)
    files = []
    for name, text in report_texts(content).items():
        if name.endswith(wanted):
            files.append(write_text(out / name, text))
    if spec.grid:
        files += write_grids(content, out, spec.grid_prompts)
    if "html" in wanted:
        files += write_page(content, out, with_files=not spec.formats)
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
    steps = step_pictures(by_run, row_steps(content.runs))
    for picture in [*speeds, *steps]:
        picture.add_warnings(content.warnings)
    return speeds, steps


def row_steps(runs: Sequence[ShownRun]) -> list[Steps]:
    """Return the steps of every row, none if it has no samples."""
    found = []
    for run in runs:
        steps = run.contents.figures.steps
        found += [steps.get(row.label, Steps()) for row in run.rows]
    return found


def write_text(path: Path, text: str) -> Path:
    write_file(path, text, OUT, shared=True)
    return path


def numbered(runs: Sequence[ShownRun]) -> Iterator[tuple[str, ShownRun]]:
    """Yield the runs, each with the end of its files' names: "-1", "-2" if there are several."""
    for number, run in enumerate(runs, 1):
        yield f"-{number}" if len(runs) > 1 else "", run


def write_grids(content: Report, out: Path, prompts: int) -> list[Path]:
    """Write the images of every run side by side."""
    files = []
    for end, run in numbered(content.runs):
        figure = grid_figure(run, prompts)
        files += save(figure, out / f"grid{end}", ("png", "pdf"), warnings=content.warnings)
    return files


def write_losses(content: Report, out: Path) -> list[Path]:
    """Write where in the image each run's methods lose fidelity, if they draw several rows at
    once.
    """
    files = []
    for end, run in numbered(content.runs):
        grid = run.record.target.grid
        losses = {}
        for label, name in run.names.items():
            samples = run.contents.losses.get(label, [])
            losses[name] = [sample for sample in samples if tuple(map(len, sample)) == grid]
        records = loss_records(losses)
        if records:
            stem = out / f"loss-by-place{end}"
            text = csv_text(records, content.warnings)
            files.append(write_text(stem.with_suffix(".csv"), text))
            kinds = ("png", "svg", "pdf")
            files += save(loss_figure(records), stem, kinds, warnings=content.warnings)
    return files


# --- texts ---


def report_texts(content: Report) -> dict[str, str]:
    """Return every file but the page, by name."""
    categories = sections(
        content, "", lambda run: tables.category_table(run.contents.figures, run.names)
    )
    texts = {
        "table.md": markdown_page(content),
        "table.csv": csv_text(tables.frame(content.rows)),
        "table.tex": latex_page(content),
        "table.json": json_page(content),
        "acceptance.md": tables.acceptance_page(content.rows),
        "acceptance.csv": csv_text(tables.acceptance_records(content.rows), content.warnings),
        "categories.md": categories,
        "pairs.md": sections(content, pair_intro(content.runs), lambda run: pair_table(run.pairs)),
        "pairs.csv": csv_text(test_records(content, "pairs"), content.warnings),
        "not-worse.md": sections(content, MARGIN_INTRO, lambda run: margin_table(run.margins)),
        "not-worse.csv": csv_text(test_records(content, "margins"), content.warnings),
    }
    if content.published is not None:
        texts["published.md"] = papers.page(content.published)
        texts["published.csv"] = csv_text(content.published, content.warnings)
    warnings = "".join(f"- {markdown_escape(text, 2000)}\n" for text in content.warnings)
    for name, text in texts.items():
        if warnings and text and name.endswith(".md") and name != "table.md":  # it has all notes
            texts[name] = f"{warnings}\n{text}"
    return {name: text for name, text in texts.items() if text}


def sections(content: Report, intro: str, table_of: Callable[[ShownRun], Table]) -> str:
    """Return a Markdown text with a section for each run that has a table; "" without any."""
    tables_by_run = [(run.run_id, table_of(run)) for run in content.runs]
    shown = [(run_id, table.markdown()) for run_id, table in tables_by_run if table.rows]
    if not shown:
        return ""
    return templates().get_template("sections.md").render(intro=intro, sections=shown)


def test_records(content: Report, kind: Literal["pairs", "margins"]) -> list[dict[str, object]]:
    """Return the tests of all runs, each with its run."""
    found: list[dict[str, object]] = []
    for run in content.runs:
        for test in getattr(run, kind):
            found.append({"run": run.run_id, **test._asdict()})
    return found


def recipe_lines(runs: Sequence[Run]) -> list[str]:
    return ["; ".join(f"{name} {value}" for name, value in run.recipe.items()) for run in runs]


def markdown_page(content: Report) -> str:
    chosen = content.view.columns_for(content.rows, "md")
    return (
        templates()
        .get_template("table.md")
        .render(
            runs=content.runs,
            recipes=recipe_lines(content.runs),
            notes=content.notes,
            table=figure_table(content.rows, chosen).markdown(),
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
    return latex_table(content.rows, caption, recipes, content.view)


def json_page(content: Report) -> str:
    document = {
        "rows": content.rows,
        "notes": content.notes,
        "recipes": {run.run_id: run.recipe for run in content.runs},
        "answers": {run.run_id: run.answer for run in content.runs},
        "pairs": test_records(content, "pairs"),
        "not_worse": test_records(content, "margins"),
    }
    return f"{json_text(document)}\n"


# --- notes ---


def report_notes(runs: Sequence[Run]) -> list[Note]:
    """Return notes to read before the numbers: the runs' notes and those that follow from the
    rows.
    """
    notes: list[Note] = []
    for run in runs:
        name = run.run_id if len(runs) > 1 else None
        notes += [note._replace(run=name) for note in run.notes]
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
    grids = [image_grid(run) for run in content.runs]
    races = [race_of(run, content.view) for run in content.runs]
    said = {sentence for run in content.runs for sentence in run.answer}
    notes = [note for note in content.notes if note.text not in said]
    notes += [Note("info", None, text) for grid in grids for text in grid.notes]
    published = None if content.published is None else papers.table(content.published)
    return (
        templates()
        .get_template("report.html")
        .render(
            runs=content.runs,
            facts=page_facts(runs),
            notes=list(dict.fromkeys(notes)),
            results=results_table(content),
            glossary=glossary(columns(content.rows)),
            intervals=intervals_of(content.rows),
            plots=speeds,
            step_pictures=steps,
            pair_intro=pair_intro(content.runs),
            pair_table=pair_table,
            margin_intro=MARGIN_INTRO,
            margin_table=margin_table,
            published=published,
            grids=grids,
            races=races,
            drawn=any(run.record.target.draws_images for run in runs),
            flat=flat,
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
    return table._replace(folded=folded, dispensable=dispensable)


def flat(content: dict[str, object]) -> list[tuple[str, str]]:
    """Return nested dicts as ("outer.inner", text) pairs."""
    pairs = []
    for record in pd.json_normalize(content, max_level=8).to_dict("records"):
        for name, value in record.items():
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            pairs.append((str(name), text))
    return pairs
