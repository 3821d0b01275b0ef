"""A stand-in for CUDA graphs on any device."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx


def frozen(forward: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], Tensor]:
    """The operations that ``forward`` runs now, with what Python decided frozen, as a CUDA graph has them."""
    recorded = make_fx(forward)(*inputs)
    return lambda: recorded(*inputs)
