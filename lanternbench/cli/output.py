"""What commands print: JSON for scripts, tables and notes for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from pathlib import Path

    from lanternbench.analysis.summaries import Row, Summary


def print_json(value: Any) -> None:
    """One JSON document on stdout, NaN as null, and no sign that a terminal obeys."""
    from lanternbench.utils.json_values import plain

    text = json.dumps(plain(value), ensure_ascii=False, indent=2, allow_nan=False)
    print(re.sub("[\x7f-\x9f]", lambda sign: f"\\u{ord(sign[0]):04x}", text))


def record(path: Path, summary: Summary) -> dict[str, Any]:
    """A run as JSON for scripts: each row has its figures with intervals, and their values alone by name."""
    rows = [vars(row) | {name: figure.value for name, figure in row.figures.items()} for row in summary.rows]
    return {"run": str(path), **vars(summary), "rows": rows}


def stdout() -> Console:
    """For tables: as wide as the terminal, and 140 columns into a file or pipe."""
    return Console(width=None if sys.stdout.isatty() else 140)


def print_table(rows: Sequence[Row]) -> None:
    """The compact table: as many columns as a terminal has room for; all of them into a file or pipe."""
    from lanternbench.report.tables import terminal_table

    console = stdout()
    console.print(terminal_table(rows, console.width))


def print_notes(notes: Iterable[Any], console: Console, bullet: str = "· ") -> None:
    """Each on a line of its own, not broken: a note may hold a command to copy."""
    from lanternbench.report.columns import plain

    for note in notes:
        text = bullet + plain(str(note), 4000)
        console.print(text, style="dim" if bullet else None, highlight=False, markup=False, soft_wrap=True)
