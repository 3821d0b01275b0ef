"""A static KV cache: one allocation per run, written by slot, committed in place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LayerCache(NamedTuple):
    """One layer's keys and values during one forward."""

    keys: Tensor  # [R·S, H, d]
    values: Tensor  # [R·S, H, d]
    slots: Tensor  # [R·N] where the new positions go
    rows: int
    span: int  # slots that are attended to: 0 … span − 1 of every row

    def put(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [R, N, H, d]; return views of all that is attended to, [R, span, H, d]."""
        self.keys.index_copy_(0, self.slots, k.flatten(0, 1))
        self.values.index_copy_(0, self.slots, v.flatten(0, 1))
        k_all = self.keys.unflatten(0, (self.rows, -1))
        v_all = self.values.unflatten(0, (self.rows, -1))
        return k_all[:, : self.span], v_all[:, : self.span]


class StepCache(NamedTuple):
    """The cache as one forward sees it: where to write and how far to look."""

    cache: KVCache
    slots: Tensor
    span: int

    def __getitem__(self, layer) -> LayerCache:  # type: ignore[override]
        store = self.cache.store[layer]
        return LayerCache(store[0], store[1], self.slots, self.cache.rows, self.span)


class KVCache:
    """Keys and values [layers, 2, rows · slots, heads, head_dim]; ``rows`` and ``slots`` never change."""

    def __init__(self, layers: int, rows: int, slots: int, heads: int, head_dim: int, like: Tensor):
        """``like`` gives dtype and device."""
        self.rows, self.slots = rows, slots
        self.store = torch.zeros(layers, 2, rows * slots, heads, head_dim, dtype=like.dtype, device=like.device)
        self.base = torch.arange(rows, device=like.device)[:, None] * slots  # first flat slot of each row

    def flat(self, slots: Tensor) -> Tensor:
        """Slots [rows, N] (or [1, N]) -> flat indices [rows · N]."""
        return (self.base + slots).flatten()

    def step(self, slots: Tensor, span: int) -> StepCache:
        """For one forward that writes ``slots`` [rows, N] and attends to the first ``span`` slots of each row."""
        return StepCache(self, self.flat(slots), span)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots ``source`` [rows, A] to ``target`` [rows, A] in every layer: the commit of an accepted path."""
        self.store.index_copy_(2, self.flat(target), self.store.index_select(2, self.flat(source)))
