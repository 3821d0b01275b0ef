"""The peak memory of one method in a process that runs several, independent of their order.

A replayed graph allocates nothing: its tensors live in a private pool, which only the memory that
torch *reserves* shows.  Methods that ran before hold pools and buffers of their own.  A method is
therefore charged with what was loaded, with the caches that all share, with its own pools and
buffers, and with what it allocates while it decodes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


class PoolBytes(NamedTuple):
    allocated: int
    reserved: int


Pools = dict[PoolId, PoolBytes]


class CudaAllocator:
    """The statistics of torch's allocator for one GPU, in bytes."""

    def __init__(self, device: torch.device):
        self.device = device

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return the maximum allocated since ``reset_peak``."""
        return torch.cuda.max_memory_allocated(self.device)

    def private_pools(self) -> Pools:
        index = self.device.index
        if index is None:
            index = torch.cuda.current_device()
        found: Pools = {}
        for segment in torch.cuda.memory_snapshot():
            first, second = segment["segment_pool_id"]
            pool = (first, second)
            if segment["device"] == index and pool != DEFAULT_POOL:
                known = found.get(pool, PoolBytes(0, 0))
                found[pool] = PoolBytes(
                    known.allocated + segment["allocated_size"],
                    known.reserved + segment["total_size"],
                )
        return found


class Measured:
    """Bytes of a decode that has ended."""

    peak = 0
    traces = 0  # recorded distributions, which belong to no method


class PeakMemory:
    """Measures the decodes of a process that has loaded its models."""

    def __init__(self, allocator: CudaAllocator):
        self.allocator = allocator
        self.loaded = allocator.allocated()
        self.shared = 0  # caches
        self.buffers: dict[str, int] = defaultdict(int)  # by method, outside private pools
        self.owners: dict[PoolId, str] = {}

    @contextmanager
    def measure(self, method: str, shared_bytes: Callable[[], int]) -> Iterator[Measured]:
        """Measure a decode of ``method``, which sets ``Measured.traces`` before it ends.

        ``shared_bytes``: returns the bytes of the caches that all methods share.
        """
        measured = Measured()
        before = self._held(shared_bytes)
        self.allocator.reset_peak()
        start = self.allocator.allocated()
        yield measured
        highest = self.allocator.peak() - start
        after = self._held(shared_bytes)
        for pool in after.pools:
            self.owners.setdefault(pool, method)
        buffers = max(0, after.buffers - before.buffers - measured.traces)
        shared = after.shared - before.shared
        recorded = after.recorded - before.recorded
        self.buffers[method] += buffers
        self.shared += shared
        temporary = max(0, highest - measured.traces - buffers - shared - recorded)
        own = [size.reserved for pool, size in after.pools.items() if self.owners[pool] == method]
        measured.peak = self.loaded + self.shared + self.buffers[method] + sum(own) + temporary

    def _held(self, shared_bytes: Callable[[], int]) -> "_Held":
        pools = self.allocator.private_pools()
        recorded = sum(size.allocated for size in pools.values())
        shared = shared_bytes()
        return _Held(pools, recorded, shared, self.allocator.allocated() - recorded - shared)


class _Held(NamedTuple):
    """Allocations at one moment: private pools, shared caches, and other buffers."""

    pools: Pools
    recorded: int
    shared: int
    buffers: int
