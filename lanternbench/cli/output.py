"""What commands print: JSON for scripts, tables and notes for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console


def print_json(value: Any) -> None:
    """One JSON document on stdout, NaN as null."""
    from lanternbench.utils.json_values import plain

    json.dump(plain(value), sys.stdout, ensure_ascii=False, indent=2, allow_nan=False)
    print()


def stdout() -> Console:
    """For tables: as wide as the terminal, and 140 columns into a file or pipe."""
    return Console(width=None if sys.stdout.isatty() else 140)


def print_table(rows: list[dict[str, Any]]) -> None:
    """The compact table: as many columns as a terminal has room for; all of them into a file or pipe."""
    from lanternbench.report.tables import terminal_table

    console = stdout()
    console.print(terminal_table(rows, console.width))


def print_notes(notes: Iterable[str], console: Console) -> None:
    """Each on a line of its own, not broken: a note may hold a command to copy."""
    for note in notes:
        console.print(f"· {note}", style="dim", highlight=False, markup=False, soft_wrap=True)
