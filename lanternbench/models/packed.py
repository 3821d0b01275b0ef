"""Linear layers whose weights oneDNN has laid out for a CPU once, at load: a few rows then cost about what one does.

Speculation on a CPU depends on it: of a 1280 × 3840 layer, plain float32 takes 3.6 times as long for the 12 rows of six
guided nodes as packed float32 takes for one row's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SMALLEST = 2**18  # weights; below, calling oneDNN costs more than the layout gains


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference on a CPU; the weight's layout is oneDNN's own."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def available() -> bool:
    """Does this build of torch offer packed layers?"""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def pack(net: nn.Module) -> nn.Module:
    """Replace every large linear layer of ``net`` that is on a CPU, one at a time: no more than one is held twice."""
    if not available():
        return net
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.weight.numel() >= SMALLEST and child.weight.device.type == "cpu":
                setattr(parent, name, PackedLinear(child))
                del child
    return net
