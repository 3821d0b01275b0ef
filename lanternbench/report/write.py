"""``report()``: everything that a report of run folders writes."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lanternbench import metrics
from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.run_notes import RANDOM_NOTE
from lanternbench.measure.statistics import LOOKS
from lanternbench.notes import Note, by_importance
from lanternbench.report import load, tables
from lanternbench.report.answer import BUDGET, answer
from lanternbench.report.columns import glossary, metric_column, metric_keys
from lanternbench.report.drawing import save
from lanternbench.report.grid import PROMPTS, grid_figure
from lanternbench.report.latex import latex_table
from lanternbench.report.load import Contents, ReportRow, Run, differing
from lanternbench.report.maps import loss_figure, loss_records
from lanternbench.report.page import Part, html_page, templates
from lanternbench.report.pairs import INTRO, compared, pair_table
from lanternbench.report.pareto import speed_column
from lanternbench.report.pictures import speed_pictures, step_pictures, write_pictures
from lanternbench.report.tables import Table, csv_table, csv_text, markdown_table
from lanternbench.report.view import View
from lanternbench.utils.files import OUT, replacing, writing
from lanternbench.utils.json_values import versioned

FORMATS = ("md", "csv", "tex", "html", "json")


def report(
    run_folders: list[Path],
    out: Path | None = None,
    published: bool = False,
    formats: Sequence[str] | None = None,
    budget: float = BUDGET,
    view: View | None = None,
    grid: int = 0,
) -> list[Path]:
    """Write tables, pictures and report.html of one or more runs; returns the files, report.html last.

    Args: folders of runs (rows of several are joined, with a `run` column); the folder to write into, by default
    `<run>/report`, or `report` beside the runs when there are several; whether to set the papers' numbers beside;
    which formats to write, by default all and the pictures; the fidelity loss that the answer allows relaxed methods;
    which methods and columns to show under which names; of how many prompts to write the images side by side.
    Raises UserError when a folder is no run, holds no results, is damaged, or `out` cannot be written.
    """
    if unknown := [name for name in formats or () if name not in FORMATS]:
        raise UserError(f"there is no report format {unknown[0]!r}: choose of {', '.join(FORMATS)}.")
    view, loaded = view or View(), load.load_runs([Path(folder) for folder in run_folders])
    read = {run.folder: load.read_contents(run, max(PROMPTS, grid)) for run in loaded}
    every = [load.load_run(folder, contents.figures) for folder, contents in read.items()]  # a run may be going on
    runs = view.of(every)
    if grid and (empty := [run.run_id for run in runs if not run.draws]):
        raise UserError(f"{empty[0]} has no images, as its target has no image tokeniser: leave out --grid.")
    first = every[0].folder
    out = Path(out or (first if len(every) == 1 else first.resolve().parent) / "report")
    rows, notes = view.named(load.joined_rows(runs)), report_notes(runs)
    labels = {run.folder: [row.label for row in run.rows] for run in every}
    parts = [_part(run, read[run.folder], labels[run.folder], view, budget) for run in runs]
    if damaged := sum(part.contents.damaged for part in parts):
        notes.append(Note("warning", None, f"{damaged} damaged line(s) of samples.jsonl were left out."))
    if apart := differing(runs):
        parts[0].answer.insert(0, apart)
    texts, beside = _texts(parts, rows, notes, view), None
    if published:
        beside, papers = _published(rows)
        texts |= papers
    wanted = tuple(f".{name}" for name in formats or FORMATS)
    texts = {name: text for name, text in texts.items() if name.endswith(wanted)}
    files: list[Path] = []
    with writing(out, OUT):
        out.mkdir(parents=True, exist_ok=True)
    if ".html" in wanted:
        steps = [part.contents.figures.steps.get(row.label) for part in parts for row in part.run.rows]
        pictures = (speed_pictures(rows), step_pictures(rows, steps))
        texts["report.html"] = html_page(parts, rows, notes, pictures, view, beside)
        files += write_pictures([*pictures[0], *pictures[1]], out) if formats is None else []
    for i, part in enumerate(parts, 1):
        number = f"-{i}" if len(parts) > 1 else ""
        if formats is None and (losses := loss_records(part.contents.losses)):
            files += save(partial(loss_figure, losses), out / f"loss-by-place{number}", ("png", "svg", "pdf"))
            texts = {f"loss-by-place{number}.csv": csv_text(losses), **texts}
        if grid:
            draw = partial(grid_figure, part.run, part.contents, view, grid)
            files += save(draw, out / f"grid{number}", ("png", "pdf"))
    for name, text in texts.items():
        with replacing(out / name, OUT) as file:
            file.write(text.encode("utf-8", "replace"))
    *others, last = sorted((out / name for name in texts), key=lambda path: path.name == "report.html")
    return [*others, *files, last]


def _part(run: Run, contents: Contents, labels: list[str], view: View, budget: float) -> Part:
    """A run as the page shows it. p-values are corrected for all of its methods, ``labels``, also those not shown."""
    names = view.labels({row.label: row.method for row in run.rows})
    looks = LOOKS if run.part("config").get("until_told_apart") else 1
    pairs = [pair for pair in compared(contents.figures, labels, looks) if {pair.method, pair.against} <= names.keys()]
    pairs = [pair._replace(method=names[pair.method], against=names[pair.against]) for pair in pairs]
    rows = [replace(row, label=names[row.label]) for row in run.rows]
    return Part(run, contents, pairs, answer(rows, pairs, run.notes, budget))


def _texts(parts: list[Part], rows: list[ReportRow], notes: list[Note], view: View) -> dict[str, str]:
    """Every file but the page, by name."""
    pairs = [{"run": part.run.run_id} | pair._asdict() for part in parts for pair in part.pairs]
    answers = {part.run.run_id: part.answer for part in parts}
    document = versioned({"rows": rows, "notes": notes, "answers": answers, "pairs": pairs})
    recipes, columns = [part.run.recipe for part in parts], view.columns_for(rows, "md")
    setups = [f"Decoding methods on {r['target']} ({r['prompts']}, temperature {r['temperature']})" for r in recipes]
    lines = ["; ".join(f"{name} {value}" for name, value in recipe.items()) for recipe in recipes]
    caption, recipe = "; ".join(dict.fromkeys(setups)) + ".", ". ".join(dict.fromkeys(lines))
    table, meanings = markdown_table(rows, columns), glossary(columns)
    template, sections = map(templates().get_template, ("table.md", "sections.md"))
    texts = {
        "table.md": template.render(parts=parts, recipes=lines, notes=notes, table=table, glossary=meanings),
        "table.csv": csv_table(rows),
        "table.tex": latex_table(rows, caption, recipe, view.columns_for(rows, "tex") if view.columns else None),
        "table.json": json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
    }
    if rates := tables.acceptance_table(rows):
        texts["acceptance.md"] = f"{tables.ACCEPTANCE}\n\n{rates}"
        texts["acceptance.csv"] = csv_text(tables.acceptance_records(rows))
    categories = [tables.category_table(part.contents.figures, [row.label for row in part.run.rows]) for part in parts]
    differences = [pair.markdown() if (pair := pair_table(part.pairs)) else "" for part in parts]
    for name, intro, each in (("categories.md", "", categories), ("pairs.md", INTRO, differences)):
        if by_run := [(part.run.run_id, text) for part, text in zip(parts, each) if text]:
            texts[name] = sections.render(intro=intro, sections=by_run)
    return texts | ({"pairs.csv": csv_text(pairs)} if pairs else {})


def _published(rows: list[ReportRow]) -> tuple[Table, dict[str, str]]:
    """The papers' figures beside the measured ones, as a table and as files; a sentence where there are none."""
    from lanternbench.report import papers  # not for every report: it loads all methods

    frame = papers.published_beside(rows)
    table = papers.table(frame)
    if frame.empty:
        return table, {"published.md": f"{papers.NONE}\n"}
    return table, {"published.md": table.markdown(), "published.csv": csv_text(frame)}


