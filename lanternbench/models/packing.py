"""Linear layers repacked for a CPU at load, so that a few rows of input cost little more than one.

Speculation on a CPU depends on it: of a 1280 × 3840 layer, plain float32 takes 3.6 times as long
for the 12 rows of six guided nodes as packed float32 takes for one row's.  Figures:
docs/performance.md.
"""

import ctypes
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lanternbench.models.target import Target
from lanternbench.models.transformer import RMSNorm

LARGE = 2**18  # weights of a layer from which oneDNN's layout pays off
MANY = 64  # rows of input from which it pays off for small layers too, with several threads


class Packed(nn.Module):
    """x [..., in] -> [..., out] for inference: as ``Direct``, but no hook is called, and weights
    are attributes.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def __init_subclass__(cls) -> None:
        cls.__call__ = cls.forward  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__[name] = value


class PackedLinear(Packed):
    """``nn.Linear`` for inference on a CPU; the weight is in oneDNN's layout."""

    def __init__(self, linear: nn.Linear):
        super().__init__(
            torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach()), linear.bias
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class TransposedLinear(Packed):
    """``nn.Linear`` for inference on a CPU with its weight as [in, out]: the faster order for
    small matrices.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.weight.detach().t().contiguous(), linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class HalfLinear(Packed):
    """``nn.Linear`` for inference on a CPU: weights in float16, products and sums in float32
    (FBGEMM).

    It reads half the bytes, and is exact where float16 holds every weight exactly (``holds``).  It
    uses one thread: with several threads, large batches use oneDNN's layout, packed on first use.
    As with any matrix product, on some machines the last bit of a row depends on the number of
    rows.
    """

    def __init__(self, linear: nn.Linear):
        bias, schema = (
            linear.bias,
            torch.ops.aten.fbgemm_linear_fp16_weight_fp32_activation.default._schema,
        )
        # earlier builds ask for one
        if bias is None and schema.arguments[2].type.kind() != "OptionalType":
            bias = torch.zeros(linear.out_features)
        super().__init__(linear.weight.detach().half(), bias)
        self._pack()

    def _pack(self) -> None:
        self.packed = torch.fbgemm_pack_gemm_matrix_fp16(self.weight.detach().float())
        self.for_many: Tensor | None = None

    def __getstate__(self) -> dict:
        # these cannot be copied
        return {k: v for k, v in self.__dict__.items() if k not in ("packed", "for_many")}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._pack()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() >= MANY and torch.get_num_threads() > 1 and available():
            if self.for_many is None:
                self.for_many = torch.ops.mkldnn._reorder_linear_weight(
                    self.weight.detach().float()
                )
            return torch.ops.mkldnn._linear_pointwise(x, self.for_many, self.bias, "none", [], "")
        return torch.fbgemm_linear_fp16_weight_fp32_activation(x, self.packed, self.bias)

    @staticmethod
    def holds(linear: nn.Linear) -> bool:
        """Whether ``linear`` is float32 with every weight exact in float16, and the operator is
        available.
        """
        weight = linear.weight.detach()
        usable = weight.dtype == torch.float32 and available(kind=HalfLinear)
        return usable and bool((weight.half().float() == weight).all())


class QuickNorm(Packed):
    """``RMSNorm`` for inference on a CPU in four kernels: x · w√d / √(|x|² + d·ε), the root being
    a hypotenuse's.
    """

    def __init__(self, norm: RMSNorm):
        width = norm.weight.shape[-1]
        super().__init__(norm.weight.detach() * width**0.5)
        self.floor = torch.tensor((width * norm.eps) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).div_(
            torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.floor)
        )


@cache
def available(
    dtype: torch.dtype = torch.float32, kind: Callable[[nn.Linear], nn.Module] = PackedLinear
) -> bool:
    """Does this build of torch run layers of this kind here?  (bfloat16 in oneDNN's layout: x86
    with AVX-512.)
    """
    try:
        # torch calls FBGEMM's operators deprecated, once
        with warnings.catch_warnings(action="ignore"):
            kind(nn.Linear(8, 8, dtype=dtype))(torch.zeros(1, 8, dtype=dtype))
    except (RuntimeError, AttributeError):
        return False
    return True


def pack(net: nn.Module) -> None:
    """Replace the linear layers and norms of ``net`` that are on a CPU, one at a time: none but
    one is held twice.
    """
    kinds = (nn.Linear, RMSNorm)
    places = [
        (p, name)
        for p in net.modules()
        for name, child in p.named_children()
        if isinstance(child, kinds)
    ]
    for parent, name in places:
        layer = getattr(parent, name)
        if layer.weight.device.type != "cpu":
            continue
        if isinstance(layer, RMSNorm):
            if layer.weight.dtype == torch.float32:
                setattr(parent, name, QuickNorm(layer))
        elif layer.weight.numel() < LARGE:
            setattr(
                parent,
                name,
                HalfLinear(layer) if HalfLinear.holds(layer) else TransposedLinear(layer),
            )
        elif available(layer.weight.dtype):
            setattr(parent, name, PackedLinear(layer))
            del layer
            if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
                # glibc would keep each unpacked weight, and hold everything twice
                libc.malloc_trim(0)


def packed(target: Target) -> Target:
    """``target``, its model and drafters packed in place."""
    for net in (target.model, *target.drafters.values()):
        pack(net)
    return target
