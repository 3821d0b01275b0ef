"""What commands print: JSON for scripts, tables and notes for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pathlib import Path

    from lanternbench.measure.summaries import Row, Summary
    from lanternbench.report.columns import Column

PAGE = 80  # columns


def print_json(value: Any) -> None:
    """One JSON document on stdout, NaN as null, and no sign that a terminal obeys; an object says its version."""
    from lanternbench.utils.json_values import plain, versioned

    found = versioned(value) if isinstance(value, dict) else plain(value)
    text = json.dumps(found, ensure_ascii=False, indent=2, allow_nan=False)
    print(re.sub("[\x7f-\x9f]", lambda sign: f"\\u{ord(sign[0]):04x}", text))


def record(path: Path, summary: Summary) -> dict[str, Any]:
    """A run as JSON for scripts: each row has its figures with intervals, and their values alone by name."""
    rows = [vars(row) | {name: figure.value for name, figure in row.figures.items()} for row in summary.rows]
    return {"run": str(path), **vars(summary), "rows": rows}


def stdout() -> Console:
    """For tables: as wide as the terminal, and 140 columns into a file or pipe."""
    return Console(width=None if sys.stdout.isatty() else 140)


def print_table(rows: Sequence[Row], shown: Sequence[Column] | None = None) -> None:
    """The compact table, or these columns: as many as a terminal has room for; all of them into a file or pipe."""
    from lanternbench.report.tables import terminal_table

    console = stdout()
    console.print(terminal_table(rows, console.width, shown))


def print_notes(notes: Iterable[Any], console: Console, bullet: str = "· ") -> None:
    """Each on a line of its own, not broken: a note may hold a command to copy."""
    from lanternbench.utils.text import one_line

    for note in notes:
        text = bullet + one_line(str(note), 4000)
        console.print(text, style="dim" if bullet else None, highlight=False, markup=False, soft_wrap=True)


def print_rows(rows: list[dict[str, Any]], as_json: bool, columns: dict[str, str]) -> None:
    """Rows as JSON, or as a table of these columns: key -> title."""
    if as_json:
        print_json(rows)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i, title in enumerate(columns.values()):
        table.add_column(title, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in columns))
    stdout().print(table)


def print_page(title: str, about: dict[str, str]) -> None:
    """A page of 80 columns: a title, and texts beside their names."""
    from lanternbench.utils.text import one_line

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in about.items():
        table.add_row(Text(name), Text(one_line(text, 4000)))
    console = Console(width=PAGE, highlight=False)
    console.print(Text(one_line(title)))
    console.print(table)


def number_table(titles: Iterable[str], words: Iterable[str] = (), overflow: Any = "ellipsis", **style: Any) -> Table:
    """A table without rows; its columns hold numbers but for those titled as in ``words``."""
    table = Table(box=box.SIMPLE_HEAD, **style)
    for title in titles:
        table.add_column(Text(title), justify="left" if title in words else "right", overflow=overflow)
    return table


def _cell(value: Any) -> Text:
    """No text from a file is read as markup, or as a sign that a terminal obeys."""
    from lanternbench.utils.text import one_line

    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, dict):
        value = ", ".join(f"{k}={v}" for k, v in value.items())
    return Text(one_line(str(value), 4000))
