"""The progress of a long command: bars in a terminal, lines elsewhere, at least one every half minute."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lanternbench.utils.text import duration, one_line, pace, shortened

SILENCE = 30.0  # maximum seconds between two lines
FIRST = 10.0  # maximum seconds before the first line
BAR, FIGURES = 12, 45  # columns of a bar, and of a bar with its figures
LONG = 2.0  # seconds after which an image gets a separate bar
REFRESH = 0.2  # minimum seconds between updates of that bar, as updates take time from measured steps


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
    columns = (TextColumn("{task.description}", markup=False), BarColumn(BAR), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)


class Bars:
    """A bar for all pieces, and one for the tokens of a slow image."""

    def __init__(self, bar: Progress, title: str):
        self.width = max(20, bar.console.width - FIGURES)  # of the description, so that no figure is cut
        self.bar, self.task = bar, bar.add_task(shortened(title, self.width), total=None)
        self.tokens = bar.add_task("tokens", total=None, visible=False)
        self.next = time.monotonic() + LONG

    def show(self, done: int, of: int, what: str) -> None:
        """``done`` of ``of`` pieces (0: unknown) are finished; ``what`` is the current or the last piece."""
        self.bar.update(self.task, completed=done, total=of or None, description=shortened(what, self.width))
        self.bar.reset(self.tokens, visible=False)
        self.next = time.monotonic() + LONG

    def step(self, tokens: int, of: int) -> None:
        """``tokens`` of ``of`` tokens of the current image are decoded."""
        if time.monotonic() > self.next:
            self.next = time.monotonic() + REFRESH
            self.bar.update(self.tokens, completed=tokens, total=of, visible=True)


class Lines:
    """A line per finished piece, and one with rate and estimate after a silence; methods as in ``Bars``."""

    def __init__(self, title: str, each: bool = True):
        self.done, self.of, self.what, self.each = 0, 0, title, each
        self.tokens = (0, 0)
        self.started = time.monotonic()
        self.stage = self.started, 0  # start of the current count of pieces, and the pieces done by then
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
                    self._print(f"{self.what}{decoded}: {time_s - self.started:.0f} s so far{self._estimate(time_s)}")

    def _estimate(self, time_s: float) -> str:
        """Pieces done, their rate, and the time left."""
        since, first = self.stage
        if not self.of or self.done <= first:
            return ""
        rate = (self.done - first) / max(time_s - since, 1e-9)
        return f", {self.done}/{self.of}, {pace(rate)}, about {duration((self.of - self.done) / rate)} left"

    def _print(self, line: str) -> None:
        self.next = time.monotonic() + SILENCE
        print(one_line(line, 4000), file=sys.stderr, flush=True)
