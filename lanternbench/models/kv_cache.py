"""A static KV cache: one allocation per run, written by slot, committed in place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Slots = slice | Tensor  # the same for all rows; or places [R·2H·N] in [R·2H·S]


class LayerCache(NamedTuple):
    """One layer's keys and values during one forward, those of all heads one after the other: keys first."""

    store: Tensor  # [R, 2H, S, d]
    slots: Slots  # where the new positions go
    span: int  # slots that are attended to: 0 … span − 1 of every row

    def put(self, kv: Tensor) -> Tensor:
        """Store keys and values [R, 2H, N, d]; return a view of all that is attended to, [R, 2H, span, d]."""
        if isinstance(self.slots, slice):
            self.store.narrow(2, self.slots.start, kv.shape[2]).copy_(kv)
        else:
            self.store.flatten(0, 2).index_copy_(0, self.slots, kv.flatten(0, 2))
        return self.store.narrow(2, 0, self.span)


class StepCache(NamedTuple):
    """The cache as one forward sees it: where to write, and how many slots to attend to."""

    cache: KVCache
    slots: Slots
    span: int

    def __getitem__(self, layer) -> LayerCache:  # type: ignore[override]
        return LayerCache(self.cache.layers[layer], self.slots, self.span)


class KVCache:
    """Keys and values [layers, rows, 2 · heads, slots, head_dim], the keys' heads first."""

    def __init__(self, layers: int, rows: int, slots: int, heads: int, head_dim: int, like: Tensor):
        """``like`` gives dtype and device."""
        self._hold(torch.zeros(layers, rows, 2 * heads, slots, head_dim, dtype=like.dtype, device=like.device))

    def _hold(self, store: Tensor) -> None:
        _, self.rows, heads, self.slots, _ = store.shape
        self.store = store
        self.layers = list(store)
        self.first = torch.arange(self.rows * heads, device=store.device).view(self.rows, heads, 1) * self.slots

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these [R']."""
        self._hold(self.store.index_select(1, rows))

    def places(self, slots: Tensor) -> Tensor:
        """Slots [rows, N] (or [1, N]) -> places [rows · 2 · heads · N] among all slots of all rows and heads."""
        return (self.first + slots[:, None]).flatten()

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy what is in the places ``source`` to ``target`` in every layer: the commit of an accepted path."""
        store = self.store.flatten(1, 3)
        store.index_copy_(1, target, store.index_select(1, source))
