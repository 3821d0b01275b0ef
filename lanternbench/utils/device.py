"""The choice of device, threads and processes, on machines that are shared.

On a CPU half batches side by side beat one batch whose small products are split over threads.
Threads would wait for each other's Python; so parts are forked, with shared weights, and compute
with one thread, as OpenMP's others do not survive a fork.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lanternbench.errors import UserError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import torch
    from torch import nn

# parameters up to which a second thread costs more in synchronisation than it computes
SMALL = 2**24
LEAST = 4  # minimum prompts for a separate process
_SYSTEM = Path("/")  # of /proc and /sys
_requested: int | None = None  # threads that the user asked for
Item = TypeVar("Item")
Result = TypeVar("Result")


def choose(device: str, threads: int | None = None) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` -> a device.  Raises UserError for what this
    machine does not have.
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
        raise UserError(
            f"device '{device}' was asked for but torch sees no GPU here: use --device cpu"
        )
    if index and int(index) >= torch.cuda.device_count():
        raise UserError(
            f"there is no {device}: torch sees {torch.cuda.device_count()} GPU(s), counted from 0"
        )
    return device


def request_threads(threads: int | None) -> None:
    """Use so many CPU threads; None leaves it to ``fit_threads``.  Raises UserError for more than
    there are CPUs.
    """
    import torch

    global _requested
    limit = os.cpu_count() or 1
    if threads is not None:
        if not 1 <= threads <= limit:
            raise UserError(
                f"{threads} threads are out of range: this machine has {limit} CPU(s), give 1 to {limit}"
            )
        torch.set_num_threads(threads)
    _requested = threads


def fit_threads(model: nn.Module) -> None:
    """Set torch's threads to what the user asked for, else to what a model gains from: one if
    small, else all cores.
    """
    import torch

    small = sum(p.numel() for p in model.parameters()) <= SMALL
    torch.set_num_threads(requested() or (1 if small else cores()))


def requested() -> int | None:
    """Threads that the user asked for, if any; the environment variable OMP_NUM_THREADS counts as
    asking.
    """
    variable = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return _requested or (int(variable) if variable.isdigit() else 0) or None


def cpu_threads(device: torch.device) -> int | None:
    """The number of torch's CPU threads; None on another device."""
    import torch

    return torch.get_num_threads() if device.type == "cpu" else None


def cores() -> int:
    """Physical cores that this process may use: within its CPU affinity and its control group's
    quota, at least one.
    """
    cpus = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    siblings = {
        _read(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in cpus
    }
    return max(1, min([len(siblings), *(int(quota) for quota in _quotas())]))


def last_level_cache() -> int:
    """Bytes of the largest cache of one CPU; 32 MiB where the system does not say."""
    units, said = (
        {"K": 2**10, "M": 2**20, "G": 2**30},
        "sys/devices/system/cpu/cpu0/cache/index{}/size",
    )
    sizes = [size for index in range(8) if (size := _read(said.format(index)))[:-1].isdigit()]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes), default=2**25)


def _quotas() -> Iterable[float]:
    """CPUs' worth of time that each control group of this process grants, from the innermost to
    the root.
    """
    for line in _read("proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in (Path(group), *Path(group).parents):
            at = str(folder).lstrip("/")
            if controllers:  # version 1
                quota, period = (
                    _read(f"sys/fs/cgroup/cpu/{at}/cpu.cfs_{part}_us")
                    for part in ("quota", "period")
                )
            else:
                quota, _, period = _read(f"sys/fs/cgroup/{at}/cpu.max").partition(" ")
            if quota.isdigit() and period.isdigit() and int(period):
                yield int(quota) / int(period)


def _read(path: str) -> str:
    try:
        return (_SYSTEM / path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def load_average() -> float | None:
    """Processes that ran or wanted to run, on average over the last minute; None where the system
    does not say.
    """
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def process_count(model: nn.Module, items: int) -> int:
    """How many processes should share ``items`` prompts: one on a GPU, for a large model, or on a
    single core.
    """
    weights = list(model.parameters())
    shared = sys.platform == "linux" and all(p.device.type == "cpu" for p in weights)
    shared = shared and sum(p.numel() for p in weights) <= SMALL
    return max(1, min(requested() or cores(), items // LEAST)) if shared else 1


def side_by_side(
    work: Callable[[list[Item]], list[Result]], items: list[Item], count: int
) -> Iterator[Result]:
    """What ``work`` makes of ``items``, in order, in ``count`` parts of about one size; results
    must pickle.

    A part whose process died (killed for memory, say) is repeated in this process.  Errors of
    ``work`` are raised.
    """
    if count == 1:
        yield from work(items)
        return
    shares = [items[a:b] for a, b in pairwise(len(items) * i // count for i in range(count + 1))]
    with contextlib.ExitStack() as stack:
        answers = [stack.enter_context(_forked(work, share)) for share in shares]
        for share, answer in zip(shares, answers, strict=True):
            try:
                outcome = pickle.loads(answer.recv_bytes())
            except EOFError:
                outcome = work(share)
            if isinstance(outcome, Exception):
                raise outcome
            yield from outcome


@contextlib.contextmanager
def _forked(work: Callable[[list[Item]], list[Result]], share: list[Item]) -> Iterator[Connection]:
    """A process that sends its results or its error, pickled; it is gone afterwards."""
    import multiprocessing

    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(work, share, theirs), daemon=True
    )
    # until the child ignores it
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Python warns of forks beside threads; these threads are idle
        with warnings.catch_warnings(action="ignore"):
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        theirs.close()
        yield ours
    finally:
        ours.close()
        process.kill()
        process.join()


def _child(
    work: Callable[[list[Item]], list[Result]], share: list[Item], answer: Connection
) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    torch.set_num_threads(1)
    try:
        outcome: list[Result] | Exception = work(share)
    except Exception as error:
        outcome = error
    with contextlib.suppress(OSError):
        answer.send_bytes(pickle.dumps(outcome))
    os._exit(0)  # what the parent registered for its exit is not ours to run
