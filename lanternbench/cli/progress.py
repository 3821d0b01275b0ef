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

SILENCE = 30.0  # seconds after which a line says that the work goes on
FIRST = 10.0  # seconds after which one says so, where none was said before
BAR, FIGURES = 12, 45  # columns of a bar, and of it with the figures beside it
LONG = 2.0  # seconds after which an image gets a bar of its own
REFRESH = 0.2  # seconds between updates of that bar: a step's time is measured, so it must not pay for more


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
    """Description, bar and figures in a line each."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(BAR), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)


class Bars:
    """A bar for all pieces, and one for the tokens of an image that takes long."""

    def __init__(self, bar: Progress, title: str):
        self.width = max(20, bar.console.width - FIGURES)  # of the description, so that no figure is cut
        self.bar, self.task = bar, bar.add_task(shortened(title, self.width), total=None)
        self.tokens = bar.add_task("tokens", total=None, visible=False)
        self.next = time.monotonic() + LONG

    def show(self, done: int, of: int, what: str) -> None:
        """``done`` of so many pieces are finished (``of`` 0: unknown); ``what`` is being done, or was just done."""
        self.bar.update(self.task, completed=done, total=of or None, description=shortened(what, self.width))
        self.bar.reset(self.tokens, visible=False)
        self.next = time.monotonic() + LONG

    def step(self, tokens: int, of: int) -> None:
        """So many tokens of the current image are decoded."""
        if time.monotonic() > self.next:
            self.next = time.monotonic() + REFRESH
            self.bar.update(self.tokens, completed=tokens, total=of, visible=True)


class Lines:
    """A line per finished piece, and one with rate and estimate whenever nothing was said for a while: see ``Bars``."""

    def __init__(self, title: str, each: bool = True):
        self.done, self.of, self.what, self.each = 0, 0, title, each
        self.tokens = (0, 0)
        self.begun = time.monotonic()
        self.stage = self.begun, 0  # when the pieces that are counted now began, and how many were done then
        self.next = self.begun + FIRST
        self._closed = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, daemon=True).start()

    def show(self, done: int, of: int, what: str) -> None:
        with self._lock:
            if done > self.done and of and self.each:
                self._print(f"[{done}/{of}] {what}")
            if what != self.what or (done > self.done and self.each):
                self.begun, self.tokens = time.monotonic(), (0, 0)
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
                now = time.monotonic()
                if now >= self.next:
                    decoded = ", {} of {} tokens".format(*self.tokens) if self.tokens[1] else ""
                    self._print(f"{self.what}{decoded}: {now - self.begun:.0f} s so far{self._estimate(now)}")

    def _estimate(self, now: float) -> str:
        """How many pieces are done, at which rate, and how long the others take."""
        since, first = self.stage
        if not self.of or self.done <= first:
            return ""
        rate = (self.done - first) / max(now - since, 1e-9)
        return f", {self.done}/{self.of}, {pace(rate)}, about {duration((self.of - self.done) / rate)} left"

    def _print(self, line: str) -> None:
        self.next = time.monotonic() + SILENCE
        print(one_line(line, 4000), file=sys.stderr, flush=True)
