"""A decoder together with its keys and values: one allocation per run, written by slot, committed
in place.

R rows (B prompts, or 2B with guidance, conditional rows first); whatever is given per prompt
serves both halves.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.address import Address, Cursor, Layout, Lengths, Span
from lanternbench.engine.draft import additive
from lanternbench.models.transformer import AuxStates, DecoderConfig, Put


class DecoderCache:
    """``net``: (inputs, rotary embedding, mask, put, last) -> states, see ``transformer.Stack``."""

    def __init__(
        self,
        net: Callable[..., Tensor],
        config: DecoderConfig,
        layout: Layout,
        rows: int,
        rope: Tensor,
        like: Tensor,
    ):
        """``rope``: rotary table [positions, …]; ``like`` gives dtype and device."""
        self.net, self.layout, self.dtype, self.device = net, layout, like.dtype, like.device
        self.rope = self._rows(rope)
        self.pads: Tensor | None = None  # additive [R, 1, 1, capacity]
        # [dim] its embedding of a row end, where the target writes them
        self.row_end: Tensor | None = None
        shape = (config.n_layer, rows, 2 * config.kv_heads, layout.capacity, config.cache_width)
        self._hold(torch.zeros(shape, dtype=like.dtype, device=like.device))

    def _hold(self, store: Tensor) -> None:
        """``store`` [layers, R, 2H, capacity, d], the keys' heads first."""
        self.store, self.rows, self.layers = store, store.shape[1], list(store)
        lines = torch.arange(self.rows * store.shape[2], device=store.device) * store.shape[3]
        self.lines = lines.view(self.rows, -1, 1)  # where each row's and head's slots begin

    def _rows(self, rope: Tensor) -> Tensor:
        """A rotary table with a row for every slot: drafts past the image need one too."""
        beyond = rope[-1:].expand(max(0, self.layout.capacity + 1 - len(rope)), -1)
        return torch.cat([rope, beyond])[:, None]

    def reset(self, rope: Tensor) -> None:
        """Empty it, hide no pads and take another rotary table, in the memory that recordings
        read.
        """
        self.store.zero_()
        self.rope.copy_(self._rows(rope))
        if self.pads is not None:
            self.pads.zero_()

    def forward(
        self, x: Tensor, at: Address, last: bool = False, aux: AuxStates | None = None
    ) -> Tensor:
        """x [R, n, dim] -> states [R, n, dim], or [R, 1, dim] of the ``last`` input alone."""
        rope = self.rope[at.positions]
        if isinstance(at.positions, Tensor):
            rope = self.per_row(rope)
        mask = at.mask
        if mask is not None:
            mask = self.per_row(mask.to(self.dtype))
        if self.pads is not None:
            pads = self.pads[..., : at.span]
            mask = pads.expand(-1, -1, x.shape[1], -1) if mask is None else mask + pads
        if isinstance(at.slots, slice):
            put = self._write_run(at.slots.start, at.span)
        else:
            put = self._write_places(self.places(at.slots), at.span)
        if aux is not None:
            return self.net(x, rope, mask, put, last, aux)
        return self.net(x, rope, mask, put, last)

    def _write_run(self, start: int, span: int) -> Put:
        """Return a function that writes slots in a row from ``start`` on, and reads ``span``."""
        layers = self.layers

        def put(layer: int, kv: Tensor) -> Tensor:
            slots = layers[layer]
            slots.narrow(2, start, kv.shape[2]).copy_(kv)
            return slots.narrow(2, 0, span)

        return put

    def _write_places(self, places: Tensor, span: int) -> Put:
        """Return a function that writes ``places`` of each layer, and reads ``span`` slots."""
        layers = self.layers

        def put(layer: int, kv: Tensor) -> Tensor:
            slots = layers[layer]
            slots.flatten(0, 2).index_copy_(0, places, kv.flatten(0, 2))
            return slots.narrow(2, 0, span)

        return put

    def forward_last(self, x: Tensor, at: Address, count: Lengths) -> Tensor:
        """The states [R, 1, dim] of each prompt's last entry, where entries past ``count`` are
        void.
        """
        if len(count.device) == 1 and count.host is not None:  # a single prompt has none
            return self.forward(x, at, True)
        return self.states_at(self.forward(x, at), (count.device - 1).clamp(min=0)[:, None])

    def prefill(
        self, x: Tensor, at: Address, valid: Tensor, aux: AuxStates | None = None
    ) -> Tensor:
        """The prompt x [R, P, dim] -> states; from then on its slots that are not valid [R, P] are
        hidden.
        """
        states = self.forward(x, at, aux=aux)
        self.hide_pads(valid)
        return states

    def cursor(self, lengths: Lengths, span: Span | None) -> Cursor:
        """The end of ``lengths`` committed image tokens."""
        return Cursor.at(self.layout, lengths, span)

    def hide_pads(self, valid: Tensor) -> None:
        if not bool(valid.all()):
            seen = F.pad(valid, (0, self.layout.capacity - valid.shape[1]), value=True)
            pads = additive(seen, self.dtype)[:, None, None]
            # recordings read it where it is
            self.pads = pads if self.pads is None else self.pads.copy_(pads)

    def places(self, slots: Tensor) -> Tensor:
        """Slots [b, n] -> places [R · 2H · n] among all slots of all rows and heads."""
        return (self.lines + self.per_row(slots)[:, None]).flatten()

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy what is in the places ``source`` to ``target`` in every layer: the commit of an
        accepted path.
        """
        store = self.store.flatten(1, 3)
        store.index_copy_(1, target, store.index_select(1, source))

    def select(self, rows: Tensor) -> DecoderCache:
        """A cache of these rows [R'] alone."""
        other = copy(self)
        other._hold(self.store.index_select(1, rows))
        other.pads = None if self.pads is None else self.pads[rows]
        return other

    def per_row(self, x: Tensor) -> Tensor:
        """[B, …] -> [R, …]: repeat for the unconditional half; a single prompt broadcasts instead."""
        if x.shape[0] == 1 or x.shape[0] == self.rows:
            return x
        return x.repeat(self.rows // x.shape[0], *[1] * (x.ndim - 1))

    def all_rows(self, x: Tensor) -> Tensor:
        """[B, …] -> [R, …], a single prompt expanded as well."""
        return self.per_row(x).expand(self.rows, *x.shape[1:])

    def states_at(self, states: Tensor, index: Tensor) -> Tensor:
        """states [R, N, dim] at index [B, n] -> [R, n, dim]."""
        rows = self.per_row(index)[..., None]
        return states.gather(1, rows.expand(len(states), -1, states.shape[-1]))
