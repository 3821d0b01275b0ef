"""``report()``: everything that a report of run folders writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from lanternbench import metrics
from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.summary import RANDOM_NOTE
from lanternbench.measure.told_apart import LOOKS
from lanternbench.notes import Note, by_importance
from lanternbench.report import acceptance
from lanternbench.report.answer import BUDGET, answer
from lanternbench.report.categories import category_table
from lanternbench.report.columns import glossary, metric_column, metric_keys
from lanternbench.report.drawing import save
from lanternbench.report.grid import PROMPTS
from lanternbench.report.grid_picture import write_grid
from lanternbench.report.latex import latex_table
from lanternbench.report.load import (
    Contents,
    ReportRow,
    Run,
    differing,
    joined_rows,
    load_run,
    load_runs,
    read_contents,
)
from lanternbench.report.maps import loss_figure, loss_records
from lanternbench.report.page import Part, html_page, templates
from lanternbench.report.pairs import INTRO, compared, pair_table
from lanternbench.report.pareto import speed_column
from lanternbench.report.pictures import Picture, phase_times, speed_pictures, step_pictures, write_pictures
from lanternbench.report.recipe import recipe, recipe_text
from lanternbench.report.tables import csv_table, csv_text, markdown, markdown_table
from lanternbench.report.view import View
from lanternbench.utils.files import OUT, replacing, writing
from lanternbench.utils.json_values import versioned

FORMATS = {"md": ".md", "csv": ".csv", "tex": ".tex", "html": ".html", "json": ".json"}


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
    view, loaded = view or View(), load_runs([Path(folder) for folder in run_folders])
    read = {run.folder: read_contents(run, max(PROMPTS, grid)) for run in loaded}
    every = [load_run(folder, contents.figures) for folder, contents in read.items()]  # a run may be going on
    runs = view.of(every)
    if grid and (empty := [run.run_id for run in runs if not run.draws]):
        raise UserError(f"{empty[0]} has no images, as its target has no image tokeniser: leave out --grid.")
    if out is None:
        out = every[0].folder / "report" if len(every) == 1 else every[0].folder.resolve().parent / "report"
    rows, notes = view.named(joined_rows(runs)), report_notes(runs)
    labels = {run.folder: [row.label for row in run.rows] for run in every}
    parts = [_part(run, read[run.folder], labels[run.folder], view, budget) for run in runs]
    if damaged := sum(part.contents.damaged for part in parts):
        notes.append(Note("warning", None, f"{damaged} damaged line(s) of samples.jsonl were left out."))
    if apart := differing(runs):
        parts[0].answer.insert(0, apart)
    steps = [part.contents.figures.steps.get(row.label) for part in parts for row in part.run.rows]
    pictures = (speed_pictures(rows), step_pictures(rows, phase_times(list(zip(rows, steps)))))
    beside = None
    texts = _texts(parts, rows, notes, view)
    if published:
        from lanternbench.report.papers import published_beside  # not for every report: it loads all methods

        beside = published_beside(rows)
        texts |= _published(beside)
    wanted = tuple(FORMATS[name] for name in formats or FORMATS)
    texts = {name: text for name, text in texts.items() if name.endswith(wanted)}
    if ".html" in wanted:
        texts["report.html"] = html_page(parts, rows, notes, pictures, view, beside)
    files = _write(Path(out), texts, [*pictures[0], *pictures[1]] if formats is None else [])
    for i, part in enumerate(parts if formats is None else ()):
        if records := loss_records(part.contents.losses):
            stem = Path(out) / (f"loss-by-place-{i + 1}" if len(parts) > 1 else "loss-by-place")
            files[-1:-1] = save(partial(loss_figure, records), stem, ("png", "svg", "pdf"))
            with replacing(stem.with_suffix(".csv"), OUT) as file:
                file.write(csv_text(records).encode())
            files.insert(-1, stem.with_suffix(".csv"))
    for i, part in enumerate(parts if grid else ()):
        stem = Path(out) / (f"grid-{i + 1}" if len(parts) > 1 else "grid")
        with writing(Path(out), OUT):
            files[-1:-1] = write_grid(part.run, part.contents, view, grid, stem)
    return files


def _part(run: Run, contents: Contents, labels: list[str], view: View, budget: float) -> Part:
    """A run as the page shows it. p-values are corrected for all of its methods, ``labels``, also those not shown."""
    chosen = {row.label: row.method for row in run.rows}
    looks = LOOKS if run.part("config").get("until_told_apart") else 1
    pairs = [p for p in compared(contents.figures, labels, looks) if {p.method, p.against} <= chosen.keys()]

    def name(label: str) -> str:
        return label if label == BASELINE else view.name(label, chosen[label])

    pairs = [pair._replace(method=name(pair.method), against=name(pair.against)) for pair in pairs]
    named = [replace(row, label=name(row.label)) for row in run.rows]
    return Part(run, contents, pairs, answer(named, pairs, run.notes, budget))


def _texts(parts: list[Part], rows: list[ReportRow], notes: list[Note], view: View) -> dict[str, str]:
    """Every file but the page, by name."""
    recipes = [recipe_text(part.run) for part in parts]
    table = templates().get_template("table.md")
    document = {
        "rows": rows,
        "notes": notes,
        "answers": {part.run.run_id: part.answer for part in parts},
        "pairs": [{"run": part.run.run_id} | pair._asdict() for part in parts for pair in part.pairs],
    }
    caption = "; ".join(dict.fromkeys(_caption(part) for part in parts))
    chosen = view.shown(rows, "tex") if view.columns else None
    shown = view.shown(rows, "md")
    texts = {
        "table.md": table.render(
            parts=parts, recipes=recipes, notes=notes, table=markdown_table(rows, shown), glossary=glossary(shown)
        ),
        "table.csv": csv_table(rows),
        "table.tex": latex_table(rows, f"{caption}.", ". ".join(dict.fromkeys(recipes)), chosen),
        "table.json": json.dumps(versioned(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
    }
    if rates := acceptance.table(rows):
        texts["acceptance.md"] = f"{acceptance.INTRO}\n\n{rates}"
        texts["acceptance.csv"] = csv_text(acceptance.records(rows))
    labels = {part.run.run_id: [row.label for row in part.run.rows] for part in parts}
    tables = {
        "categories.md": [category_table(part.contents.figures, labels[part.run.run_id]) for part in parts],
        "pairs.md": [pair_table(part.pairs) if part.pairs else "" for part in parts],
    }
    sections = templates().get_template("sections.md")
    for name, found in tables.items():
        if any(found):
            intro = INTRO if name == "pairs.md" else ""
            shown_parts = [(part.run.run_id, text) for part, text in zip(parts, found) if text]
            texts[name] = sections.render(intro=intro, sections=shown_parts)
    if "pairs.md" in texts:
        texts["pairs.csv"] = csv_text(document["pairs"])  # type: ignore[arg-type]
    return texts


def _published(beside: pd.DataFrame) -> dict[str, str]:
    """The papers' figures beside the measured ones as Markdown and CSV; a sentence where there are none."""
    from lanternbench.report.papers import NONE, cell, title

    if beside.empty:
        return {"published.md": f"{NONE}\n"}
    records = [{str(name): value for name, value in line.items()} for line in beside.to_dict("records")]
    right = [str(name).endswith((" measured", " paper")) for name in beside.columns]
    cells = [[cell(name, value) for name, value in line.items()] for line in records]
    table = markdown([title(str(name)) for name in beside.columns], cells, right)
    return {"published.md": table, "published.csv": csv_text(records)}


