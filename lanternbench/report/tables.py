"""The results table as Markdown, CSV, LaTeX (booktabs), a pandas frame, and for the terminal."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from lanternbench.measure.summaries import Row
from lanternbench.report.columns import Column, columns, glossary
from lanternbench.utils.text import one_line

FACTS = ("run", "label", "method", "options", "target", "dataset", "temperature", "lossless", "simulated", "n")


def markdown_table(rows: Sequence[Row], shown: Sequence[Column] | None = None) -> str:
    """GitHub Markdown, by default with the columns that a reader wants first; intervals in brackets."""
    shown = columns(rows, "md") if shown is None else shown
    cells = [[column.cell(row) for column in shown] for row in rows]
    return markdown([c.title + c.arrow for c in shown], cells, [c.numeric for c in shown])


def markdown(titles: list[str], cells: list[list[str]], right: list[bool]) -> str:
    """A Markdown table; `right` marks right-aligned columns. Cells may hold any text, it is escaped."""
    rule = ["---:" if r else ":---" for r in right]
    escaped = [[markdown_escape(cell) for cell in line] for line in [titles, *cells]]
    return "".join("| " + " | ".join(line) + " |\n" for line in [escaped[0], rule, *escaped[1:]])


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """A row per method: facts and figures with full precision; `<figure>_lo`, `_hi`, `_n` and `_p` where known."""
    records = []
    for row in rows:
        record = {name: value for name in FACTS if (value := getattr(row, name, None)) is not None}
        for name, found in row.figures.items():
            parts = {f"{name}_{part}": value for part, value in zip(found._fields[1:], found[1:]) if value is not None}
            record |= {name: found.value} | (parts if found.value is not None else {})
        records.append(record)
    return pd.DataFrame(records)


def csv_text(records: list[dict[str, Any]]) -> str:
    """Records as CSV; nested values as text, missing = empty, and no cell that a spreadsheet would run."""
    return pd.DataFrame([{k: csv_cell(v) for k, v in record.items()} for record in records]).to_csv(
        index=False, lineterminator="\n"
    )


def csv_table(rows: Sequence[Row]) -> str:
    """`frame` as CSV."""
    return csv_text([{str(k): v for k, v in record.items()} for record in frame(rows).to_dict("records")])


def terminal_table(rows: Sequence[Row], width: int | None = None, chosen: Sequence[Column] | None = None) -> Table:
    """The compact table for the terminal: method, speedup with its interval, τ, step compression, d̄, quality.

    Rows keep the order of their run, the baseline `ar` first; a missing value prints as "–". The caption says what
    columns mean and which have no room or place here. ``chosen``: the columns, instead of these.
    """
    runs = [getattr(row, "run", None) for row in rows]
    rows = sorted(rows, key=lambda row: (runs.index(getattr(row, "run", None)), row.label != "ar"))
    shown = list(chosen) if chosen is not None else columns(rows, "terminal")
    wanted = list(chosen) if chosen is not None else columns(rows, "md")
    cells = {c.key: [one_line(c.cell(row) if c.key == "speedup" else c.value(row)) for row in rows] for c in shown}
    # a column costs its padding and a divider too
    room = {c.key: max(map(len, [c.title + c.arrow, *cells[c.key]])) + 3 for c in shown}
    while width and sum(room[c.key] for c in shown) > width and len(shown) > 2:
        least = next((c for key in ("tree_depth", "step_compression") for c in shown if c.key == key), shown[-1])
        shown = [c for c in shown if c is not least]
    said = glossary(shown)
    if left_out := [one_line(c.title, 32) for c in wanted if c not in shown]:
        said.append(f"not shown: {', '.join(left_out)} (lanternbench report writes all columns)")
    caption = Text("; ".join(said)) if said else None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", caption=caption, caption_justify="left")
    for c in shown:
        table.add_column(Text(c.title + c.arrow), justify="right" if c.numeric else "left", no_wrap=True)
    for i in range(len(rows)):
        # Text, not str: a label such as "[red]" must not be read as markup
        table.add_row(*(Text(cells[c.key][i]) for c in shown))
    return table


def markdown_escape(text: str, limit: int = 200) -> str:
    """Text that Markdown prints as it stands, on one line."""
    escaped = html.escape(one_line(text, limit), quote=False).replace("\\", "\\\\")
    for sign in "|*_`[]":
        escaped = escaped.replace(sign, "\\" + sign)
    return escaped


def csv_cell(value: Any) -> Any:
    """The value as a spreadsheet may have it: a leading quote keeps a text such as "=HYPERLINK(...)" from running."""
    if isinstance(value, dict):
        value = " ".join(f"{key}={item}" for key, item in value.items())
    elif isinstance(value, list):
        value = " ".join(map(str, value))
    if isinstance(value, str):
        value = value.replace("\r", " ")  # a reader may take it for the end of a row
    return "'" + value if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")) else value
