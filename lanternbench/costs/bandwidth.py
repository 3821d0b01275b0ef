"""How fast this machine reads memory: what bounds every forward of a few rows."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch

from lanternbench.utils.device import cores, last_level_cache

PASSES = 10  # at the least


class Bandwidth(NamedTuple):
    """How fast this machine reads memory, in GB/s: ``best`` of ``passes`` over the same tensor, and their median."""

    best: float
    median: float
    passes: int
    threads: int

    @property
    def spread(self) -> float:
        """By how much the median pass falls short of the best one, which no other program held up: a share."""
        return 1 - self.median / self.best


def bandwidth(device: torch.device, seconds: float = 3.0) -> Bandwidth:
    """Timed sums over a tensor that no cache holds, all cores at work: at least ten, and as many as ``seconds`` allow.

    The tensor is four times the last-level cache or more; on a GPU so large that launching the sum and waiting for it
    cost nothing beside reading it.  Other programs only ever slow a pass down, so the best pass is what repeats.
    """
    size = 2**31 if device.type == "cuda" else max(2**28, 4 * last_level_cache())
    x = torch.ones(size // 8, dtype=torch.int64, device=device)
    before = torch.get_num_threads()
    times: list[float] = []
    torch.set_num_threads(max(before, cores()))
    try:
        threads = torch.get_num_threads()
        x.sum()
        end = perf_counter() + seconds
        while len(times) < PASSES or perf_counter() < end:
            times.append(seconds_of(x.sum, device))
    finally:
        torch.set_num_threads(before)
    rates = sorted(size / t / 1e9 for t in times)
    return Bandwidth(rates[-1], median(rates), len(rates), threads)


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a piece of work, until the device has done it."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    clock = perf_counter()
    work()
    wait()
    return perf_counter() - clock
