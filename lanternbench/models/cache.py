"""A static KV cache: one allocation per run, written by slot, committed in place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Slots = slice | Tensor  # the same for all rows; or places [R·H·N] in [R·H·S]


class LayerCache(NamedTuple):
    """One layer's keys and values [R, H, S, d] during one forward."""

    keys: Tensor
    values: Tensor
    slots: Slots  # where the new positions go
    span: int  # slots that are attended to: 0 … span − 1 of every row

    def put(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [R, N, H, d]; return views of all that is attended to, [R, H, span, d]."""
        for store, new in ((self.keys, k.transpose(1, 2)), (self.values, v.transpose(1, 2))):
            if isinstance(self.slots, slice):
                store.narrow(2, self.slots.start, new.shape[2]).copy_(new)
            else:
                store.flatten(0, 2).index_copy_(0, self.slots, new.flatten(0, 2))
        return self.keys.narrow(2, 0, self.span), self.values.narrow(2, 0, self.span)


class StepCache(NamedTuple):
    """The cache as one forward sees it: where to write and how far to look."""

    cache: KVCache
    slots: Slots
    span: int

    def __getitem__(self, layer) -> LayerCache:  # type: ignore[override]
        keys, values = self.cache.layers[layer]
        return LayerCache(keys, values, self.slots, self.span)


class KVCache:
    """Keys and values [layers, 2, rows, heads, slots, head_dim]."""

    def __init__(self, layers: int, rows: int, slots: int, heads: int, head_dim: int, like: Tensor):
        """``like`` gives dtype and device."""
        self._hold(torch.zeros(layers, 2, rows, heads, slots, head_dim, dtype=like.dtype, device=like.device))

    def _hold(self, store: Tensor) -> None:
        _, _, self.rows, heads, self.slots, _ = store.shape
        self.store = store
        self.layers = [(keys, values) for keys, values in store]
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
