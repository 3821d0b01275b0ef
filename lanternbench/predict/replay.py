"""Measured accepted lengths and tree sizes as sequences of steps: stretched to a target's tokens, alone or batched."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lanternbench.costs.roofline import Values

Ints = NDArray[np.int64]


class Trace(NamedTuple):
    """The steps of one image after its prefill: [T] each."""

    committed: Ints  # tokens, the bonus token included
    nodes: Ints  # of the tree, the root included
    depths: Ints  # its levels

    @property
    def steps(self) -> int:
        return len(self.committed)

    @property
    def start(self) -> Ints:
        """Tokens before each step: the prefill gives the first."""
        return 1 + np.cumsum(self.committed) - self.committed

    @property
    def before(self) -> Ints:
        """Tokens that the step before committed."""
        return np.concatenate([[1], self.committed[:-1]])


class Steps(NamedTuple):
    """The steps of a batch: [T] each."""

    batch: Values  # prompts that are still decoded together
    nodes: Values
    depths: Values
    start: Values  # tokens of the most advanced prompt
    before: Values  # tokens that the last step committed


def stretched(committed: ArrayLike, nodes: ArrayLike, depths: ArrayLike, length: int) -> Trace:
    """A measured decode, repeated and cut to ``length`` tokens: the prefill's and those of the steps."""
    lengths = np.asarray(committed, np.int64)
    times = -(-(length - 1) // int(lengths.sum()))
    ends = np.cumsum(np.tile(lengths, times))
    steps = int(np.searchsorted(ends, length - 1)) + 1
    cut = Trace(*(np.tile(np.asarray(x, np.int64), times)[:steps] for x in (lengths, nodes, depths)))
    cut.committed[-1] -= ends[steps - 1] - (length - 1)
    return cut


def autoregressive(length: int) -> Trace:
    """One token a step."""
    ones = np.ones(length - 1, np.int64)
    return Trace(ones, ones, np.zeros_like(ones))


def batches(traces: Sequence[Trace], batch: int, keeps_shape: bool) -> list[Steps]:
    """The traces in batches of ``batch``, in order; fewer than a batch are repeated.

    A batch takes the steps of its slowest prompt.  Unless it ``keeps_shape``, as one that is recorded in CUDA graphs
    does, it goes on without finished prompts whenever at least half of it is finished.
    """
    if batch <= len(traces):
        whole = len(traces) // batch * batch
        return [_together(traces[i : i + batch], np.ones(batch), keeps_shape) for i in range(0, whole, batch)]
    counts = np.full(len(traces), batch // len(traces))
    counts[: batch % len(traces)] += 1
    return [_together(traces, counts, keeps_shape)]


def _together(traces: Sequence[Trace], counts: NDArray, keeps_shape: bool) -> Steps:
    longest = max(trace.steps for trace in traces)
    alive = sum(n * (np.arange(longest) < t.steps) for n, t in zip(counts, traces, strict=True))
    size = np.full(longest, float(counts.sum()))
    for t in () if keeps_shape else range(1, longest):
        size[t] = alive[t] if 2 * alive[t] <= size[t - 1] else size[t - 1]
    each = ([getattr(trace, name) for trace in traces] for name in Steps._fields[1:])
    return Steps(size, *(np.array(list(zip_longest(*x, fillvalue=0)), np.float64).max(1) for x in each))
