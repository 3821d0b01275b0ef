"""The memory of one method among several: the same whichever ran before."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import permutations

import pytest
import torch

from lanternbench.experiment.worker import make_samples
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.prompts import Prompt
from lanternbench.utils.peak_memory import CudaAllocator, PeakMemory, PoolBytes

MB = 10**6
# method: bytes of its graphs' pool (allocated, reserved), of its buffers, of a step's temporaries
METHODS = {
    "ar": (PoolBytes(20 * MB, 24 * MB), 1 * MB, 5 * MB),
    "cool-sd": (PoolBytes(200 * MB, 230 * MB), 7 * MB, 50 * MB),
    "eagle-2": (PoolBytes(90 * MB, 96 * MB), 3 * MB, 80 * MB),
}
WEIGHTS, CACHES, TRACES = 1500 * MB, 190 * MB, 40 * MB


class Fake:
    """An allocator on which methods decode; the first one opens the caches that all share."""

    def __init__(self) -> None:
        self.now = self.highest = WEIGHTS
        self.pools: dict[tuple[int, int], PoolBytes] = {}
        self.caches = 0
        self.recorded: set[str] = set()

    def allocated(self) -> int:
        return self.now

    def reset_peak(self) -> None:
        self.highest = self.now

    def peak(self) -> int:
        return self.highest

    def private_pools(self) -> dict[tuple[int, int], PoolBytes]:
        return dict(self.pools)

    def take(self, size: int) -> None:
        self.now += size
        self.highest = max(self.highest, self.now)

    @contextmanager
    def decode(self, method: str):
        """A decode, in whose body its traces still live."""
        pool, buffers, temporaries = METHODS[method]
        if not self.caches:
            self.caches = CACHES
            self.take(CACHES)
        if method not in self.recorded:
            self.recorded.add(method)
            self.take(buffers + pool.allocated)
            self.pools[0, 1 + len(self.pools)] = pool
        self.take(TRACES + temporaries)
        self.now -= temporaries
        yield
        self.now -= TRACES


def measured(order: tuple[str, ...]) -> dict[str, int]:
    """The peaks of a second image of each method."""
    fake = Fake()
    memory = PeakMemory(fake)
    peaks = {}
    for name in (*order, *order):
        decode = fake.decode(name)
        with memory.measure(name, lambda: fake.caches) as one:
            decode.__enter__()
            one.traces = TRACES
        decode.__exit__(None, None, None)
        peaks[name] = one.peak
    return peaks


@pytest.mark.parametrize("order", permutations(METHODS))
def test_peak_memory_is_that_of_the_method_alone_in_any_order_and_without_traces(order):
    alone = {
        method: WEIGHTS + CACHES + pool.reserved + buffers + temporaries
        for method, (pool, buffers, temporaries) in METHODS.items()
    }
    assert measured(order) == alone


def test_the_allocator_of_a_gpu_sums_private_pools_of_its_device(monkeypatch):
    def segment(device: int, pool: tuple[int, int], allocated: int, total: int):
        sizes = {"allocated_size": allocated, "total_size": total}
        return {"device": device, "segment_pool_id": pool, **sizes}

    snapshot = [
        segment(0, (0, 0), 5, 10),
        segment(0, (0, 3), 5, 10),
        segment(0, (0, 3), 1, 2),
        segment(1, (0, 4), 5, 10),
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: snapshot)
    pools = CudaAllocator(torch.device("cuda:0")).private_pools()
    assert pools == {(0, 3): PoolBytes(6, 12)}


def test_samples_hold_the_measured_peak(shallow_8x8):
    decoder = build(shallow_8x8, method("ar"))
    prompts = [Prompt("demo-1", "a red star")]
    made = make_samples(decoder, prompts, 0, timed=True, memory=PeakMemory(Fake()))
    assert [sample.peak_memory_mb for sample, *_ in made] == [WEIGHTS / MB]
