"""Select and convert the state of a batch without knowing the names of its parts.

State is any nesting of named tuples, tuples and dicts of tensors whose first dimension is the
batch B or its rows R (2B with guidance), ``PerPrompt`` values on the host, caches, and constants.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from lanternbench.engine.cache import DecoderCache


class PerPrompt(tuple):
    """One immutable value per prompt, on the host."""

    __slots__ = ()


def select(state: Any, prompts: list[int], batch: int) -> Any:
    """The state of ``prompts`` alone, in this order and with repeats allowed; ``batch``: B of the
    whole state.
    """
    index = torch.tensor(prompts, dtype=torch.long)

    def chosen(leaf: Any) -> Any:
        if isinstance(leaf, PerPrompt):
            return PerPrompt(leaf[i] for i in prompts)
        if isinstance(leaf, DecoderCache):
            return leaf.select(rows_of(index, leaf.rows, batch).to(leaf.device))
        if isinstance(leaf, Tensor):
            return leaf[rows_of(index, len(leaf), batch).to(leaf.device)]
        return leaf

    return tree_map(chosen, state, is_leaf=lambda x: isinstance(x, PerPrompt))


def rows_of(prompts: Tensor, rows: int, batch: int) -> Tensor:
    """Indices of prompts [B'] -> indices of their rows [R'] in a tensor of ``rows`` rows, which is
    B or 2B.
    """
    assert rows in (batch, 2 * batch), (
        "the first dimension of carried tensors is the batch, or its rows"
    )
    return prompts if rows == batch else torch.cat([prompts, prompts + batch])


def double(state: Any) -> Any:
    """The state with its floating-point tensors in double precision."""
    return tree_map(
        lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, state
    )
