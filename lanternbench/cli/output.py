"""Output of commands: JSON, tables and notes; progress as bars in a terminal, else as lines."""

import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from lanternbench.utils.json_values import plain, versioned
from lanternbench.utils.text import one_line

if TYPE_CHECKING:
    from lanternbench.measure.summary import Row, Summary
    from lanternbench.report.load import View

PAGE = 80  # columns
LONGEST = 4000  # characters of a cell or a line
SILENCE = 30.0  # maximum seconds between two lines
FIRST = 5.0  # maximum seconds before the first line
BAR, FIGURES = 12, 45  # columns of a bar, and of a bar with its figures
LONG = 2.0  # seconds after which an image gets a separate bar
# minimum seconds between updates of that bar, because updates take time from measured steps
REFRESH = 0.2


def program() -> str:
    """Return ``lanternbench`` if the shell finds this installation by that name, else its path or
    ``python -m lanternbench``.
    """
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return "python -m lanternbench"
    if started.name != "lanternbench" or not os.access(started, os.X_OK):
        return "lanternbench"
    on_path = shutil.which("lanternbench")
    if on_path and Path(on_path).resolve() == started.resolve():
        return "lanternbench"
    path = started.absolute()  # not resolved: a virtual environment may be a link
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return str(path)


def print_json(value: object) -> None:
    """Print one JSON document without NaN and control characters; objects have a version."""
    document = versioned(value) if isinstance(value, dict) else plain(value)
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    print(re.sub("[\x7f-\x9f]", lambda sign: f"\\u{ord(sign[0]):04x}", text))


def record(path: Path, summary: "Summary") -> dict[str, object]:
    """Return a run as JSON: rows have figures with intervals, and their values by name."""
    rows = []
    for row in summary.rows:
        values = {name: figure.value for name, figure in row.figures.items()}
        rows.append(vars(row) | values)
    return {"run": str(path), **vars(summary), "rows": rows}


def stdout() -> Console:
    """Return a console for tables: as wide as the terminal, and 140 columns in a file or pipe."""
    return Console(width=None if sys.stdout.isatty() else 140)


def print_table(rows: "Sequence[Row]", view: "View | None" = None) -> None:
    """Print the compact table, or the columns of a view: as many as fit the terminal, all in a
    file.
    """
    from lanternbench.report.load import ReportRow, View
    from lanternbench.report.tables import terminal_table

    shown = [ReportRow(**vars(row)) for row in rows]
    console = stdout()
    console.print(terminal_table(shown, console.width, view or View()))


def print_notes(notes: Iterable[object], bullet: str = "· ") -> None:
    """Print one unwrapped line per note on stderr: a note may contain a command to copy."""
    console = Console(stderr=True)
    for note in notes:
        text = bullet + one_line(str(note), LONGEST)
        console.print(
            text, style="dim" if bullet else None, highlight=False, markup=False, soft_wrap=True
        )


def table_of(
    titles: Sequence[str],
    rows: Iterable[Iterable[object]],
    left: Sequence[str] = ("method",),
    whole: Sequence[str] = (),
    widths: Mapping[str, int] = {},
) -> Table:
    """Return a table of texts.

    Columns titled ``left`` are left-aligned, and those titled ``whole`` do not wrap.  ``widths``:
    the maximum width of columns.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in titles:
        table.add_column(
            Text(title),
            justify="left" if title in left else "right",
            no_wrap=title in whole,
            overflow="fold",
            max_width=widths.get(title),
        )
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def print_cells(
    titles: Sequence[str], rows: Iterable[Iterable[object]], left: Sequence[str] = ("method",)
) -> None:
    """Print a ``table_of`` these cells."""
    stdout().print(table_of(titles, rows, left))


def print_rows(rows: Sequence[Mapping[str, object]], as_json: bool, columns: str) -> None:
    """Print rows as JSON, or as a table of these columns."""
    if as_json:
        print_json(rows)
        return
    names = columns.split()
    cells = ([row[name] for name in names] for row in rows)
    stdout().print(table_of(names, cells, left=names, whole=names[:1]))


def print_page(title: str, about: dict[str, str]) -> None:
    """Print a page of 80 columns: a title, and texts next to their names."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in about.items():
        table.add_row(Text(name), _cell(text))
    console = Console(width=PAGE, highlight=False)
    console.print(Text(one_line(title)))
    console.print(table)


