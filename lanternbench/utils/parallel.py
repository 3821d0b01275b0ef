"""Prompts shared out to processes: on a CPU half batches side by side beat one batch whose small products are split.

Threads would wait for each other's Python; so parts are forked, with shared weights, and compute with one thread, as
OpenMP's others do not survive a fork.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import TypeVar

import torch
from torch import nn

from lanternbench.utils.device import SMALL, cores, requested

LEAST = 4  # minimum prompts for a separate process
Item = TypeVar("Item")
Result = TypeVar("Result")


def process_count(model: nn.Module, items: int) -> int:
    """How many processes should share ``items`` prompts: one on a GPU, for a large model, or on a single core."""
    weights = list(model.parameters())
    if sys.platform != "linux" or any(p.device.type != "cpu" for p in weights):
        return 1
    small = sum(p.numel() for p in weights) <= SMALL
    return max(1, min(requested() or cores(), items // LEAST)) if small else 1


def side_by_side(work: Callable[[list[Item]], list[Result]], items: list[Item], count: int) -> Iterator[Result]:
    """What ``work`` makes of ``items``, in order, in ``count`` parts of about one size; results must pickle.

    A part whose process died (killed for memory, say) is repeated in this process.  Errors of ``work`` are raised.
    """
    if count == 1:
        yield from work(items)
        return
    cuts = [len(items) * i // count for i in range(count + 1)]
    shares = [items[a:b] for a, b in pairwise(cuts)]
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
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(work, share, theirs), daemon=True)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child ignores it
    try:
        with warnings.catch_warnings(action="ignore"):  # Python warns of forks beside threads; these threads are idle
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


def _child(work: Callable[[list[Item]], list[Result]], share: list[Item], answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    torch.set_num_threads(1)
    try:
        outcome: list[Result] | Exception = work(share)
    except Exception as error:
        outcome = error
    with contextlib.suppress(OSError):
        answer.send_bytes(pickle.dumps(outcome))
    os._exit(0)  # what the parent registered for its exit is not ours to run
