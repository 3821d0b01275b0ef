"""CUDA graphs: work is recorded once per shape and replayed by one launch instead of hundreds."""

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
Pool = Any  # memory that graphs share, see ``torch.cuda.graph_pool_handle``


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all graphs of a device are warmed up and captured.

    Each stream that multiplies matrices keeps a workspace, so there is only one.
    """
    return torch.cuda.Stream(device)


def cuda_graph(work: Work, inputs: list[Tensor], pool: Pool | None = None) -> Run:
    """Record ``work(*inputs)``, which may only launch kernels and must be safe to run twice.

    A replay reads ``inputs`` again and returns the same tensors.  ``pool``: memory shared by
    graphs that are never in use at the same time.  Raises UserError if recording fails, and
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

    def replay() -> object:
        graph.replay()
        return output

    return replay


def _capture(
    work: Work, inputs: list[Tensor], device: torch.device, pool: Pool | None
) -> tuple[torch.cuda.CUDAGraph, object]:
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
    """Return the original error: ending a capture that failed raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    return error


class _Reads(TorchDispatchMode):
    """Notes the tensors that work reads but does not create, and counts its kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[int, Tensor] = {}  # by the address of their storage
        # by the address of their storage, until they are freed
        self.created: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.kernels = 0

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and storage_of(x) not in self.created:
                self.inputs.setdefault(storage_of(x), x)
        output = func(*args, **(kwargs or {}))
        self.kernels += not func.is_view
        for x in tree_leaves(output):
            if isinstance(x, Tensor) and storage_of(x) not in self.inputs:
                self._note_created(x)
        return output

    def _note_created(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        address = storage._cdata
        if address not in self.created:
            self.created[address] = weakref.ref(storage, lambda _: self.created.pop(address, None))


def storage_of(x: Tensor) -> int:
    """Return the address of a tensor's storage, which its views share."""
    return x.untyped_storage()._cdata


class Replay:
    """Recorded work.  Arguments are copied into its input tensors; a call overwrites the tensors
    that the last one returned.

    Other tensors that it reads (masks, tables, weights) are kept alive, and must be the same in
    every decode.  ``static``: ids of tensors with a fixed address, such as the outputs of another
    recording, which are read without a copy.
    """

    def __init__(
        self, record: Recorder, work: Work, inputs: list[Tensor], static: Container[int] = ()
    ):
        self.inputs = [x if id(x) in static else x.clone() for x in inputs]
        work(*self.inputs)  # allocates whatever is allocated only once
        with _Reads() as reads:
            outputs = work(*self.inputs)
        self.read = list(reads.inputs.values())
        needed = {storage_of(x) for x in tree_leaves(outputs) if isinstance(x, Tensor)}
        needed |= reads.inputs.keys()
        # inputs that the work neither reads nor returns are not copied
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
    """Caches that outlive a decode, because recordings are bound to the memory that they write."""

    mode = "graphs"  # the value of --compile

    def __init__(self, record: Recorder = cuda_graph):
        self.record = record
        self.caches: dict[Any, Any] = {}  # see ``open_cache``
        # see ``DecodeState.table``
        self.tables: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}

    def compiled(self, net: Any) -> Any:
        """Return the compiled forward pass of a decoder, see ``models.compiled``: None."""

    def recorder(self, pool: list[Pool]) -> Recorder:
        """Return a recorder of graphs that share the memory of ``pool``, a list that the first
        graph fills.
        """
        if self.record is not cuda_graph:  # a stand-in without memory pools
            return self.record

        def record(work: Work, inputs: list[Tensor]) -> Run:
            if not pool:
                pool.append(torch.cuda.graph_pool_handle())
            return cuda_graph(work, inputs, pool[0])

        return record
