"""One clock for all figures of time: phases, steps and CPU time leave out the same work."""

from __future__ import annotations

import pytest
import torch

from lanternbench.engine import decode as engine
from lanternbench.engine import timing
from lanternbench.engine.timing import Clock
from lanternbench.engine.trace import Trace
from lanternbench.methods.build import build
from lanternbench.methods.method import method


@pytest.fixture
def time(monkeypatch):
    """A clock that work advances by hand."""

    class Time:
        wall = cpu = 0.0

        def work(self, seconds: float) -> None:
            self.wall += seconds
            self.cpu += seconds / 2

    now = Time()
    monkeypatch.setattr(timing, "perf_counter", lambda: now.wall)
    monkeypatch.setattr(timing, "process_time", lambda: now.cpu)
    return now


def test_work_off_the_clock_is_in_no_phase_no_step_and_no_cpu_time(time):
    clock = Clock(torch.device("cpu"))
    clock.start()
    for _ in range(3):
        time.work(1.0)
        clock.tick("draft")
        time.work(0.5)
        with clock.aside("commit"):
            time.work(100.0)
        time.work(0.25)
        clock.end_step()
    time.work(2.0)  # after the last step
    assert clock.stop() == sum(clock.step_s) == sum(clock.spent.values()) == 7.25
    assert clock.step_s == [1.75, 1.75, 3.75]
    assert dict(clock.spent) == {"draft": 3.0, "commit": 1.5, "other": 2.75}
    assert clock.cpu_s == 7.25 / 2


def test_a_clock_started_again_forgets_what_it_measured(time):
    clock = Clock(torch.device("cpu"))
    clock.start()
    time.work(1.0)
    clock.end_step()
    clock.stop()
    clock.start()
    time.work(3.0)
    assert (clock.stop(), clock.step_s, clock.cpu_s) == (3.0, [3.0], 1.5)


@pytest.mark.parametrize("name", ["ar", "eagle-1"])
def test_keeping_distributions_does_not_lengthen_a_step(shallow, name, time, monkeypatch):
    honest = Trace.record

    def slow(self, *given):
        honest(self, *given)
        time.work(10.0)

    monkeypatch.setattr(Trace, "record", slow)
    begun = time.wall
    made = engine.generate(build(shallow, method(name)), ["a red star"], trace=True, max_steps=4)[
        0
    ]
    assert time.wall - begun == 40.0
    assert made.decode_s == sum(made.step_s) == made.cpu_s == sum(made.phases.values()) == 0.0
    assert len(made.step_s) == made.steps == 4
