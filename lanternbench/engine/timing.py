"""Where the time of a decode goes: each tick books the time since the last one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

OFF_THE_CLOCK = "records"  # phase of work that is no part of a method, such as keeping distributions for analysis


class Clock:
    """Phases: ``draft`` and ``verify`` are forwards of drafter and target, the rest is overhead.

    On a CPU ticks read the host's clock.  On a GPU each tick records an event, and the events are read once at the
    end, so that timing adds no synchronisation to the loop.
    """

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.spent: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event]] = []
        self._last = 0.0
        self._paused = False

    def start(self) -> None:
        """Reset the clock and start it."""
        self.spent.clear()
        if self.cuda:
            torch.cuda.synchronize()
            self._events.clear()
            self._record("")
        self._begin = self._last = perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore ticks inside: work that is being recorded runs later."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    @contextmanager
    def aside(self, phase: str = "other") -> Iterator[None]:
        """Take the work inside off the clock; the time before it is booked on ``phase``."""
        self.tick(phase)
        try:
            yield
        finally:
            self.tick(OFF_THE_CLOCK)

    def tick(self, phase: str) -> None:
        if self._paused:
            return
        if self.cuda:
            self._record(phase)
        else:
            now = perf_counter()
            self.spent[phase] += now - self._last
            self._last = now

    def _record(self, phase: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((phase, event))

    def stop(self) -> float:
        """Seconds since ``start``, without work off the clock; fills ``spent``."""
        if self.cuda:
            torch.cuda.synchronize()
            for (_, before), (phase, after) in zip(self._events, self._events[1:], strict=False):
                self.spent[phase] += before.elapsed_time(after) / 1e3
        return perf_counter() - self._begin - self.spent.pop(OFF_THE_CLOCK, 0.0)
