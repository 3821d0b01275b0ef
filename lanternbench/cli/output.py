"""What commands print: JSON for scripts, tables and notes for people; and what to type for ``lanternbench``."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lanternbench.utils.text import one_line

if TYPE_CHECKING:
    from lanternbench.measure.summary import Row, Summary
    from lanternbench.report.columns import Column

PAGE = 80  # columns
LONGEST = 4000  # characters of a cell or a line


def program() -> str:
    """``lanternbench`` where the shell finds this installation by name, else its path or ``python -m``."""
    started = Path(sys.argv[0])
    if started.name != "lanternbench" or not os.access(started, os.X_OK):
        return "python -m lanternbench" if started.name == "__main__.py" else "lanternbench"
    on_path = shutil.which("lanternbench")
    if on_path and Path(on_path).resolve() == started.resolve():
        return "lanternbench"
    path = started.absolute()  # not resolved: a virtual environment may be a link
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def print_json(value: Any) -> None:
    """One JSON document on stdout, NaN as null, without control characters; an object has a version."""
    from lanternbench.utils.json_values import plain, versioned

    document = versioned(value) if isinstance(value, dict) else plain(value)
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    print(re.sub("[\x7f-\x9f]", lambda sign: f"\\u{ord(sign[0]):04x}", text))


def record(path: Path, summary: Summary) -> dict[str, Any]:
    """A run as JSON for scripts: each row has its figures as intervals, and the plain values by name."""
    rows = [vars(row) | {name: figure.value for name, figure in row.figures.items()} for row in summary.rows]
    return {"run": str(path), **vars(summary), "rows": rows}


def stdout() -> Console:
    """For tables: as wide as the terminal, and 140 columns into a file or pipe."""
    return Console(width=None if sys.stdout.isatty() else 140)


def print_table(rows: Sequence[Row], columns: Sequence[Column] | None = None) -> None:
    """The compact table, or these columns: as many as fit a terminal; all of them into a file or pipe."""
    from lanternbench.report.tables import terminal_table

    console = stdout()
    console.print(terminal_table(rows, console.width, columns))


def print_notes(notes: Iterable[Any], console: Console | None = None, bullet: str = "· ") -> None:
    """One unwrapped line per note, on stderr by default: a note may hold a command to copy."""
    console = console or Console(stderr=True)
    for note in notes:
        text = bullet + one_line(str(note), LONGEST)
        console.print(text, style="dim" if bullet else None, highlight=False, markup=False, soft_wrap=True)


def table_of(
    titles: Sequence[str],
    rows: Iterable[Iterable[Any]],
    left: Sequence[str] = (),
    whole: Sequence[str] = (),
    widths: Mapping[str, int] = {},
    **style: Any,
) -> Table:
    """A table of texts; columns titled ``left`` are left-aligned, ``whole`` ones do not wrap, ``widths``: at most."""
    table = Table(box=box.SIMPLE_HEAD, **style)
    for title in titles:
        justify: Any = "left" if title in left else "right"
        table.add_column(
            Text(title), justify=justify, overflow="fold", no_wrap=title in whole, max_width=widths.get(title)
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else _cell(cell) for cell in row))
    return table


def print_cells(
    titles: Sequence[str], rows: Iterable[Iterable[Any]], left: Sequence[str] = ("method",), **style: Any
) -> None:
    """Print a ``table_of`` these cells."""
    stdout().print(table_of(titles, rows, left, **style))


def print_rows(rows: list[dict[str, Any]], as_json: bool, columns: str) -> None:
    """Rows as JSON, or as a table of these columns."""
    if as_json:
        print_json(rows)
        return
    names = columns.split()
    cells = ([row[name] for name in names] for row in rows)
    print_cells(names, cells, names, whole=names[:1], pad_edge=False, collapse_padding=True)


def print_page(title: str, about: dict[str, str]) -> None:
    """A page of 80 columns: a title, and texts beside their names."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in about.items():
        table.add_row(Text(name), _cell(text))
    console = Console(width=PAGE, highlight=False)
    console.print(Text(one_line(title)))
    console.print(table)


def _cell(value: Any) -> Text:
    """A table cell: text from a file is never read as markup or as a terminal's control character."""
    if isinstance(value, bool | None):
        return Text({True: "yes", False: "no", None: "–"}[value])
    if isinstance(value, dict):
        value = ", ".join(f"{k}={v}" for k, v in value.items())
    return Text(one_line(str(value), LONGEST))
