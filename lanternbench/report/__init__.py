"""Reports of run folders: tables, Pareto plots, one self-contained page, and the papers' numbers beside them."""

from __future__ import annotations

from pathlib import Path

from lanternbench.analysis.summary import RANDOM_NOTE
from lanternbench.report.categories import category_table
from lanternbench.report.columns import metric_column, metric_keys, plain
from lanternbench.report.html import html_page
from lanternbench.report.load import Row, Run, joined_rows, load_runs, number
from lanternbench.report.pairs import INTRO, pair_rows, pair_table
from lanternbench.report.papers import cell, published_beside, title
from lanternbench.report.pareto import pareto_frontier, speed_column, write_pareto
from lanternbench.report.tables import csv_table, latex_table, markdown, markdown_table, terminal_table
from lanternbench.utils.files import OUT, replacing, writing

__all__ = ["pareto_frontier", "published_beside", "report", "terminal_table"]


def report(run_folders: list[Path], out: Path | None = None, published: bool = False) -> list[Path]:
    """Write tables, Pareto plots and report.html of one or more runs; returns the files, report.html last.

    Args: folders of runs (rows of several are joined, with a `run` column); the folder to write into, by default
    `<run>/report`, or `report` beside the runs when there are several; whether to set the papers' numbers beside.
    Raises UserError when a folder is no run, holds no results, is damaged, or `out` cannot be written.
    """
    runs = load_runs([Path(folder) for folder in run_folders])
    if out is None:
        out = runs[0].folder / "report" if len(runs) == 1 else runs[0].folder.resolve().parent / "report"
    rows, notes = joined_rows(runs), report_notes(runs)
    beside = published_beside(rows) if published else None
    names = ", ".join(run.run_id for run in runs)
    shown = [{key: value for key, value in row.items() if key != "hardware"} for row in rows]
    setups = dict.fromkeys(f"{run.target}, {run.dataset}, {run.hardware}" for run in runs)
    texts = {
        "table.md": f"# {plain(names)}\n\n{markdown_table(rows)}\n{_markdown_notes(notes)}",
        "table.csv": csv_table(shown if len(runs) == 1 else rows),
        "table.tex": latex_table(rows, "; ".join(setups)),
    }
    by_category = [(run, category_table(run)) for run in runs]
    if any(table for _, table in by_category):
        texts["categories.md"] = "\n".join(f"# {plain(run.run_id)}\n\n{table}" for run, table in by_category if table)
    pairs = [(run, pair_rows(run)) for run in runs]
    if any(found for _, found in pairs):
        parts = [f"# {plain(run.run_id)}\n\n{pair_table(found)}" for run, found in pairs if found]
        texts["pairs.md"] = f"{INTRO}\n\n" + "\n".join(parts)
        texts["pairs.csv"] = csv_table([{"run": run.run_id} | row for run, found in pairs for row in found])
    if beside is not None:
        cells = [[cell(str(name), value) for name, value in line.items()] for line in beside.to_dict("records")]
        right = [str(name).endswith((" measured", " paper")) for name in beside.columns]
        texts["published.md"] = markdown([title(str(name)) for name in beside.columns], cells, right)
        texts["published.csv"] = csv_table([{str(k): v for k, v in line.items()} for line in beside.to_dict("records")])
    texts["report.html"] = html_page(runs, rows, notes, beside, pairs)
    return _write(Path(out), texts, rows)


def report_notes(runs: list[Run]) -> list[str]:
    """What a reader must know before reading the numbers: the runs' own notes and what follows from the rows."""
    notes = [f"{run.run_id}: {note}" if len(runs) > 1 else note for run in runs for note in run.notes]
    for run in runs:
        where, said = f"{run.run_id} has" if len(runs) > 1 else "This run has", " ".join(run.notes)
        if not any(row.get("method") == "ar" or row["label"] == "ar" for row in run.rows):
            notes += [] if "baseline" in said else [f"{where} no ar baseline, so no speedup is given."]
        elif not any(number(row, "speedup") is not None for row in run.rows) and "latency" not in said:
            notes.append(f"{where} no valid latencies (batch above 1), so no speedup is given.")
    rows = [row for run in runs for row in run.rows]
    if speed_column(rows).key != "speedup":
        notes.append("The plots show step compression for want of speedups.")
    if differing := _differing(runs):
        notes.append(f"The runs differ in {differing}: do not compare their latencies or qualities.")
    return notes + _metric_notes(rows, " ".join(notes))


def _differing(runs: list[Run]) -> str:
    """What is not the same in all runs, each with its values."""
    found = []
    for name in dict.fromkeys(name for run in runs for name in run.setup):
        values = list(dict.fromkeys(run.setup.get(name, "–") for run in runs))
        if len(values) > 1:
            found.append(f"{name} ({', '.join(values)})")
    return "; ".join(found)


def _metric_notes(rows: list[Row], said: str) -> list[str]:
    notes = []
    keys = [key for key in metric_keys(rows) if any(number(row, key) is not None for row in rows)]
    if "-tiny" not in said and (tiny := [metric_column(key).title for key in keys if key.endswith("-tiny")]):
        notes.append(f"{', '.join(tiny)}: scored by the embedded evaluators; not comparable with the papers' metrics.")
    if RANDOM_NOTE not in said and any(key.endswith("-random") for key in keys):
        notes.append(RANDOM_NOTE)
    for key in keys:
        counts = sorted({int(n) for row in rows if (n := number(row, f"{key}_n")) is not None})
        if counts:
            span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            name = metric_column(key).title
            notes.append(
                f"{name} is over {span} images per row and changes with their number: compare equal counts only."
            )
    return notes


def _markdown_notes(notes: list[str]) -> str:
    return "".join(f"- {plain(note, 400).replace('<', '&lt;')}\n" for note in notes)


def _write(out: Path, texts: dict[str, str], rows: list[Row]) -> list[Path]:
    with writing(out, OUT):
        out.mkdir(parents=True, exist_ok=True)
        plots = write_pareto(rows, out)
    for name, text in texts.items():
        with replacing(out / name, OUT) as file:
            file.write(text.encode("utf-8", "replace"))
    tables = [name for name in texts if name != "report.html"]
    return [*(out / name for name in tables), *plots, out / "report.html"]
