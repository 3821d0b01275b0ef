"""The time of a decode, by phase: each tick books the time since the last one."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter, process_time
from typing import Any

import torch

# phase of work that is no part of a method, such as keeping distributions for analysis
OFF_THE_CLOCK = "records"


# a look at the clock: the phase that ends, the shares of other phases in its time (see
# ``Clock.tick``), and the host's time on a CPU or an event on a GPU
Moment = tuple[str, Mapping[str, float] | None, Any]


class Clock:
    """Phases: ``draft`` and ``verify`` are forward passes of drafter and target, the rest is
    overhead.

    Work off the clock counts neither in a phase nor in a step nor in the CPU time.  Moments are
    read at the end, so that timing adds no synchronisation to the loop.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.cuda = device.type == "cuda"
        self.spent: dict[str, float] = defaultdict(float)  # seconds by phase
        self.step_s: list[float] = []  # seconds of every step; their sum is that of all phases
        self.cpu_s = 0.0  # CPU time of this process, all threads together
        self._moments: list[Moment] = []
        self._ends: set[int] = set()  # how many moments there were at the end of each step
        self._cpu = 0.0
        self._marks: list[Moment] | None = None  # while work is recorded

    def start(self) -> None:
        """Reset the clock and start it."""
        self.spent.clear()
        self._moments.clear()
        self._ends.clear()
        self._wait()
        self._cpu = process_time()
        self.tick("")

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    @contextmanager
    def recording(self, marks: list[Moment]) -> Iterator[None]:
        """Collect the ticks inside as ``marks``: work that is being recorded runs later.

        On a GPU they are events of the graph, which each replay sets anew.
        """
        marks.clear()
        self._marks = marks
        self.tick("")
        try:
            yield
            if len(marks) > 1:
                self.tick("other")  # after the last forward pass
        finally:
            self._marks = None

    def shares(self, marks: list[Moment]) -> dict[str, float]:
        """Return each phase's share of the time between the first and the last mark."""
        self._wait()
        seconds: dict[str, float] = defaultdict(float)
        for before, after in pairwise(marks):
            phase, _, _ = after
            seconds[phase] += self._seconds(before, after)
        whole = sum(seconds.values())
        return {phase: part / whole for phase, part in seconds.items()} if whole > 0 else {}

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

    def tick(self, phase: str, shares: Mapping[str, float] | None = None) -> None:
        """Book the time since the last tick on ``phase``, or on the phases in ``shares``."""
        recording = self._marks is not None
        at = self._event(in_graph=recording) if self.cuda else perf_counter()
        moments = self._moments if self._marks is None else self._marks
        moments.append((phase, shares, at))

    def _event(self, in_graph: bool) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True, external=in_graph)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _seconds(self, before: Moment, after: Moment) -> float:
        start = before[-1]
        end = after[-1]
        if self.cuda:
            return float(start.elapsed_time(end)) / 1e3
        return float(end - start)

    def end_step(self) -> None:
        self.tick("other")
        self._ends.add(len(self._moments))

    def stop(self) -> float:
        """Return the seconds since ``start``, without work off the clock.

        Time after the last step counts as part of that step.
        """
        self.tick("other")
        self.cpu_s = process_time() - self._cpu
        self._wait()
        self.step_s = []
        step = 0.0
        for count, (before, after) in enumerate(pairwise(self._moments), 2):
            phase, shares, _ = after
            seconds = self._seconds(before, after)
            for name, share in (shares or {phase: 1.0}).items():
                self.spent[name] += share * seconds
            if phase != OFF_THE_CLOCK:
                step += seconds
            if count in self._ends:
                self.step_s.append(step)
                step = 0.0
        self.spent.pop(OFF_THE_CLOCK, None)
        last = self.step_s.pop() if self.step_s else 0.0
        self.step_s.append(last + step)
        return sum(self.step_s)
