"""CUDA graphs: work is recorded once per shape and then replayed by one launch, in place of
hundreds.
"""

import gc
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lanternbench.errors import UserError

Work = Callable[..., Any]  # of tensors; returns one, or several
Recorder = Callable[[Work, list[Tensor]], Callable[[], Any]]


def cuda_graph(work: Work, inputs: list[Tensor]) -> Callable[[], Any]:
    """Record ``work(*inputs)``, which must launch kernels alone and do no harm when it runs twice.

    The replay reads ``inputs`` anew and returns the same tensors.  Raises UserError where
    recording fails.
    """
    try:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        # libraries choose kernels and allocate workspaces in the first calls
        with torch.cuda.stream(aside):
            for _ in range(2):
                work(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        gc.collect()
        gc.disable()  # an old graph that is collected while another is recorded would break it
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = work(*inputs)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"a step cannot be recorded as a CUDA graph ({reason}); give --compile eager"
        ) from error
    finally:
        gc.enable()

    def replay() -> Any:
        graph.replay()
        return output

    return replay


class _Reads(TorchDispatchMode):
    """Notes the tensors that work reads and did not make."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[int, Tensor] = {}  # by the address of their memory
        self.outputs: dict[int, Tensor] = {}  # held, so that no address comes twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), self.inputs, self.outputs)
        output = func(*args, **(kwargs or {}))
        self._note(output, self.outputs, self.inputs)
        return output

    @staticmethod
    def _note(values: Any, known: dict[int, Tensor], others: dict[int, Tensor]) -> None:
        for x in tree_leaves(values):
            if isinstance(x, Tensor) and (address := x.untyped_storage().data_ptr()) not in others:
                known.setdefault(address, x)


class Replay:
    """Recorded work.  Arguments are copied into its input tensors; the next call overwrites the
    returned tensors.

    Other tensors that it reads (masks, tables, weights) are kept alive, and must be the same in
    every decode. ``static``: ids of tensors with a fixed address, such as those that another
    recording returns; read without a copy.
    """

    def __init__(
        self, record: Recorder, work: Work, inputs: list[Tensor], static: Container[int] = ()
    ):
        self.inputs = [x if id(x) in static else x.clone() for x in inputs]
        work(*self.inputs)  # allocates everything that is allocated once
        with _Reads() as reads:
            work(*self.inputs)
        self.read = list(reads.inputs.values())
        self.run = record(work, self.inputs)

    def __call__(self, inputs: list[Tensor]) -> Any:
        for buffer, value in zip(self.inputs, inputs, strict=True):
            if buffer is not value:
                buffer.copy_(value)
        return self.run()


class Graphs:
    """Recordings are bound to the memory of the caches that they write, so those outlive a decode."""

    def __init__(self, record: Recorder = cuda_graph):
        self.record = record
        self.caches: dict[Any, Any] = {}  # see ``open_cache``


def of_mode(mode: str | None, device: str) -> Graphs | None:
    """``graphs``, ``eager``, or None: graphs on a GPU.  Raises UserError for others, and without a
    GPU.
    """
    on_gpu = device.startswith("cuda")
    if mode not in (None, "eager", "graphs"):
        raise UserError(f"unknown compile mode '{mode}': use eager or graphs")
    if mode == "graphs" and not on_gpu:
        raise UserError(
            f"--compile graphs needs a CUDA device and this run is on '{device}': give --compile eager"
        )
    return Graphs() if on_gpu and mode != "eager" else None
