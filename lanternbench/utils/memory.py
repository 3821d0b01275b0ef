"""How much memory there is, is free, and was used; in bytes, None if the system does not say."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_SYSTEM = Path("/")  # the root of /proc and /sys


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
