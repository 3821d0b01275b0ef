"""How much memory there is, is free and was used, in bytes; and what to do when it runs out.

Amounts are None if the system does not say.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lanternbench.errors import UserError

if TYPE_CHECKING:
    import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_SYSTEM = Path("/")  # the root of /proc and /sys
# what torch's errors say when memory runs out on a GPU, in one of its libraries, on the host
_SHORTAGE = re.compile("out of memory|ALLOC_FAILED|can't allocate memory|not enough memory", re.I)
_ASKED_FOR = re.compile(r"tried to allocate ([\d.]+ \w+)", re.I)
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


def free_memory(device: torch.device) -> int | None:
    """Return the memory that this process can still take on the device."""
    if device.type != "cuda":
        known = [free for free in (_available(), _left_in_container()) if free is not None]
        return min(known, default=None)
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + cached


def _available() -> int | None:
    """Return what the system could give to new processes without swapping."""
    for line in _read("proc/meminfo").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(amount.split()[0])
    return total_memory()


def _left_in_container() -> int | None:
    """Return what the limit of this container leaves; cached files count as free."""
    limit = _read("sys/fs/cgroup/memory.max")
    used = _read("sys/fs/cgroup/memory.current")
    if not limit.isdigit() or not used.isdigit():
        return None
    cached = 0
    for line in _read("sys/fs/cgroup/memory.stat").splitlines():
        name, _, amount = line.partition(" ")
        if name in ("active_file", "inactive_file"):
            cached += int(amount)
    return max(0, int(limit) - int(used) + cached)


def _read(path: str) -> str:
    try:
        return (_SYSTEM / path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out, on a GPU or on the host."""
    if isinstance(error, MemoryError):
        return True
    torch_module = sys.modules.get("torch")
    if torch_module is not None and isinstance(error, torch_module.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _SHORTAGE.search(str(error)) is not None


def shortage(error: BaseException, where: str = "memory ran out") -> str:
    """Return what an exception of ``is_out_of_memory`` says, as a clause."""
    asked = _ASKED_FOR.search(str(error))
    return f"{where} (it tried to allocate {asked[1]})" if asked else where


@contextmanager
def memory_errors(what: str, remedy: str = SMALLER) -> Iterator[None]:
    """Turn an error for want of memory while ``what`` into a UserError with the ``remedy``."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"{shortage(error)} while {what}: {remedy}") from None


class BatchLimit:
    """How many items are worked on at once: as many as are given until memory runs out, then half
    as many.
    """

    def __init__(self, items: int | None = None) -> None:
        self.items = items  # None: all

    def results(
        self,
        work: Callable[[list[Item]], list[Result]],
        items: Sequence[Item],
        release: Callable[[], None] = lambda: None,
    ) -> list[Result]:
        """Return the results of ``work`` on the items, in batches that fit into memory.

        ``release``: drops what a failed batch has left.  Raises the error of a single item.
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
