"""CUDA graphs: a forward is recorded once per shape and then replayed by one launch, in place of a thousand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lanternbench.errors import UserError

Forward = Callable[..., Tensor]
Recorder = Callable[[Forward, list[Tensor]], Callable[[], Tensor]]


def cuda_graph(forward: Forward, inputs: list[Tensor]) -> Callable[[], Tensor]:
    """Record ``forward(*inputs)``, which must launch kernels alone and do no harm when it runs twice.

    The replay reads ``inputs`` anew and returns the same output tensor each time.  Raises UserError where recording
    fails.
    """
    try:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries choose kernels and allocate workspaces in the first calls
            for _ in range(2):
                forward(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = forward(*inputs)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"a forward cannot be recorded as a CUDA graph ({reason}); give --compile eager") from error

    def replay() -> Tensor:
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
    """A recorded forward: arguments are copied into tensors of its own, the output out of them."""

    def __init__(self, record: Recorder, forward: Forward, inputs: list[Tensor]):
        self.inputs = [x.clone() for x in inputs]
        self.run = record(forward, self.inputs)

    def __call__(self, inputs: list[Tensor]) -> Tensor:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        return self.run().clone()


class Graphs:
    """What outlives a decode: recordings are bound to the memory of the caches that they write, so both are kept."""

    def __init__(self, record: Recorder = cuda_graph):
        self.record = record
        self.stacks: dict[tuple, Any] = {}
