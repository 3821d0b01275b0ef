"""``--compile inductor``: a decoder's forward passes in kernels that TorchInductor fuses, inside
the recorded phases of a step.

A layer of LlamaGen-XL is 16 kernels when each operation launches its own, and 9 when compiled.
Shapes are fixed, so there is one compilation per number of inputs and of slots attended to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.transformer import Depths
from lanternbench.utils.graph_capture import Graphs, Work, cuda_graph

SHAPES = 1000  # compilations of one function before torch gives up; it stops at 8 by default
# torch fuses operations that read at least so many bytes in common, such as the slot of one token
SHARED_BYTES = 1


class CompilationFailed(Exception):
    """The compiler could not make kernels of a forward pass; the user has been told."""


class CacheParts(NamedTuple):
    """The part of a cache that one compiled forward pass writes and reads."""

    keys: list[Tensor]  # of each layer, [R, K, S, d]; no two of them share a storage
    values: list[Tensor]
    slots: Tensor  # [R|1, n] written
    span: int  # slots 0 … span − 1 are read

    def put(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values [R, K, n, d]; return all: [R, K, span, d] each."""
        rows, heads = k.shape[:2]
        row = torch.arange(rows, device=k.device)[:, None, None]
        head = torch.arange(heads, device=k.device)[:, None]
        places = (row, head, self.slots[:, None])
        keys = self.keys[layer].index_put_(places, k)
        values = self.values[layer].index_put_(places, v)
        return keys.narrow(2, 0, self.span), values.narrow(2, 0, self.span)


class CompiledForward:
    """A decoder's forward pass over a cache, in fused kernels."""

    def __init__(self, net: Callable[..., Tensor], owner: Inductor):
        self.owner = owner

        def forward(
            x: Tensor,
            rope: Tensor,
            mask: Tensor | None,
            cache: CacheParts,
            last: bool,
            aux_layers: Depths,
        ) -> Tensor:
            if not aux_layers:
                return net(x, rope, mask, cache.put, last)
            return net(x, rope, mask, cache.put, last, aux_layers)

        options: dict[str, str | int | bool | Callable[..., object]] = {
            "score_fusion_memory_threshold": SHARED_BYTES
        }
        self.run = torch.compile(forward, fullgraph=True, dynamic=False, options=options)

    def __call__(self, *inputs: Any) -> Tensor:
        """Return the states that ``forward`` above computes.  Raises CompilationFailed."""
        from torch._dynamo.exc import TorchDynamoException

        try:
            return self.run(*inputs)
        except TorchDynamoException as error:
            self.owner.give_up(first_line(error))
            raise CompilationFailed from error


class Inductor(Graphs):
    """Recorded phases whose decoders are compiled; on a CPU they are launched, not recorded."""

    def __init__(self, device: str):
        import torch._dynamo
        import torch._inductor.config

        self.on_gpu = device.startswith("cuda")
        super().__init__(cuda_graph if self.on_gpu else relaunched)
        torch._dynamo.config.recompile_limit = SHAPES
        torch._dynamo.config.accumulated_recompile_limit = SHAPES
        if not self.on_gpu:
            torch._inductor.config.compile_threads = 1  # a process that is forked has one thread
        self.mode = "inductor"
        self.forwards: dict[int, CompiledForward] = {}  # by the id of the decoder

    def compiled(self, net: Any) -> CompiledForward | None:
        """Return the compiled forward pass of a decoder, None if there is none."""
        if self.mode == "inductor" and not net.compiles:
            self.give_up(f"{net.about} is not one of our decoders")
        if self.mode != "inductor":
            return None
        if id(net) not in self.forwards:
            self.forwards[id(net)] = CompiledForward(net, self)
        return self.forwards[id(net)]

    def give_up(self, reason: str) -> None:
        """Say, once, why nothing is compiled from now on."""
        if self.mode != "inductor":
            return
        self.mode = "graphs" if self.on_gpu else "eager"
        print(
            f"lanternbench: --compile inductor does not work here ({reason}): the run goes on "
            f"with --compile {self.mode}",
            file=sys.stderr,
        )


def first_line(error: Exception) -> str:
    """Return the first line of what a compiler says."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def relaunched(work: Work, inputs: list[Tensor]) -> Callable[[], object]:
    """Return a function that does ``work(*inputs)`` again, into the same outputs."""
    outputs = work(*inputs)

    def run() -> object:
        for output, new in zip(outputs, work(*inputs), strict=True):
            output.copy_(new)
        return outputs

    return run


def watched() -> bool:
    """Return whether something watches the operators that torch dispatches; fused kernels are
    none.
    """
    return torch._C._len_torch_dispatch_stack() > 0


def of_mode(mode: str | None, device: str) -> Graphs | None:
    """Return the graphs of a compile mode; None for eager.

    ``mode``: None for graphs on a GPU.  If the compiler of ``inductor`` does not work on the
    device, a sentence is printed, and the mode is None.  Raises UserError for other modes, and for
    ``graphs`` without a GPU.
    """
    if mode == "inductor":
        inductor = Inductor(device)
        from torch._dynamo.exc import TorchDynamoException

        try:
            torch.compile(torch.sin, fullgraph=True)(torch.zeros(16, device=device))
        except TorchDynamoException as error:
            inductor.give_up(first_line(error))
            mode = None
        else:
            return inductor
    on_gpu = device.startswith("cuda")
    if mode not in (None, "eager", "graphs"):
        raise UserError(f"unknown compile mode '{mode}': use eager, graphs or inductor")
    if mode == "graphs" and not on_gpu:
        raise UserError(
            f"--compile graphs needs a CUDA device, but this run is on '{device}': give --compile"
            " eager"
        )
    if not on_gpu or mode == "eager":
        return None
    return Graphs()
