"""A batch of a small target split over processes on a CPU.

Half batches in two processes are faster than one batch whose products are split over threads.
Threads would wait for each other's Python, so processes are forked.  They share the weights and
compute with one thread each, because OpenMP's other threads do not survive a fork.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from lanternbench.utils.device import cores, is_small, requested

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch import nn

MIN_PROMPTS = 4  # per process
Item = TypeVar("Item")
Result = TypeVar("Result")


def process_count(model: nn.Module, items: int) -> int:
    """Return the number of processes for ``items`` prompts.

    It is 1 on a GPU, for a large model, and on a single core.
    """
    on_cpu = all(p.device.type == "cpu" for p in model.parameters())
    if sys.platform != "linux" or not on_cpu or not is_small(model):
        return 1
    return max(1, min(requested() or cores(), items // MIN_PROMPTS))


def side_by_side(
    work: Callable[[list[Item]], list[Result]], items: list[Item], count: int
) -> Iterator[Result]:
    """Yield the results of ``work`` on ``items``, in order, computed in ``count`` processes.

    Results must be picklable.  The part of a process that was killed, by a lack of memory for
    example, is repeated in this process.  Errors of ``work`` are raised.
    """
    if count == 1:
        yield from work(items)
        return
    bounds = [len(items) * i // count for i in range(count + 1)]
    parts = [items[start:end] for start, end in itertools.pairwise(bounds)]
    with contextlib.ExitStack() as stack:
        answers = [stack.enter_context(_forked(work, part)) for part in parts]
        for part, answer in zip(parts, answers, strict=True):
            try:
                outcome = pickle.loads(answer.recv_bytes())
            except EOFError:
                outcome = work(part)
            if isinstance(outcome, Exception):
                raise outcome
            yield from outcome


@contextlib.contextmanager
def _forked(work: Callable[[list[Item]], list[Result]], part: list[Item]) -> Iterator[Connection]:
    """Start a process that sends its pickled results or its error; kill it afterwards."""
    import multiprocessing

    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(work, part, theirs), daemon=True
    )
    # Ctrl-C waits until the child ignores it
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Python warns of a fork while there are threads; these are idle
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
    work: Callable[[list[Item]], list[Result]], part: list[Item], answer: Connection
) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which kills this
    torch.set_num_threads(1)
    try:
        outcome: list[Result] | Exception = work(part)
    except Exception as error:
        outcome = error
    with contextlib.suppress(OSError):
        answer.send_bytes(pickle.dumps(outcome))
    os._exit(0)  # without the exit handlers of the parent
