"""The pieces, most important first: what the GPU is, whether it computes the same, then how fast."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from benchmarks.gpu import bars


class Piece(NamedTuple):
    """``where``: MODULE.FUNCTION, which fills a ``Result`` on a ``Machine``; imported by the
    process that measures.

    ``bars``: what it judges.  ``needs``: modules beyond those of the engine.
    """

    title: str
    where: str
    bars: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def measure(self) -> Callable[[Any, Any], None]:
        module, _, function = self.where.rpartition(".")
        return getattr(import_module(f"{__name__}.{module}"), function)


METRICS = ("torchmetrics", "torchvision", "open_clip")
PIECES: dict[str, Piece] = {
    "machine": Piece("The machine", "machine.measure"),
    "graphs": Piece(
        "Recorded steps against launched ones", "equal.graphs", (bars.GRAPHS, bars.ROW_ENDS)
    ),
    "syncs": Piece("How often the host waits", "equal.syncs", (bars.SYNCS,)),
    "ar": Piece("`ar` at LlamaGen-XL's shape", "baseline.measure", (bars.SHARE, bars.H200)),
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
    "embedded": Piece("Every preset on the embedded model", "embedded.measure", needs=("scipy",)),
    "networks": Piece("Networks of metrics", "networks.measure", needs=METRICS),
}
