"""What commands print: JSON for scripts, tables and notes for people; progress as bars, or lines
without a terminal.
"""

import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from rich.table import Table
from rich.text import Text

from lanternbench.utils.json_values import plain, versioned
from lanternbench.utils.text import duration, one_line, pace, shortened

if TYPE_CHECKING:
    from lanternbench.measure.summary import Row, Summary
    from lanternbench.report.columns import Column

PAGE = 80  # columns
LONGEST = 4000  # characters of a cell or a line
SILENCE = 30.0  # maximum seconds between two lines
FIRST = 10.0  # maximum seconds before the first line
BAR, FIGURES = 12, 45  # columns of a bar, and of a bar with its figures
LONG = 2.0  # seconds after which an image gets a separate bar
# minimum seconds between updates of that bar, as updates take time from measured steps
REFRESH = 0.2


def program() -> str:
    """``lanternbench`` where the shell finds this installation by name, else its path or ``python
    -m``.
    """
    started = Path(sys.argv[0])
    if started.name != "lanternbench" or not os.access(started, os.X_OK):
        return "python -m lanternbench" if started.name == "__main__.py" else "lanternbench"
    on_path = shutil.which("lanternbench")
    if on_path and Path(on_path).resolve() == started.resolve():
        return "lanternbench"
    path = started.absolute()  # not resolved: a virtual environment may be a link
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def print_json(value: Any) -> None:
    """One JSON document on stdout, NaN as null, without control characters; an object has a
    version.
    """
    document = versioned(value) if isinstance(value, dict) else plain(value)
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    print(re.sub("[\x7f-\x9f]", lambda sign: f"\\u{ord(sign[0]):04x}", text))


def record(path: Path, summary: "Summary") -> dict[str, Any]:
    """A run as JSON for scripts: each row has its figures as intervals, and the plain values by
    name.
    """
    rows = [
        vars(row) | {name: figure.value for name, figure in row.figures.items()}
        for row in summary.rows
    ]
    return {"run": str(path), **vars(summary), "rows": rows}


def stdout() -> Console:
    """For tables: as wide as the terminal, and 140 columns into a file or pipe."""
    return Console(width=None if sys.stdout.isatty() else 140)


def print_table(rows: "Sequence[Row]", columns: "Sequence[Column] | None" = None) -> None:
    """The compact table, or these columns: as many as fit a terminal; all of them into a file or
    pipe.
    """
    from lanternbench.report.tables import terminal_table

    console = stdout()
    console.print(terminal_table(rows, console.width, columns))


def print_notes(notes: Iterable[Any], console: Console | None = None, bullet: str = "· ") -> None:
    """One unwrapped line per note, on stderr by default: a note may hold a command to copy."""
    console = console or Console(stderr=True)
    for note in notes:
        text = bullet + one_line(str(note), LONGEST)
        console.print(
            text, style="dim" if bullet else None, highlight=False, markup=False, soft_wrap=True
        )


def table_of(
    titles: Sequence[str],
    rows: Iterable[Iterable[Any]],
    left: Sequence[str] = (),
    whole: Sequence[str] = (),
    widths: Mapping[str, int] = {},
    **style: Any,
) -> Table:
    """A table of texts; columns titled ``left`` are left-aligned, ``whole`` ones do not wrap,
    ``widths``: at most.
    """
    table = Table(box=box.SIMPLE_HEAD, **style)
    for title in titles:
        shape: Any = {"justify": "left" if title in left else "right", "no_wrap": title in whole}
        table.add_column(Text(title), overflow="fold", max_width=widths.get(title), **shape)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else _cell(cell) for cell in row))
    return table


def print_cells(
    titles: Sequence[str],
    rows: Iterable[Iterable[Any]],
    left: Sequence[str] = ("method",),
    **style: Any,
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


class Bars:
    """A bar for all pieces, and one for the tokens of a slow image."""

    def __init__(self, bar: Progress, title: str):
        # of the description, so that no figure is cut
        self.width = max(20, bar.console.width - FIGURES)
        self.bar, self.task = bar, bar.add_task(shortened(title, self.width), total=None)
        self.tokens = bar.add_task("tokens", total=None, visible=False)
        self.next, self.done, self.of = time.monotonic() + LONG, 0, 0

    def show(self, done: int, of: int, what: str) -> None:
        """``done`` of ``of`` pieces (0: unknown) are finished; ``what`` is the current or the last
        piece.
        """
        self.done, self.of = done, of
        self.bar.update(
            self.task, completed=done, total=of or None, description=shortened(what, self.width)
        )
        self.bar.reset(self.tokens, visible=False)
        self.next = time.monotonic() + LONG

    def step(self, tokens: int, of: int) -> None:
        """``tokens`` of ``of`` tokens of the current image are decoded."""
        if time.monotonic() > self.next:
            self.next = time.monotonic() + REFRESH
            self.bar.update(self.tokens, completed=tokens, total=of, visible=True)


class Lines:
    """A line per finished piece, and one with rate and estimate after a silence; methods as in
    ``Bars``.
    """

    def __init__(self, title: str, each: bool = True):
        self.done, self.of, self.what, self.each = 0, 0, title, each
        self.tokens = (0, 0)
        self.started = time.monotonic()
        # start of the current count of pieces, and the pieces done by then
        self.stage = self.started, 0
        self.next = self.started + FIRST
        self._closed = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, daemon=True).start()

    def show(self, done: int, of: int, what: str) -> None:
        with self._lock:
            if done > self.done and of and self.each:
                self._print(f"[{done}/{of}] {what}")
            if what != self.what or (done > self.done and self.each):
                self.started, self.tokens = time.monotonic(), (0, 0)
            if of != self.of or done < self.done or (not self.each and what != self.what):
                self.stage = time.monotonic(), done
            self.done, self.of, self.what = done, of, what

    def step(self, tokens: int, of: int) -> None:
        self.tokens = tokens, of

    def close(self) -> None:
        self._closed.set()

    def _beat(self) -> None:
        while not self._closed.wait(FIRST / 10):
            with self._lock:
                time_s = time.monotonic()
                if time_s >= self.next:
                    decoded = ", {} of {} tokens".format(*self.tokens) if self.tokens[1] else ""
                    self._print(
                        f"{self.what}{decoded}: {time_s - self.started:.0f} s so far{self._estimate(time_s)}"
                    )

    def _estimate(self, time_s: float) -> str:
        """Pieces done, their rate, and the time left."""
        since, first = self.stage
        if not self.of or self.done <= first:
            return ""
        rate = (self.done - first) / max(time_s - since, 1e-9)
        return f", {self.done}/{self.of}, {pace(rate)}, about {duration((self.of - self.done) / rate)} left"

    def _print(self, line: str) -> None:
        self.next = time.monotonic() + SILENCE
        print(one_line(line, LONGEST), file=sys.stderr, flush=True)


@contextmanager
def display(title: str, bars: bool = True, each: bool = True) -> Iterator[Bars | Lines]:
    """Bars on stderr if it is a terminal, else lines; without ``each``, none for a finished piece."""
    console = Console(stderr=True)
    if bars and console.is_terminal and not console.is_dumb_terminal:
        with progress_bar(console) as bar:
            yield Bars(bar, title)
    else:
        with closing(Lines(title, each)) as lines:
            yield lines


def progress_bar(console: Console) -> Progress:
    """Bars with description and figures, one per line."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(BAR),
        MofNCompleteColumn(),
    )
    return Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True
    )
