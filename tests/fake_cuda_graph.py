"""A stand-in for CUDA graphs on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lanternbench.engine import sampling

# values from the host, and shapes that it must learn
FROM_HOST = ("lift_fresh", "nonzero", "masked_select", "unique")
# values for the host
FOR_HOST = ("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose")


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
        with Recording(inputs) as recording:
            outputs = recording.replaced(work(*inputs))
    replay = in_place(recording.replay(outputs))
    replay.reads = recording.constants(len(inputs))  # type: ignore[attr-defined]
    return replay


class Place(NamedTuple):
    """Where a replay finds a tensor among its values."""

    index: int


class Operation(NamedTuple):
    """An operation with places instead of tensors; ``at``: of what it returns."""

    run: Any
    args: Any
    kwargs: dict[str, Any]
    at: Any


class Recording(TorchDispatchMode):
    """Notes every operation, and with places the tensors that it reads and returns."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.values: list[Tensor] = []  # by place; all are held, or an id could come again
        self.places: dict[int, Place] = {}  # by id
        self.made: set[int] = set()  # places of what an operation returned anew
        for x in inputs:
            self.place(x)

    def place(self, x: Tensor) -> Place:
        if id(x) not in self.places:
            self.places[id(x)] = Place(len(self.values))
            self.values.append(x)
        return self.places[id(x)]

    def replaced(self, x: Any) -> Any:
        """What ``x`` holds, with places instead of tensors."""
        if isinstance(x, Tensor):
            return self.place(x)
        if isinstance(x, list | tuple):
            return [self.replaced(part) for part in x]
        return x

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not any(barred in name for barred in FROM_HOST), (
            "a CUDA graph could not record this"
        )
        if name in FOR_HOST:
            raise RuntimeError(f"{func}: a CUDA graph has no values for the host")
        read = self.replaced(args)
        named = {key: self.replaced(x) for key, x in (kwargs or {}).items()}
        known = len(self.values)
        output = func(*args, **(kwargs or {}))
        at = self.replaced(output)
        self.made.update(range(known, len(self.values)))
        self.operations.append(Operation(func, read, named, at))
        return output

    def constants(self, inputs: int) -> list[Tensor]:
        """The tensors that no operation made, but for the first ones."""
        return [x for i, x in enumerate(self.values) if i >= inputs and i not in self.made]

    def replay(self, outputs: Any) -> Callable[[], Any]:
        """All operations again, on the inputs and constants; ``outputs``: their places."""
        known = [None if i in self.made else x for i, x in enumerate(self.values)]
        operations = self.operations

        def run() -> Any:
            values = list(known)
            for operation in operations:
                args = [_found(x, values) for x in operation.args]
                kwargs = {key: _found(x, values) for key, x in operation.kwargs.items()}
                _keep(operation.run(*args, **kwargs), operation.at, values)
            return _found(outputs, values)

        return run


def _found(x: Any, values: list[Any]) -> Any:
    if type(x) is Place:
        return values[x.index]
    if type(x) is list:
        return [_found(part, values) for part in x]
    return x


def _keep(output: Any, at: Any, values: list[Any]) -> None:
    if type(at) is Place:
        values[at.index] = output
    elif type(at) is list:
        for part, place in zip(output, at, strict=True):
            _keep(part, place, values)


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
