"""Statistics of one method's steps: how long they took, how many tokens they committed, and where."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanternbench.measure.samples import Sample

PARTS = 16  # of an image, in raster order
SLOW = 2.0  # a step of more than so many medians was held up


def by_position(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(tokens, steps) that begin in each of ``PARTS`` equal stretches of an image, from its steps' accepted lengths."""
    ends = lengths.cumsum()
    whole = ends[-1] if len(ends) else 0
    part = np.minimum((ends - lengths) * PARTS // max(whole, 1), PARTS - 1)
    return np.bincount(part, lengths, PARTS).astype(np.int64), np.bincount(part, minlength=PARTS)


def robust(step_s: Sequence[float], cpu_s: float | None = None, threads: int | None = None) -> tuple[float, int]:
    """Seconds of a decode that other programs disturb least, and how many steps took more than ``SLOW`` medians.

    With one CPU thread its CPU seconds ``cpu_s``, which do not count while another program has the core; else the
    median step (which busy programs make longer, too) times the number of steps.
    """
    middle = median(step_s)
    seconds = cpu_s if cpu_s and threads == 1 else middle * len(step_s)
    return seconds, sum(step > SLOW * middle for step in step_s)


def joint_rates(histogram: Sequence[int]) -> list[float]:
    """vLLM's rate by position, P(at least i drafts accepted): histogram of steps that committed 0, 1, 2, … tokens."""
    at_least = list(accumulate(reversed(histogram)))[::-1]  # steps that committed so many tokens or more
    return [n / at_least[0] for n in at_least[2:] if n]


def conditional_rates(histogram: Sequence[int]) -> list[float]:
    """P(drafted token i accepted | all before it were), i = 1, 2, …: NVIDIA's conditional acceptance rate."""
    joint = joint_rates(histogram)
    return [rate / before for before, rate in zip([1.0, *joint], joint)]


def acceptance(histogram: Sequence[int]) -> dict[str, Any]:
    """Acceptance by position as vLLM and AIPerf name it, empty without any; the mean counts the bonus token."""
    joint = joint_rates(histogram)
    return {} if not joint else {
        "mean_acceptance_length": 1.0 + sum(joint),
        "per_position": joint,
        "conditional_per_position": conditional_rates(histogram),
        "acceptance_histogram": list(histogram[1:]),
    }  # fmt: skip


@dataclass
class Steps:
    """The steps of many samples of one method; the prefill, which drafts nothing, is left out of accepted lengths."""

    seconds: array = field(default_factory=lambda: array("f"))  # of every step of timed samples
    latencies: array = field(default_factory=lambda: array("d"))  # of every timed sample
    lengths: Counter[int] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)  # seconds
    _places: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, PARTS), np.int64))  # tokens, steps of each

    def add(self, sample: Sample) -> None:
        """One more sample."""
        self.lengths.update(sample.accept_lengths[1:])
        self._places += by_position(np.array(sample.accept_lengths[1:], np.int64))
        for name, seconds in (sample.phases or {}).items():
            self.phases[name.removesuffix("_s")] += seconds  # type: ignore[assignment]
        if sample.timed:
            self.latencies.append(sample.decode_s)
            self.seconds.extend(sample.step_s or [])

    def percentiles(self) -> dict[str, float]:
        """p50, p95, p99 of step times and p50, p95 of latencies per image, in seconds, where known."""
        values: dict[str, float] = {}
        for name, times, ranks in (("step", self.seconds, (50, 95, 99)), ("latency", self.latencies, (50, 95))):
            if len(times):
                at = np.percentile(np.array(times, np.float64), ranks, overwrite_input=True)  # of a copy of our own
                values |= {f"{name}_p{rank}_s": float(value) for rank, value in zip(ranks, at)}
        return values

    def histogram(self) -> list[int]:
        """How many steps committed 0, 1, 2, … tokens."""
        return [self.lengths[n] for n in range(max(self.lengths, default=-1) + 1)]

    def accept_len_by_position(self) -> list[float | None]:
        """τ of the steps that begin in each sixteenth of the image, in raster order; None where none begins."""
        return [tokens / steps if steps else None for tokens, steps in zip(*self._places.tolist())]

    def phase_shares(self) -> dict[str, float]:
        """The share of the decode in each phase."""
        whole = sum(self.phases.values())
        return {name: seconds / whole for name, seconds in self.phases.items()} if whole else {}
