"""The pieces, most important first: what the GPU is, whether it computes the same, then how fast."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.gpu import bars

if TYPE_CHECKING:
    from benchmarks.gpu.machine import Machine
    from benchmarks.gpu.result import Result


class Piece(NamedTuple):
    """``where``: MODULE.FUNCTION, which fills a ``Result`` on a ``Machine``; imported by the
    process that measures.

    ``bars``: what it judges.  ``needs``: modules that docs/gpu.md does not list for every piece.
    """

    title: str
    where: str
    bars: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def measure(self) -> Callable[[Machine, Result], None]:
        module, _, function = self.where.rpartition(".")
        return getattr(import_module(f"{__name__}.{module}"), function)


PIECES: dict[str, Piece] = {
    "machine": Piece("The machine", "machine.measure"),
    "presets": Piece(
        "What is built, and the operators of a step", "presets.measure", (bars.BUILT,)
    ),
    "graphs": Piece(
        "Recorded steps against launched ones",
        "equal.graphs",
        (bars.GRAPHS, bars.ROW_ENDS, bars.GROUPED),
    ),
    "rounding": Piece("The same in bfloat16", "rounding.measure", (bars.ROUNDED,)),
    "syncs": Piece("How often the host waits", "equal.syncs", (bars.CONTROL, bars.SYNCS)),
    "ar": Piece("`ar` at LlamaGen-XL's shape", "baseline.measure", (bars.BASELINE,)),
    "compiled": Piece("Fused kernels: `--compile inductor`", "compiled.measure", (bars.COMPILED,)),
    "steps": Piece(
        "A step of every preset at LlamaGen-XL's shape",
        "steps.measure",
        (bars.COOL_SD, bars.OUTSIDE),
    ),
    "batches": Piece("Batches at LlamaGen-XL's shape", "batches.measure", (bars.BATCH_64,)),
    "batch": Piece("Batches against their prompts alone", "equal.batch", (bars.BATCH,)),
    "memory": Piece("Memory at LlamaGen-XL's shape", "memory.measure", (bars.MEMORY,)),
    "plain": Piece(
        "The plain transformers loop at LlamaGen-XL's shape",
        "baseline.plain",
        needs=("transformers",),
    ),
    "anole": Piece("Anole-7B's shape", "other_shapes.anole"),
    "janus": Piece("Janus-Pro-1B's shape", "other_shapes.janus"),
    "embedded": Piece(
        "Every preset on the bundled model", "embedded.measure", needs=("scipy", "rich")
    ),
    "networks": Piece(
        "Networks of metrics",
        "networks.measure",
        needs=("torchmetrics", "torchvision", "open_clip"),
    ),
}
