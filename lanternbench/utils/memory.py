"""Memory in bytes: total, free and used; and what to do when it runs out.

Amounts are None if the system does not say.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from lanternbench.errors import UserError
from lanternbench.utils.device import read_system

if TYPE_CHECKING:
    import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# what torch's errors say when memory runs out on a GPU, in one of its libraries, on the host
_SHORTAGE = re.compile("out of memory|ALLOC_FAILED|can't allocate memory|not enough memory", re.I)
_ASKED_FOR = re.compile(r"tried to allocate ([\d.]+ \w+)", re.I)
ADDRESS_SPACE = 5 * 10**9  # bytes that torch and its libraries map, most of which stay unused
SMALLER = "give a smaller --batch, --dtype bfloat16 or another --device"
Item = TypeVar("Item")
Result = TypeVar("Result")


def total_memory() -> int | None:
    """Return the memory of this machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def peak_memory() -> int | None:
    """Return the most memory that this process held."""
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def check_address_space() -> None:
    """Raise UserError if the limit of virtual memory (``ulimit -v``) is too small for torch."""
    if resource is None:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise UserError(
            f"virtual memory is limited to {limit / 1e9:.1f} GB (ulimit -v), and torch maps about"
            f" {ADDRESS_SPACE / 1e9:g} GB: raise the limit"
        )


def free_memory(device: torch.device) -> int | None:
    """Return the memory that this process can still take on the device."""
    if device.type != "cuda":
        return _free_on_host()
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + cached


def _free_on_host() -> int | None:
    """Return what the system, or the container's limit, leaves; cached files count as free."""
    available = _amount("proc/meminfo", "MemAvailable:")
    free = total_memory() if available is None else 1024 * available
    limit = read_system("sys/fs/cgroup/memory.max")
    if free is None or not limit.isdigit():
        return free
    used = _amount("sys/fs/cgroup/memory.stat", "anon") or 0
    return min(free, max(0, int(limit) - used))


def _amount(path: str, name: str) -> int | None:
    """Return the first number of the line that begins with ``name``."""
    found = re.search(rf"^{name}\s+(\d+)", read_system(path), re.MULTILINE)
    return int(found[1]) if found else None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out, on a GPU or on the host."""
    if isinstance(error, MemoryError):
        return True
    torch_module = sys.modules.get("torch")
    if torch_module is not None and isinstance(error, torch_module.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _SHORTAGE.search(str(error)) is not None


def shortage(error: BaseException) -> str:
    """Return the message of an exception of ``is_out_of_memory``, as a clause."""
    asked = _ASKED_FOR.search(str(error))
    if asked is None:
        return "memory ran out"
    return f"memory ran out (it tried to allocate {asked[1]})"


@contextmanager
def memory_errors(what: str, remedy: str = SMALLER) -> Iterator[None]:
    """Turn a lack of memory while ``what`` into a UserError with the ``remedy``."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"{shortage(error)} while {what}: {remedy}") from None


class BatchLimit:
    """The number of items in a batch: all of them until memory runs out, then half as many."""

    def __init__(self, items: int | None = None) -> None:
        self.items = items  # None: all

    def results(
        self,
        work: Callable[[list[Item]], list[Result]],
        items: Sequence[Item],
        release: Callable[[], None] = lambda: None,
    ) -> list[Result]:
        """Return the results of ``work`` on the items, in batches that fit into memory.

        ``release``: drops what a failed batch left behind.  Raises the error of a single item.
        """
        results: list[Result] = []
        while len(results) < len(items):
            batch = list(items[len(results) :][: self.items])
            try:
                results.extend(work(batch))
                continue
            except (MemoryError, RuntimeError) as error:
                if len(batch) == 1 or not is_out_of_memory(error):
                    raise
            # outside of ``except``, where the error no longer keeps the batch alive
            self.items = (len(batch) + 1) // 2
            release()
            release_memory()
        return results


def release_memory() -> None:
    """Give memory that is no longer used back to the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