def _caption(part: Part) -> str:
    """The caption of a table in a paper: target, prompts, temperature."""
    found = recipe(part.run)
    return f"Decoding methods on {found['target']} ({found['prompts']}, temperature {found['temperature']})"


def report_notes(runs: list[Run]) -> list[Note]:
    """What a reader must know before reading the numbers: the runs' own notes and what follows from the rows."""
    several, notes = len(runs) > 1, []
    for run in runs:
        own, said = list(run.notes), {(note.kind, note.metric) for note in run.notes}
        if not any(BASELINE in (row.method, row.label) for row in run.rows):
            if ("missing", "speedup") not in said:
                own.append(Note("missing", "speedup", "there is no ar baseline, so no speedup is given."))
        elif not any(row.value("speedup") is not None for row in run.rows) and ("missing", "latency_s") not in said:
            text = "there are no valid latencies (batch above 1), so no speedup is given."
            own.append(Note("missing", "speedup", text))
        notes += [note._replace(text=f"{run.run_id}: {note.text}") if several else note for note in own]
    rows = [row for run in runs for row in run.rows]
    reasons = {
        "step_compression": "The pictures show step compression for want of speedups.",
        "robust_speedup": "Other programs disturbed the clock: the pictures show the robust speedup.",
    }
    if (key := speed_column(rows).key) in reasons:
        notes.append(Note("info", None, reasons[key]))
    if apart := differing(runs):
        notes.append(Note("unfit", None, apart))
    return by_importance(notes + _metric_notes(rows, notes))


def _metric_notes(rows: Sequence, said: list[Note]) -> list[Note]:
    notes = []
    keys = [key for key in metric_keys(rows) if any(row.value(key) is not None for row in rows)]
    if tiny := [metric_column(key).title for key in keys if metrics.column(key).embedded]:
        text = f"{', '.join(tiny)}: scored by the embedded evaluators; not comparable with the papers' metrics."
        notes.append(Note("info", None, text))
    if any(metrics.column(key).random for key in keys) and RANDOM_NOTE not in said:
        notes.append(RANDOM_NOTE)
    for key in keys:
        found = [row.figure(key) for row in rows]
        counts = sorted({one.n for one in found if one.value is not None and one.lo is None and one.n})
        if counts:
            span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            name = metric_column(key).title
            text = f"{name} is over {span} images per row and changes with their number: compare equal counts only."
            notes.append(Note("info", None, text))
    return notes


def _write(out: Path, texts: dict[str, str], pictures: Sequence[Picture]) -> list[Path]:
    with writing(out, OUT):
        out.mkdir(parents=True, exist_ok=True)
        plots = write_pictures(pictures, out)
    for name, text in texts.items():
        with replacing(out / name, OUT) as file:
            file.write(text.encode("utf-8", "replace"))
    order = sorted(texts, key=lambda name: name == "report.html")
    return [*(out / name for name in order[:-1]), *plots, out / order[-1]]
