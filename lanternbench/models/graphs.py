"""CUDA graphs: work is recorded once per shape and then replayed by one launch, in place of hundreds."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lanternbench.errors import UserError

Work = Callable[..., Any]  # of tensors; returns one, or several
Recorder = Callable[[Work, list[Tensor]], Callable[[], Any]]


def cuda_graph(work: Work, inputs: list[Tensor]) -> Callable[[], Any]:
    """Record ``work(*inputs)``, which must launch kernels alone and do no harm when it runs twice.

    The replay reads ``inputs`` anew and returns the same output tensors each time.  Raises UserError where recording
    fails.
    """
    try:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries choose kernels and allocate workspaces in the first calls
            for _ in range(2):
                work(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = work(*inputs)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"a step cannot be recorded as a CUDA graph ({reason}); give --compile eager") from error

    def replay() -> Any:
        graph.replay()
        return output

    return replay


def of_mode(mode: str | None, device: str) -> Graphs | None:
    """``graphs``, ``eager``, or None: graphs on a GPU.  Raises UserError for graphs without one."""
    on_gpu = device.startswith("cuda")
    if mode == "graphs" and not on_gpu:
        raise UserError(f"--compile graphs needs a CUDA device and this run is on '{device}': give --compile eager")
    return Graphs() if on_gpu and mode != "eager" else None


class Replay:
    """Recorded work.  Arguments are copied into tensors of its own; what it returns is overwritten by the next call.

    ``static``: ids of tensors that stay where they are, such as what another recording returns; those it reads there.
    """

    def __init__(self, record: Recorder, work: Work, inputs: list[Tensor], static: Container[int] = ()):
        self.inputs = [x if id(x) in static else x.clone() for x in inputs]
        self.run = record(work, self.inputs)

    def __call__(self, inputs: list[Tensor]) -> Any:
        for own, given in zip(self.inputs, inputs, strict=True):
            if own is not given:
                own.copy_(given)
        return self.run()


class Graphs:
    """What outlives a decode: recordings are bound to the memory of the caches that they write, so both are kept."""

    def __init__(self, record: Recorder = cuda_graph):
        self.record = record
        self.stacks: dict[tuple, Any] = {}
        self.span: int | None = None

    @contextmanager
    def recording(self, span: int) -> Iterator[None]:
        """Forwards inside attend to ``span`` slots, and nothing asks the host how far an image is."""
        self.span = span
        try:
            yield
        finally:
            self.span = None
