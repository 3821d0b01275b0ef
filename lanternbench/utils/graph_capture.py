"""CUDA graphs: work is recorded once per shape and then replayed by one launch, in place of
hundreds.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Container
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lanternbench.errors import UserError

Work = Callable[..., Any]  # of tensors; returns one, or several
Run = Callable[[], Any]
Recorder = Callable[[Work, list[Tensor]], Run]
Pool = Any  # a handle of memory that graphs share, see ``torch.cuda.graph_pool_handle``


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which graphs of a device are warmed up and captured: each stream that runs
    products keeps a workspace.
    """
    return torch.cuda.Stream(device)


def cuda_graph(work: Work, inputs: list[Tensor], pool: Pool | None = None) -> Run:
    """Record ``work(*inputs)``, which must launch kernels alone and do no harm when it runs twice.

    The replay reads ``inputs`` anew and returns the same tensors.  ``pool``: memory shared with
    graphs of which no two are in use at once.  Raises UserError if recording fails, and
    torch.OutOfMemoryError.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    for x in inputs:
        if x.is_cuda:
            device = x.device
    try:
        with torch.cuda.device(device):
            graph, output = _capture(work, inputs, device, pool)
    except RuntimeError as error:
        cause = first_cause(error)
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from None
        reason = str(cause).splitlines()[0]
        raise UserError(
            f"a step cannot be recorded as a CUDA graph ({reason}); give --compile eager"
        ) from error

    def replay() -> Any:
        graph.replay()
        return output

    return replay


def _capture(
    work: Work, inputs: list[Tensor], device: torch.device, pool: Pool | None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    stream = side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    # libraries choose kernels and allocate workspaces in the first calls
    with torch.cuda.stream(stream):
        for _ in range(2):
            work(*inputs)
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()  # an old graph that is collected while another is recorded would break it
    try:
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            output = work(*inputs)
    finally:
        gc.enable()
    return graph, output


def first_cause(error: BaseException) -> BaseException:
    """The error during whose handling ``error`` was raised: a capture that fails is ended, which
    fails, too.
    """
    while error.__context__ is not None:
        error = error.__context__
    return error


class _Reads(TorchDispatchMode):
    """Notes the tensors that work reads and did not make, and how many operators compute."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[int, Tensor] = {}  # by the address of their storage
        self.made: dict[int, weakref.ref[Any]] = {}  # until they are freed
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and storage_of(x) not in self.made:
                self.inputs.setdefault(storage_of(x), x)
        output = func(*args, **(kwargs or {}))
        self.kernels += not func.is_view
        for x in tree_leaves(output):
            if isinstance(x, Tensor) and storage_of(x) not in self.inputs:
                self._note_made(x)
        return output

    def _note_made(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        address = storage._cdata
        if address not in self.made:
            self.made[address] = weakref.ref(storage, lambda _: self.made.pop(address, None))


def storage_of(x: Tensor) -> int:
    """The address of a tensor's storage, which its views share."""
    return x.untyped_storage()._cdata


class Replay:
    """Recorded work.  Arguments are copied into its input tensors; the next call overwrites the
    returned tensors.

    Other tensors that it reads (masks, tables, weights) are kept alive, and must be the same in
    every decode.  ``static``: ids of tensors with a fixed address, such as those that another
    recording returns; read without a copy.
    """

    def __init__(
        self, record: Recorder, work: Work, inputs: list[Tensor], static: Container[int] = ()
    ):
        self.inputs = [x if id(x) in static else x.clone() for x in inputs]
        work(*self.inputs)  # allocates everything that is allocated once
        with _Reads() as reads:
            outputs = work(*self.inputs)
        self.read = list(reads.inputs.values())
        needed = {storage_of(x) for x in tree_leaves(outputs) if isinstance(x, Tensor)}
        needed |= reads.inputs.keys()
        # inputs that the work neither reads nor returns need no copy
        self.used = [i for i, x in enumerate(self.inputs) if storage_of(x) in needed]
        if reads.kernels:
            self.run = record(work, self.inputs)
        else:
            self.run = lambda: outputs  # views of the inputs

    def load(self, inputs: list[Tensor]) -> None:
        """Copy the arguments into the input tensors."""
        for i in self.used:
            buffer = self.inputs[i]
            if buffer is not inputs[i]:
                buffer.copy_(inputs[i])

    def __call__(self, inputs: list[Tensor]) -> Any:
        self.load(inputs)
        return self.run()


class Graphs:
    """Recordings are bound to the memory of the caches that they write, so those outlive a decode."""

    mode = "graphs"  # the value of --compile

    def __init__(self, record: Recorder = cuda_graph):
        self.record = record
        self.caches: dict[Any, Any] = {}  # see ``open_cache``
        self.tables: dict[
            tuple[tuple[int, ...], torch.dtype], Tensor
        ] = {}  # ``DecodeState.table``

    def compiled(self, net: Any) -> Any:
        """Return the compiled forward pass of a decoder, see ``models.compiled``: none."""
        return None

    def recorder(self, pool: list[Pool]) -> Recorder:
        """Return what records graphs whose memory is shared through ``pool``, a list that the
        first of them fills; a stand-in for CUDA graphs has none.
        """
        if self.record is not cuda_graph:
            return self.record

        def record(work: Work, inputs: list[Tensor]) -> Run:
            if not pool:
                pool.append(torch.cuda.graph_pool_handle())
            return cuda_graph(work, inputs, pool[0])

        return record


def of_mode(mode: str | None, device: str) -> Graphs | None:
    """``graphs``, ``eager``, or None: graphs on a GPU.  Raises UserError for others, and without a
    GPU.
    """
    on_gpu = device.startswith("cuda")
    if mode not in (None, "eager", "graphs"):
        raise UserError(f"unknown compile mode '{mode}': use eager, graphs or inductor")
    if mode == "graphs" and not on_gpu:
        raise UserError(
            f"--compile graphs needs a CUDA device and this run is on '{device}': give --compile eager"
        )
    return Graphs() if on_gpu and mode != "eager" else None
