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

import torch
from torch import Tensor, nn

from lanternbench.models.target import Target
from lanternbench.models.transformer import RMSNorm

LARGE = 2**18  # weights of a layer from which oneDNN's layout pays off
MANY = 64  # rows of input from which it pays off for small layers too, with several threads


class Packed(nn.Module):
    """x [..., in] -> [..., out] for inference: as ``Direct``, but without hooks, and with weights
    as attributes.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None
        if bias is not None:
            self.bias = nn.Parameter(bias.detach(), requires_grad=False)

    def __init_subclass__(cls) -> None:
        cls.__call__ = cls.forward  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
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
    """``nn.Linear`` for inference on a CPU with its weight as [in, out], the faster order for
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

    It reads half the bytes, and is exact if float16 holds every weight exactly (``holds``).  It
    uses one thread: with several threads, large batches use oneDNN's layout, packed on first use.
    As with any matrix product, on some machines the last bit of a row depends on the number of
    rows.
    """

    def __init__(self, linear: nn.Linear):
        bias = linear.bias
        schema = torch.ops.aten.fbgemm_linear_fp16_weight_fp32_activation.default._schema
        needs_bias = schema.arguments[2].type.kind() != "OptionalType"  # in earlier builds
        if bias is None and needs_bias:
            bias = torch.zeros(linear.out_features)
        super().__init__(linear.weight.detach().half(), bias)
        self._pack()

    def _pack(self) -> None:
        self.packed = torch.fbgemm_pack_gemm_matrix_fp16(self.weight.detach().float())
        self.for_many: Tensor | None = None

    def __getstate__(self) -> dict:
        state = self.__dict__.copy()
        del state["packed"], state["for_many"]  # they cannot be copied
        return state

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._pack()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() >= MANY and torch.get_num_threads() > 1 and available():
            if self.for_many is None:
                weight = self.weight.detach().float()
                self.for_many = torch.ops.mkldnn._reorder_linear_weight(weight)
            return torch.ops.mkldnn._linear_pointwise(x, self.for_many, self.bias, "none", [], "")
        return torch.fbgemm_linear_fp16_weight_fp32_activation(x, self.packed, self.bias)

    @staticmethod
    def holds(linear: nn.Linear) -> bool:
        """Return whether ``linear`` is float32 with every weight exact in float16, and the
        operator is available.
        """
        weight = linear.weight.detach()
        if weight.dtype != torch.float32 or not available(kind=HalfLinear):
            return False
        return torch.equal(weight.half().float(), weight)


class QuickNorm(Packed):
    """``RMSNorm`` for inference on a CPU in four kernels: x · w√d / √(|x|² + d·ε), whose root is a
    hypotenuse.
    """

    def __init__(self, norm: RMSNorm):
        width = norm.weight.shape[-1]
        super().__init__(norm.weight.detach() * width**0.5)
        self.floor = torch.tensor((width * norm.eps) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.floor)
        return (x * self.weight).div_(length)


@cache
def available(
    dtype: torch.dtype = torch.float32, kind: Callable[[nn.Linear], nn.Module] = PackedLinear
) -> bool:
    """Return whether this build of torch runs layers of this kind on this processor.  (bfloat16 in
    oneDNN's layout: x86 with AVX-512.)
    """
    try:
        # torch calls FBGEMM's operators deprecated, once
        with warnings.catch_warnings(action="ignore"):
            kind(nn.Linear(8, 8, dtype=dtype))(torch.zeros(1, 8, dtype=dtype))
    except (RuntimeError, AttributeError):
        return False
    return True


def pack(net: nn.Module) -> None:
    """Replace the linear layers and norms of ``net`` that are on a CPU, one at a time: only one is
    held twice.
    """
    for parent, name in packable(net):
        layer = packed_layer(getattr(parent, name))
        setattr(parent, name, layer)
        if isinstance(layer, PackedLinear):
            free_memory()


def packable(net: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return parent and name of the linear layers and norms of ``net`` that are on a CPU."""
    places = []
    for parent in net.modules():
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear | RMSNorm) and layer.weight.device.type == "cpu":
                places.append((parent, name))
    return places


def packed_layer(layer: nn.Linear | RMSNorm) -> nn.Module:
    """Return the fastest layer with the outputs of ``layer``; itself if there is none."""
    dtype = layer.weight.dtype
    if isinstance(layer, RMSNorm):
        return QuickNorm(layer) if dtype == torch.float32 else layer
    if layer.weight.numel() >= LARGE:
        return PackedLinear(layer) if available(dtype) else layer
    if HalfLinear.holds(layer):
        return HalfLinear(layer)
    return TransposedLinear(layer)


def free_memory() -> None:
    """Hand unpacked weights back to the system: glibc would keep each, and hold everything
    twice.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def packed(target: Target) -> Target:
    """Pack the model and drafters of ``target`` in place, and return it."""
    for net in (target.model, *target.drafters.values()):
        pack(net)
    return target