def report_notes(runs: list[Run]) -> list[Note]:
    """Notes to read before the numbers: the runs' notes and those that follow from the rows."""
    notes: list[Note] = []
    for run in runs:
        text, metric = "", "speedup"
        if not any(BASELINE in (row.method, row.label) for row in run.rows):
            text = "there is no ar baseline, so no speedup is given."
        elif not any(row.value("speedup") is not None for row in run.rows):
            text, metric = "there are no valid latencies (batch above 1), so no speedup is given.", "latency_s"
        noted = not text or ("missing", metric) in {(note.kind, note.metric) for note in run.notes}
        missing = [] if noted else [Note("missing", "speedup", text)]
        prefix = f"{run.run_id}: " if len(runs) > 1 else ""
        notes += [note._replace(text=prefix + note.text) for note in [*run.notes, *missing]]
    rows = [row for run in runs for row in run.rows]
    reasons = {
        "step_compression": "The pictures show step compression for want of speedups.",
        "robust_speedup": "Other programs disturbed the clock: the pictures show the robust speedup.",
    }
    if reason := reasons.get(speed_column(rows).key):
        notes.append(Note("info", None, reason))
    if apart := differing(runs):
        notes.append(Note("unfit", None, apart))
    return by_importance([*notes, *_metric_notes(rows)])


def _metric_notes(rows: Sequence[Any]) -> Iterator[Note]:
    keys = [key for key in metric_keys(rows) if any(row.value(key) is not None for row in rows)]
    if tiny := [metric_column(key).title for key in keys if metrics.column(key).embedded]:
        text = f"{', '.join(tiny)}: scored by the embedded evaluators; not comparable with the papers' metrics."
        yield Note("info", None, text)
    if any(metrics.column(key).random for key in keys):
        yield RANDOM_NOTE
    for key in keys:
        estimates = [row.figure(key) for row in rows]
        if counts := {e.n for e in estimates if e.value is not None and e.lo is None and e.n}:
            span = " to ".join(map(str, sorted({min(counts), max(counts)})))
            name = metric_column(key).title
            text = f"{name} is over {span} images per row and changes with their number: compare equal counts only."
            yield Note("info", None, text)
