"""Select, convert and take apart the state of a batch without knowing the names of its parts.

State is any nesting of named tuples, tuples, lists and dicts.  Its parts are tensors whose first
dimension is the batch B or its rows R (2B with guidance), ``PerPrompt`` values on the host,
caches, and constants.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from lanternbench.engine.cache import DecoderCache

T = TypeVar("T")


class PerPrompt(tuple[Any, ...]):
    """One immutable value per prompt, on the host."""

    __slots__ = ()


def leaves(state: Any) -> list[Any]:
    """Return the parts of a state, in order."""
    found: list[Any] = []
    _collect(state, found)
    return found


def _collect(state: Any, found: list[Any]) -> None:
    parts: Iterable[Any] = state.values() if isinstance(state, dict) else (state,)
    if isinstance(state, tuple | list) and not isinstance(state, PerPrompt):
        parts = state
    for part in parts:
        # most parts are leaves, which a call each would make dear
        if isinstance(part, tuple | list | dict) and not isinstance(part, PerPrompt):
            _collect(part, found)
        else:
            found.append(part)


def rebuilt(state: T, parts: Iterator[Any]) -> T:
    """Return a state of the same structure with other ``parts``, in the order of ``leaves``."""
    whole: Any = state
    kind: Any = type(whole)
    if isinstance(whole, dict):
        entries = {key: rebuilt(part, parts) for key, part in whole.items()}
        return kind(entries)  # type: ignore[no-any-return]
    if isinstance(whole, tuple | list) and not isinstance(whole, PerPrompt):
        make = getattr(kind, "_make", kind)
        return make([rebuilt(part, parts) for part in whole])  # type: ignore[no-any-return]
    return next(parts)  # type: ignore[no-any-return]


def mapped(change: Callable[[Any], Any], state: T) -> T:
    """Return the state with each part changed."""
    return rebuilt(state, map(change, leaves(state)))


def select(state: T, prompts: list[int], batch: int) -> T:
    """Return the state of ``prompts`` alone, in this order; repeats are allowed.

    batch: B of the whole state
    """
    index = torch.tensor(prompts, dtype=torch.long)

    def chosen(leaf: Any) -> Any:
        if isinstance(leaf, PerPrompt):
            return PerPrompt([leaf[i] for i in prompts])
        if isinstance(leaf, DecoderCache):
            rows = rows_of(index, leaf.rows, batch)
            return leaf.select(rows.to(leaf.device))
        if isinstance(leaf, Tensor):
            rows = rows_of(index, len(leaf), batch)
            return leaf[rows.to(leaf.device)]
        return leaf

    return mapped(chosen, state)


def rows_of(prompts: Tensor, rows: int, batch: int) -> Tensor:
    """Indices of prompts [B'] -> indices of their rows [R'] in a tensor of B or 2B ``rows``."""
    if rows == batch:
        return prompts
    assert rows == 2 * batch, "the first dimension of carried tensors is the batch, or its rows"
    return torch.cat([prompts, prompts + batch])


def double(state: T) -> T:
    """Return the state with its floating-point tensors in double precision."""

    def doubled(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.double()
        return leaf

    return mapped(doubled, state)
