"""Where the time of a decode goes: each tick books the time since the last one."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter, process_time
from typing import Any

import torch

# phase of work that is no part of a method, such as keeping distributions for analysis
OFF_THE_CLOCK = "records"


class Clock:
    """Phases: ``draft`` and ``verify`` are forwards of drafter and target, the rest is overhead.

    What is off the clock counts in no phase, no step, and not in the CPU time.  Moments, the
    host's time on a CPU and events on a GPU, are read at the end, so that timing adds no
    synchronisation to the loop.
    """

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.spent: dict[str, float] = defaultdict(float)  # seconds by phase
        self.step_s: list[float] = []  # seconds of every step; their sum is that of all phases
        self.cpu_s = 0.0  # CPU time of this process, all threads together
        self._moments: list[tuple[str, Any]] = []  # the phase that ends, and when
        self._ends: set[int] = set()  # how many moments there were at the end of each step
        self._cpu, self._paused = 0.0, False

    def start(self) -> None:
        """Reset the clock and start it."""
        self.spent.clear()
        self._moments.clear()
        self._ends.clear()
        if self.cuda:
            torch.cuda.synchronize()
        self._cpu = process_time()
        self.tick("")

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
        if not self._paused:
            self._moments.append((phase, self._event() if self.cuda else perf_counter()))

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end_step(self) -> None:
        self.tick("other")
        self._ends.add(len(self._moments))

    def stop(self) -> float:
        """Seconds since ``start``, without work off the clock; what follows the last step counts
        as its part.
        """
        self.tick("other")
        self.cpu_s = process_time() - self._cpu
        if self.cuda:
            torch.cuda.synchronize()
        self.step_s, step = [], 0.0
        for count, ((_, before), (phase, after)) in enumerate(pairwise(self._moments), 2):
            seconds = before.elapsed_time(after) / 1e3 if self.cuda else after - before
            self.spent[phase] += seconds
            step += seconds if phase != OFF_THE_CLOCK else 0.0
            if count in self._ends:
                self.step_s.append(step)
                step = 0.0
        self.spent.pop(OFF_THE_CLOCK, None)
        self.step_s.append((self.step_s.pop() if self.step_s else 0.0) + step)
        return sum(self.step_s)
