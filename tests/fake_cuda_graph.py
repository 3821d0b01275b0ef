"""A stand-in for CUDA graphs on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from lanternbench.engine import sampling

# values from the host, and shapes that it must learn
FROM_HOST = ("lift_fresh", "nonzero", "masked_select", "unique")


def on_host(x: Tensor) -> bool:
    """As on a GPU: what the host reads could not be recorded."""
    return False


def frozen(work: Callable[..., Any], inputs: list[Tensor]) -> Callable[[], Any]:
    """The operations that ``work`` runs now, with what Python decided frozen, as a CUDA graph has
    them.

    And as of a CUDA graph, the outputs are the same tensors each time.
    """
    with patch.object(sampling, "on_host", on_host):
        work(*inputs)  # as before a CUDA graph: what is made once, is made here
        recorded = make_fx(work)(*inputs)  # raises where Python asks for a value
    used = {str(node.target) for node in recorded.graph.nodes}
    assert not [op for op in used for barred in FROM_HOST if barred in op], (
        "a CUDA graph could not record this"
    )
    replay = in_place(lambda: recorded(*inputs))
    constants = [node.target for node in recorded.graph.nodes if node.op == "get_attr"]
    replay.reads = [x for name in constants if isinstance(x := getattr(recorded, name), Tensor)]  # type: ignore[attr-defined]
    return replay


def in_place(run: Callable[[], Any]) -> Callable[[], Any]:
    """``run``, whose outputs are the same tensors each time."""
    outputs = run()

    def replay() -> Any:
        found = run()
        for own, new in zip(
            *(x if isinstance(x, list) else [x] for x in (outputs, found)), strict=True
        ):
            own.copy_(new)
        return outputs

    return replay
