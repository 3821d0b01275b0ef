"""What the steps of one method were like: how long they took, how many tokens they committed, and where."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from lanternbench.analysis.statistics import Floats
from lanternbench.experiment.samples import Sample

PARTS = 16  # of an image, in raster order
SLOW = 2.0  # a step of more than so many medians was held up


def by_position(accept_lengths: ArrayLike, parts: int = PARTS) -> tuple[Floats, Floats]:
    """(tokens, steps) that begin in each of ``parts`` equal stretches of one image's tokens: [parts] each.

    accept_lengths [steps] sums to the image's tokens.
    """
    lengths = np.asarray(accept_lengths, np.int64)
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    part = begins * parts // max(int(lengths.sum()), 1)
    tokens, steps = np.bincount(part, lengths, parts), np.bincount(part, minlength=parts)
    return tokens.astype(np.float64), steps.astype(np.float64)


def robust_latency(step_s: ArrayLike) -> float:
    """Seconds that all steps would take if each took the median: what a step that was held up cannot change."""
    seconds = np.asarray(step_s, np.float64)
    return float(np.median(seconds) * len(seconds))


def slow_steps(step_s: ArrayLike) -> int:
    """How many steps took more than ``SLOW`` medians."""
    seconds = np.asarray(step_s, np.float64)
    return int((seconds > SLOW * np.median(seconds)).sum())


@dataclass
class Steps:
    """The steps of many samples of one method; the prefill, which drafts nothing, is left out of accepted lengths."""

    seconds: array = field(default_factory=lambda: array("f"))  # of every step of timed samples
    latencies: array = field(default_factory=lambda: array("d"))  # of every timed sample
    lengths: Counter[int] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)  # seconds
    _tokens: Floats = field(default_factory=lambda: np.zeros(PARTS))
    _begun: Floats = field(default_factory=lambda: np.zeros(PARTS))

    def add(self, sample: Sample) -> None:
        """One more sample."""
        self.lengths.update(sample.accept_lengths[1:])
        if len(sample.accept_lengths) > 1:
            tokens, begun = by_position(sample.accept_lengths[1:])
            self._tokens, self._begun = self._tokens + tokens, self._begun + begun
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
        return [float(t / n) if n else None for t, n in zip(self._tokens, self._begun)]

    def phase_shares(self) -> dict[str, float]:
        """The share of the decode in each phase."""
        whole = sum(self.phases.values())
        return {name: seconds / whole for name, seconds in self.phases.items()} if whole else {}