def _cell(value: object) -> Text:
    """Return a table cell.  Text from a file is never read as markup or control characters."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("–")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, dict):
        value = ", ".join(f"{k}={v}" for k, v in value.items())
    return Text(one_line(str(value), LONGEST))


class Bars:
    """A bar for all pieces, and one for the tokens of a slow image."""

    def __init__(self, bar: Progress, title: str):
        self.bar = bar
        self.task = bar.add_task(one_line(title), total=None)
        self.tokens = bar.add_task("tokens", total=None, visible=False)
        self.next = time.monotonic() + LONG
        self.done = 0
        self.of = 0

    def show(self, done: int, of: int, what: str) -> None:
        """Show that ``done`` of ``of`` pieces (0: unknown) are finished.

        ``what``: the current piece or the last one.
        """
        self.done = done
        self.of = of
        self.bar.update(self.task, completed=done, total=of or None, description=one_line(what))
        self.bar.reset(self.tokens, visible=False)
        self.next = time.monotonic() + LONG

    def step(self, tokens: int, of: int) -> None:
        """Show that ``tokens`` of ``of`` tokens of the current image are decoded."""
        if time.monotonic() > self.next:
            self.next = time.monotonic() + REFRESH
            self.bar.update(self.tokens, completed=tokens, total=of, visible=True)


class Lines:
    """A line per finished piece, and one with an estimate after a silence; methods as in ``Bars``.

    ``each``: whether finished pieces get a line.
    """

    def __init__(self, title: str, each: bool = True):
        self.what = title
        self.each = each
        self.done = 0
        self.of = 0
        self.tokens = (0, 0)
        self.started = time.monotonic()
        self.counted_from = (self.started, 0)  # start of this count, and pieces done by then
        self.next = self.started + FIRST
        self._closed = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, daemon=True).start()

    def show(self, done: int, of: int, what: str) -> None:
        with self._lock:
            finished = done > self.done and self.each
            if finished and of:
                self._print(f"[{done}/{of}] {what}")
            if finished or what != self.what:
                self.started = time.monotonic()
                self.tokens = (0, 0)
            if of != self.of or done < self.done or (what != self.what and not self.each):
                self.counted_from = (time.monotonic(), done)
            self.done = done
            self.of = of
            self.what = what

    def step(self, tokens: int, of: int) -> None:
        self.tokens = (tokens, of)

    def close(self) -> None:
        self._closed.set()

    def _beat(self) -> None:
        while not self._closed.wait(FIRST / 10):
            with self._lock:
                if time.monotonic() >= self.next:
                    self._print(self._state())

    def _state(self) -> str:
        """Return the current piece, the seconds since it began, and the time that is left."""
        decoded, tokens = self.tokens
        now = time.monotonic()
        text = self.what
        if tokens:
            text += f", {decoded} of {tokens} tokens"
        text += f": {now - self.started:.0f} s so far"
        since, first = self.counted_from
        if not self.of or self.done <= first:
            return text
        left_s = (now - since) * (self.of - self.done) / (self.done - first)
        return f"{text}, {self.done}/{self.of}, about {timedelta(seconds=round(left_s))} left"

    def _print(self, line: str) -> None:
        self.next = time.monotonic() + SILENCE
        print(one_line(line, LONGEST), file=sys.stderr, flush=True)


@contextmanager
def display(title: str, bars: bool = True, each: bool = True) -> Iterator[Bars | Lines]:
    """Show progress on stderr: bars in a terminal, else lines.

    ``each``: whether finished pieces get a line.
    """
    console = Console(stderr=True)
    if bars and console.is_terminal and not console.is_dumb_terminal:
        with progress_bar(console) as bar:
            yield Bars(bar, title)
    else:
        with closing(Lines(title, each)) as lines:
            yield lines


def progress_bar(console: Console) -> Progress:
    """Return bars with a description and figures, one per line; figures are never cut."""
    width = max(20, console.width - FIGURES)
    return Progress(
        TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, max_width=width)
        ),
        BarColumn(BAR),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
