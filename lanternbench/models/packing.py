"""Which of a network's layers are repacked for a CPU, and how (see ``packed``)."""

from __future__ import annotations

import ctypes
import sys

import torch
from torch import nn

from lanternbench.models.packed import HalfLinear, PackedLinear, QuickNorm, TransposedLinear, available
from lanternbench.models.target import Target
from lanternbench.models.transformer import RMSNorm

LARGE = 2**18  # weights of a layer from which oneDNN's layout pays off


def _give_back() -> None:
    """Return freed memory to the system: glibc would keep each unpacked weight, and hold everything twice."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def pack(net: nn.Module) -> None:
    """Replace the linear layers and norms of ``net`` that are on a CPU, one at a time: none but one is held twice."""
    kinds = (nn.Linear, RMSNorm)
    places = [(p, name) for p in net.modules() for name, child in p.named_children() if isinstance(child, kinds)]
    for parent, name in places:
        layer = getattr(parent, name)
        if layer.weight.device.type != "cpu":
            continue
        if isinstance(layer, RMSNorm):
            if layer.weight.dtype == torch.float32:
                setattr(parent, name, QuickNorm(layer))
        elif layer.weight.numel() < LARGE:
            setattr(parent, name, HalfLinear(layer) if HalfLinear.holds(layer) else TransposedLinear(layer))
        elif available(layer.weight.dtype):
            setattr(parent, name, PackedLinear(layer))
            del layer
            _give_back()


def packed(target: Target) -> Target:
    """``target``, its model and drafters packed in place."""
    for net in (target.model, *target.drafters.values()):
        pack(net)
    return target
