"""What the steps of one method were like: how long they took, how many tokens they committed, and where."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add
from statistics import median

import numpy as np

from lanternbench.analysis.samples import Sample

PARTS = 16  # of an image, in raster order
SLOW = 2.0  # a step of more than so many medians was held up


def by_position(accept_lengths: Sequence[int], parts: int = PARTS) -> tuple[list[int], list[int]]:
    """(tokens, steps) that begin in each of ``parts`` equal stretches of one image's tokens: ``parts`` of each.

    accept_lengths: of every step; they sum to the image's tokens.
    """
    tokens, steps, begin, whole = [0] * parts, [0] * parts, 0, sum(accept_lengths)
    for length in accept_lengths:
        part = min(begin * parts // whole, parts - 1) if whole else 0
        tokens[part] += length
        steps[part] += 1
        begin += length
    return tokens, steps


def robust_latency(step_s: Sequence[float]) -> float:
    """Seconds that all steps would take if each took the median: what a step that was held up cannot change."""
    return median(step_s) * len(step_s)


def slow_steps(step_s: Sequence[float]) -> int:
    """How many steps took more than ``SLOW`` medians."""
    limit = SLOW * median(step_s)
    return sum(seconds > limit for seconds in step_s)


@dataclass
class Steps:
    """The steps of many samples of one method; the prefill, which drafts nothing, is left out of accepted lengths."""

    seconds: array = field(default_factory=lambda: array("f"))  # of every step of timed samples
    latencies: array = field(default_factory=lambda: array("d"))  # of every timed sample
    lengths: Counter[int] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)  # seconds
    _places: list[list[int]] = field(default_factory=lambda: [[0] * PARTS, [0] * PARTS])  # tokens and steps of each

    def add(self, sample: Sample) -> None:
        """One more sample."""
        self.lengths.update(sample.accept_lengths[1:])
        for sums, more in zip(self._places, by_position(sample.accept_lengths[1:])):
            sums[:] = map(add, sums, more)
        for name, seconds in (sample.phases or {}).items():
            self.phases[name.removesuffix("_s")] += seconds  # type: ignore[assignment]
        if sample.timed:
            self.latencies.append(sample.decode_s)
            self.seconds.extend(sample.step_s or [])

    def percentiles(self) -> dict[str, float]:
        """p50, p95, p99 of step times and p50, p95 of latencies per image, in seconds, where known."""
        found: dict[str, float] = {}
        for name, values, ranks in (("step", self.seconds, (50, 95, 99)), ("latency", self.latencies, (50, 95))):
            if len(values):
                at = np.percentile(np.asarray(values, np.float64), ranks)
                found |= {f"{name}_p{rank}_s": float(value) for rank, value in zip(ranks, at)}
        return found

    def histogram(self) -> list[int]:
        """How many steps committed 0, 1, 2, … tokens."""
        return [self.lengths[n] for n in range(max(self.lengths, default=-1) + 1)]

    def accept_len_by_position(self) -> list[float | None]:
        """τ of the steps that begin in each sixteenth of the image, in raster order; None where none begins."""
        return [tokens / steps if steps else None for tokens, steps in zip(*self._places)]

    def phase_shares(self) -> dict[str, float]:
        """The share of the decode in each phase."""
        whole = sum(self.phases.values())
        return {name: seconds / whole for name, seconds in self.phases.items()} if whole else {}
