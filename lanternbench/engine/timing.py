"""Where the time of a decode goes: each tick books the time since the last one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, process_time

import torch

OFF_THE_CLOCK = "records"  # phase of work that is no part of a method, such as keeping distributions for analysis


class Clock:
    """Phases: ``draft`` and ``verify`` are forwards of drafter and target, the rest is overhead.

    One clock serves all figures: what is off it counts in no phase, no step, and not in the CPU time.  On a CPU ticks
    read the host's clock.  On a GPU each tick records an event, and the events are read once at the end, so that timing
    adds no synchronisation to the loop.
    """

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.spent: dict[str, float] = defaultdict(float)  # seconds by phase
        self.step_s: list[float] = []  # seconds of every step; their sum is that of all phases
        self.cpu_s = 0.0  # CPU time of this process, all threads together
        self._events: list[tuple[str, torch.cuda.Event]] = []
        self._ends: list[int] = []  # how many events there were at the end of each step
        self._last = self._step = self._cpu = 0.0
        self._paused = False

    def start(self) -> None:
        """Reset the clock and start it."""
        self.spent.clear()
        self.step_s, self._ends, self._step = [], [], 0.0
        if self.cuda:
            torch.cuda.synchronize()
            self._events.clear()
            self._record("")
        self._cpu = process_time()
        self._last = perf_counter()

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
        began = process_time()
        try:
            yield
        finally:
            self._cpu += process_time() - began
            self.tick(OFF_THE_CLOCK)

    def tick(self, phase: str) -> None:
        if self._paused:
            return
        if self.cuda:
            self._record(phase)
        else:
            now = perf_counter()
            self._book(phase, now - self._last)
            self._last = now

    def end_step(self) -> None:
        self.tick("other")
        if self.cuda:
            self._ends.append(len(self._events))
        else:
            self.step_s.append(self._step)
            self._step = 0.0

    def _record(self, phase: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((phase, event))

    def _book(self, phase: str, seconds: float) -> None:
        self.spent[phase] += seconds
        if phase != OFF_THE_CLOCK:
            self._step += seconds

    def stop(self) -> float:
        """Seconds since ``start``, without work off the clock; what follows the last step counts as its part."""
        self.tick("other")
        self.cpu_s = process_time() - self._cpu
        if self.cuda:
            torch.cuda.synchronize()
            pairs = zip(self._events, self._events[1:], strict=False)
            for count, ((_, before), (phase, after)) in enumerate(pairs, 2):
                self._book(phase, before.elapsed_time(after) / 1e3)
                if count in self._ends:
                    self.step_s.append(self._step)
                    self._step = 0.0
        self.spent.pop(OFF_THE_CLOCK, None)
        self.step_s.append((self.step_s.pop() if self.step_s else 0.0) + self._step)
        return sum(self.step_s)
