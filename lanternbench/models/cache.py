"""A static KV cache: one allocation per run, written by slot, committed in place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Slots = slice | Tensor  # the same for all rows; or places [R·H·N] in [R·H·S]


class LayerCache(NamedTuple):
    """One layer's keys and values during one forward."""

    store: Tensor  # [2, R, H, S, d]
    slots: Slots  # where the new positions go
    span: int  # slots that are attended to: 0 … span − 1 of every row

    def put(self, kv: Tensor) -> Tensor:
        """Store keys and values [2, R, H, N, d]; return a view of all that is attended to, [2, R, H, span, d]."""
        if isinstance(self.slots, slice):
            self.store.narrow(3, self.slots.start, kv.shape[3]).copy_(kv)
        else:
            self.store.flatten(1, 3).index_copy_(1, self.slots, kv.flatten(1, 3))
        return self.store.narrow(3, 0, self.span)


class StepCache(NamedTuple):
    """The cache as one forward sees it: where to write and how far to look."""

    cache: KVCache
    slots: Slots
    span: int

    def __getitem__(self, layer) -> LayerCache:  # type: ignore[override]
        return LayerCache(self.cache.layers[layer], self.slots, self.span)


class KVCache:
    """Keys and values [layers, 2, rows, heads, slots, head_dim]."""

    def __init__(self, layers: int, rows: int, slots: int, heads: int, head_dim: int, like: Tensor):
        """``like`` gives dtype and device."""
        self._hold(torch.zeros(layers, 2, rows, heads, slots, head_dim, dtype=like.dtype, device=like.device))

    def _hold(self, store: Tensor) -> None:
        _, _, self.rows, heads, self.slots, _ = store.shape
        self.store = store
        self.layers = list(store)
        self.first = torch.arange(self.rows * heads, device=store.device).view(self.rows, heads, 1) * self.slots

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these [R']."""
        self._hold(self.store.index_select(2, rows))

    def places(self, slots: Tensor) -> Tensor:
        """Slots [rows, N] (or [1, N]) -> places [rows · heads · N] among all slots of all rows and heads."""
        return (self.first + slots[:, None]).flatten()

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy what is in the places ``source`` to ``target`` in every layer: the commit of an accepted path."""
        store = self.store.flatten(2, 4)
        store.index_copy_(2, target, store.index_select(2, source))
