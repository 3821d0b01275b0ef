"""The results table as Markdown, CSV, LaTeX (booktabs) and for the terminal."""

from __future__ import annotations

import html
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from lanternbench.report.columns import Column, columns, plain, tex_escape
from lanternbench.report.load import Row


def markdown_table(rows: list[Row]) -> str:
    """GitHub Markdown with every column that has a value; intervals in brackets."""
    shown = columns(rows)
    cells = [[column.cell(row) for column in shown] for row in rows]
    return markdown([c.title + c.arrow for c in shown], cells, [c.form not in ("text", "yes") for c in shown])


def markdown(titles: list[str], cells: list[list[str]], right: list[bool]) -> str:
    """A Markdown table; `right` marks right-aligned columns. Cells may hold any text, it is escaped."""
    lines = [titles, ["---:" if r else ":---" for r in right]]
    head = [_markdown_escape(title) for title in lines[0]]
    body = [[_markdown_escape(cell) for cell in line] for line in cells]
    return "".join("| " + " | ".join(line) + " |\n" for line in [head, lines[1], *body])


def csv_table(rows: list[Row]) -> str:
    """Every key of the summary rows with full precision; nested values as text; missing = empty."""
    frame = pd.DataFrame([{key: _csv_cell(value) for key, value in row.items()} for row in rows])
    return frame.to_csv(index=False, lineterminator="\n")


def latex_table(rows: list[Row], caption: str = "") -> str:
    """A booktabs table for a paper (needs \\usepackage{booktabs}); all text escaped."""
    shown = columns(rows, "tex")
    arrows = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        *([rf"\caption{{{tex_escape(caption)}}}"] if caption else []),
        rf"\begin{{tabular}}{{{''.join('l' if c.form == 'text' else 'r' for c in shown)}}}",
        r"\toprule",
        " & ".join(c.tex + arrows[c.better] for c in shown) + r" \\",
        r"\midrule",
        *(" & ".join(_tex_cell(c, row) for c in shown) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def terminal_table(rows: list[Row], width: int | None = None) -> Table:
    """The compact table for the terminal: method, speedup with its interval, τ, step compression, d̄, quality.

    Rows keep the order of their run, the baseline `ar` first; a missing value prints as "–".
    """
    runs = [row.get("run") for row in rows]
    rows = sorted(rows, key=lambda row: (runs.index(row.get("run")), row.get("label") != "ar"))
    shown = columns(rows, "terminal")
    cells = {c.key: [plain(c.cell(row) if c.key == "speedup" else c.value(row)) for row in rows] for c in shown}
    # a column costs its padding and a divider too
    room = {c.key: max(map(len, [c.title + c.arrow, *cells[c.key]])) + 3 for c in shown}
    while width and sum(room[c.key] for c in shown) > width and len(shown) > 2:
        least = next((c for key in ("tree_depth", "step_compression") for c in shown if c.key == key), shown[-1])
        shown = [c for c in shown if c is not least]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for c in shown:
        table.add_column(Text(c.title + c.arrow), justify="left" if c.form == "text" else "right", no_wrap=True)
    for i in range(len(rows)):
        # Text, not str: a label such as "[red]" must not be read as markup
        table.add_row(*(Text(cells[c.key][i]) for c in shown))
    return table


def _markdown_escape(text: str) -> str:
    escaped = html.escape(plain(text), quote=False).replace("\\", "\\\\")
    for sign in "|*_`[]":
        escaped = escaped.replace(sign, "\\" + sign)
    return escaped


def _csv_cell(value: Any) -> Any:
    if isinstance(value, dict):
        value = " ".join(f"{key}={item}" for key, item in value.items())
    elif isinstance(value, list):
        value = " ".join(map(str, value))
    # a leading quote keeps a spreadsheet from running a cell such as "=HYPERLINK(...)"
    return "'" + value if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _tex_cell(column: Column, row: Row) -> str:
    bounds = column.bounds(row)
    value = tex_escape(column.value(row))
    if value.startswith(("[", "*")):
        value = "{}" + value  # else the \\ of the line before would take it as its own argument
    return value + (rf" {{\scriptsize {tex_escape(bounds)}}}" if bounds else "")
