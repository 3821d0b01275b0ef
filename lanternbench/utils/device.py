"""The device that computes, and its CPU threads.

Machines may be shared, and a GPU may be one that this torch cannot use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lanternbench.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

# parameters up to which a second thread costs more in synchronisation than it computes
SMALL = 2**24
_SYSTEM = Path("/")  # the root of /proc and /sys
_requested: int | None = None  # threads that the user requested


def choose(device: str, threads: int | None = None) -> str:
    """Return the device of ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises UserError for a device that this machine does not have or that torch cannot use.
    """
    import torch

    request_threads(threads)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    kind, _, index = device.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise UserError(f"unknown device '{device}': use auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UserError(f"{_cannot_use(device)} ({_why_no_gpu()}): use --device cpu")
    count = torch.cuda.device_count()
    if index and int(index) >= count:
        raise UserError(f"there is no {device}: torch sees {count} GPU(s), counted from 0")
    return device


def prepare_gpu(device: str) -> None:
    """Check that torch computes on this GPU.  Raises UserError with the reason if it does not.

    The current device of torch stays as it is.  cuDNN's attention, torch's choice on Hopper, is
    switched off because it makes a new plan for every number of keys.
    """
    import torch

    try:
        torch.ones(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"{_cannot_use(device)} ({_first_line(error)}): install a torch that is built for"
            " this GPU, free its memory, or use --device cpu"
        ) from None
    torch.backends.cuda.enable_cudnn_sdp(False)


def _cannot_use(device: str) -> str:
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    return f"torch {torch.__version__}, which is built for {built}, cannot use '{device}'"


def _why_no_gpu() -> str:
    """Return the message of torch or the driver when CUDA is started."""
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return _first_line(error)
    return "it sees no GPU"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def has_bfloat16(device: str | torch.device) -> bool:
    """Return whether the device has bfloat16 in hardware; GPUs before Ampere emulate it."""
    import torch

    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return True
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def hardware(device: str) -> str:
    """Return the GPU's name, or ``cpu``: values computed on one are not reused on another."""
    import torch

    if torch.device(device).type != "cuda":
        return "cpu"
    return torch.cuda.get_device_name(device)


def request_threads(threads: int | None) -> None:
    """Use this many CPU threads; None leaves the choice to ``fit_threads``.

    Raises UserError for more threads than there are CPUs.
    """
    import torch

    global _requested
    if threads is not None:
        limit = os.cpu_count() or 1
        if not 1 <= threads <= limit:
            raise UserError(
                f"{threads} threads are out of range: this machine has {limit} CPU(s), "
                f"give 1 to {limit}"
            )
        torch.set_num_threads(threads)
    _requested = threads


def fit_threads(model: nn.Module) -> None:
    """Set torch's threads to the requested number, else to one for a small model or all cores."""
    import torch

    threads = requested()
    if threads is None:
        threads = 1 if is_small(model) else cores()
    torch.set_num_threads(threads)


def is_small(model: nn.Module) -> bool:
    """Return whether a second CPU thread would slow this model down."""
    return sum(p.numel() for p in model.parameters()) <= SMALL


def requested() -> int | None:
    """Return the threads that the user requested by option or OMP_NUM_THREADS; None if neither."""
    if _requested:
        return _requested
    variable = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if variable.isdigit() and int(variable) > 0:
        return int(variable)
    return None


def cpu_threads(device: torch.device) -> int | None:
    """Return the number of torch's CPU threads; None on another device."""
    import torch

    return torch.get_num_threads() if device.type == "cpu" else None


def cores() -> int:
    """Return the physical cores that this process may use, within affinity and container quota."""
    if hasattr(os, "sched_getaffinity"):
        cpus = os.sched_getaffinity(0)
    else:
        cpus = set(range(os.cpu_count() or 1))
    physical = set()
    for cpu in cpus:
        siblings = read_system(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        physical.add(siblings or str(cpu))
    quota, _, period = read_system("sys/fs/cgroup/cpu.max").partition(" ")
    if not quota.isdigit():
        return len(physical)
    return max(1, min(len(physical), int(quota) // int(period)))


def read_system(path: str) -> str:
    """Return the text of a file of the kernel; empty if there is none."""
    try:
        return (_SYSTEM / path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def load_average() -> float | None:
    """Return the mean number of running processes in the last minute; None if unknown."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
