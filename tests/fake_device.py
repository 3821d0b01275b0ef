"""A stand-in for a GPU: tensors that are said to be on another device, and must not meet the
host's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fake_cuda_graph import in_place
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

THERE = torch.device("xpu")  # any name that torch knows; no such device is needed
INSIDE = torch.device("meta")  # what torch's own code sees in its place
aten = torch.ops.aten
ASK = (
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
)
INDEXES = (aten.index, aten.index_put_)  # by what may be the host's


class Elsewhere(Tensor):
    """A tensor ``there``, which computes on the host all the same."""

    there: Tensor

    @staticmethod
    def __new__(cls, there: Tensor) -> Elsewhere:
        layout = {
            "strides": there.stride(),
            "storage_offset": there.storage_offset(),
            "dtype": there.dtype,
        }
        made = Tensor._make_wrapper_subclass(cls, there.size(), device=INSIDE, **layout)
        made.there = there
        return made

    def __repr__(self) -> str:
        return f"Elsewhere({self.there})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} of a tensor that is elsewhere")


class Apart(TorchFunctionMode):
    """While it is entered, ``device=THERE`` makes tensors elsewhere.  As CUDA does, it refuses to
    mix them with others.

    ``asked``: how often the host waited, be it for a value or until it had brought one; ``sent``:
    how often it brought one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels = _Kernels()

    @property
    def asked(self) -> int:
        return self.kernels.asked

    @property
    def sent(self) -> int:
        return self.kernels.sent

    def record(self, work: Callable[..., Any], inputs: list[Tensor]) -> Callable[[], Any]:
        """In place of a CUDA graph: what it could not hold is refused, what it replays is done
        again.
        """
        work(*inputs)  # as before a CUDA graph: what is made once, is made here

        def run() -> Any:
            before = self.asked, self.sent
            found = work(*inputs)
            assert (self.asked, self.sent) == before, "a CUDA graph could not record this"
            return found

        return in_place(run)

    def __enter__(self) -> Apart:
        self.kernels.__enter__()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        self.kernels.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Elsewhere):
            if func == Tensor.device.__get__:
                return THERE
            if func is Tensor.tolist:
                return args[0].cpu().tolist()
            if func is Tensor.numpy:
                raise TypeError("numpy cannot read a tensor that is elsewhere")
            if func in (Tensor.__getitem__, Tensor.__setitem__):
                at = args[1] if isinstance(args[1], tuple) else (args[1],)
                args = (
                    args[0],
                    tuple(torch.tensor(x) if isinstance(x, list) else x for x in at),
                    *args[2:],
                )
        if func in (torch.device, torch._C._nn._parse_to) or not any(
            map(_named, (*args, *kwargs.values()))
        ):
            return func(*args, **kwargs)
        if func is torch.tensor:
            made = torch.tensor(*args, **{k: v for k, v in kwargs.items() if k != "device"})
            return self.__torch_function__(Tensor.to, (), (made, THERE))
        was, self.kernels.meant = self.kernels.meant, True
        try:
            there = [INSIDE if _named(x) else x for x in args]
            return func(*there, **{k: INSIDE if _named(x) else x for k, x in kwargs.items()})
        finally:
            self.kernels.meant = was


def _named(x: Any) -> bool:
    return isinstance(x, torch.device | str) and str(x) == str(THERE)


class _Kernels(TorchDispatchMode):
    """Every operation, on what the tensors elsewhere hold."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.sent = 0
        self.meant = False  # was THERE named?  INSIDE by itself is INSIDE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.overloadpacket is aten.to:  # inference mode leaves it whole
            with self:
                return func.decompose(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # what is asked of tensors here is not Apart's
            return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        kind = func.overloadpacket
        own: dict[int, Elsewhere] = {}  # by what they hold: in-place work returns its argument
        here: list[Tensor] = []  # without dimensions: a number, which may be met

        def bare(x: Any) -> Any:
            if type(x) is Elsewhere:
                own[id(x.there)] = x
                return x.there
            if isinstance(x, list | tuple):
                return [bare(part) for part in x]
            if isinstance(x, Tensor) and x.ndim:
                here.append(x)
            return x

        bare_args = [bare(x) for x in args]
        bare_kwargs = {key: bare(x) for key, x in kwargs.items()}
        if kind is aten._has_compatible_shallow_copy_type:
            return not (here and own)
        first_is_there = isinstance(args[0], Elsewhere) if args else False
        may_meet = kind is aten.copy_ or (kind in INDEXES and first_is_there)
        if here and own and (not may_meet or any(x.is_meta for x in here)):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
        device = kwargs.get("device")
        goes = first_is_there if kind is aten.copy_ else bool(own)
        if device is not None:
            goes = device == INSIDE and (self.meant or bool(own))
            bare_kwargs["device"] = torch.device("cpu") if goes else device
        self.asked += bool(own and (kind in ASK or not goes))
        if here and goes:
            self.sent += 1
            self.asked += not kwargs.get(
                "non_blocking", kind is aten.copy_ and len(args) > 2 and args[2]
            )

        def placed(x: Any) -> Any:
            if isinstance(x, Tensor):
                known = own.get(id(x))
                if known is not None:
                    return known
                return Elsewhere(x) if goes else x
            if isinstance(x, list | tuple):
                return type(x)(placed(part) for part in x)
            return x

        return placed(func(*bare_args, **bare_kwargs))
