"""A decoder together with its keys and values: one allocation per run, written by slot, committed
in place.

R rows (B prompts, or 2B with guidance, conditional rows first); whatever is given per prompt
serves both halves.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.address import Address, Cursor, Layout, Lengths, Span
from lanternbench.engine.draft import additive
from lanternbench.models.compiled import CacheParts, CompilationFailed, CompiledForward, watched
from lanternbench.models.transformer import DecoderConfig, Depths
from lanternbench.utils.graph_capture import Graphs


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
        self.net = net
        self.layout = layout
        self.dtype = like.dtype
        self.device = like.device
        self.rope = self._rows(rope)
        self.pads: Tensor | None = None  # additive [R, 1, 1, capacity]
        # [dim] its embedding of a row end, if the target writes them
        self.row_end: Tensor | None = None
        self.compiled: CompiledForward | None = None  # forward passes whose slots are tensors
        store = torch.zeros(
            config.n_layer,
            rows,
            2 * config.kv_heads,
            layout.capacity,
            config.cache_width,
            dtype=like.dtype,
            device=like.device,
        )
        self._hold(store)

    def _hold(self, store: Tensor) -> None:
        """``store`` [layers, R, 2K, capacity, d], the keys' heads first."""
        self.store = store
        self.layers = list(store)
        self.rows = store.shape[1]
        lines = torch.arange(self.rows * store.shape[2], device=store.device)
        # where each row's and head's slots begin
        self.lines = (lines * store.shape[3]).view(self.rows, -1, 1)

    def _rows(self, rope: Tensor) -> Tensor:
        """A rotary table with a row for every slot: drafts past the image need one too."""
        missing = max(0, self.layout.capacity + 1 - len(rope))
        beyond = rope[-1:].expand(missing, -1)
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
        self, x: Tensor, at: Address, last: bool = False, aux_layers: Depths = ()
    ) -> Tensor:
        """x [R, n, dim] -> states [R, n, (1 + aux) · dim], or [R, 1, dim] of the ``last`` input
        alone.
        """
        rope = self.rope[at.positions]
        if isinstance(at.positions, Tensor):
            rope = self.per_row(rope)
        mask = at.mask
        if mask is not None:
            mask = self.per_row(mask.to(self.dtype))
        if self.pads is not None:
            pads = self.pads[..., : at.span]
            mask = pads.expand(-1, -1, x.shape[1], -1) if mask is None else mask + pads
        if isinstance(at.slots, Tensor) and self.compiled is not None and not watched():
            slots = self.per_row(at.slots)
            parts = CacheParts(self.keys, self.values, slots, at.span)
            states = self._in_fused_kernels(self.compiled, x, rope, mask, parts, last, aux_layers)
            if states is not None:
                return states
        if isinstance(at.slots, slice):
            put = partial(write_run, self.layers, at.slots.start, at.span)
        else:
            put = partial(write_places, self.layers, self.places(at.slots), at.span)
        if aux_layers:
            return self.net(x, rope, mask, put, last, aux_layers)
        return self.net(x, rope, mask, put, last)

    def _in_fused_kernels(
        self,
        compiled: CompiledForward,
        x: Tensor,
        rope: Tensor,
        mask: Tensor | None,
        parts: CacheParts,
        last: bool,
        aux_layers: Depths,
    ) -> Tensor | None:
        """As ``forward``; None if the forward pass cannot be compiled."""
        angles = torch.view_as_real(rope)
        try:
            return compiled(x, angles, mask, parts, last, aux_layers)
        except CompilationFailed:
            self.compiled = None
            return None

    def compile(self, graphs: Graphs) -> None:
        """Let forward passes whose slots are tensors run in fused kernels, if ``graphs`` has
        them.
        """
        self.compiled = graphs.compiled(self.net)
        if self.compiled is None:
            return
        # tensors that share no storage, so that a compiler may write one and read the others
        self.keys = []
        self.values = []
        for layer in self.layers:
            keys, values = layer.chunk(2, 1)
            self.keys.append(torch.from_dlpack(keys))
            self.values.append(torch.from_dlpack(values))

    def forward_last(self, x: Tensor, at: Address, count: Lengths) -> Tensor:
        """The states [R, 1, dim] of each prompt's last entry, where entries past ``count`` are
        void.
        """
        if len(count.device) == 1 and count.host is not None:  # a single prompt has none
            return self.forward(x, at, True)
        return self.states_at(self.forward(x, at), (count.device - 1).clamp(min=0)[:, None])

    def prefill(self, x: Tensor, at: Address, valid: Tensor, aux_layers: Depths = ()) -> Tensor:
        """The prompt x [R, P, dim] -> states; from then on its slots that are not valid [R, P] are
        hidden.
        """
        states = self.forward(x, at, aux_layers=aux_layers)
        self.hide_pads(valid)
        return states

    def cursor(self, lengths: Lengths, span: Span | None) -> Cursor:
        """The end of ``lengths`` committed image tokens."""
        return Cursor.at(self.layout, lengths, span)

    def hide_pads(self, valid: Tensor) -> None:
        """Let no later input attend to slots that are not valid [R, P]."""
        if bool(valid.all()):
            return
        after = self.layout.capacity - valid.shape[1]
        pads = additive(F.pad(valid, (0, after), value=True), self.dtype)[:, None, None]
        if self.pads is None:
            self.pads = pads
        else:
            self.pads.copy_(pads)  # recordings read it where it is

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
        other.compiled = None  # it writes the other store
        if self.pads is not None:
            other.pads = self.pads[rows]
        return other

    def per_row(self, x: Tensor) -> Tensor:
        """[B, …] -> [R, …]: repeat for the unconditional half; a single prompt broadcasts instead."""
        prompts = x.shape[0]
        if prompts in (1, self.rows):
            return x
        return torch.cat([x] * (self.rows // prompts))

    def all_rows(self, x: Tensor) -> Tensor:
        """[B, …] -> [R, …], a single prompt expanded as well."""
        return self.per_row(x).expand(self.rows, *x.shape[1:])

    def states_at(self, states: Tensor, index: Tensor) -> Tensor:
        """states [R, N, dim] at index [B, n] -> [R, n, dim]."""
        rows = self.per_row(index)[..., None]
        return states.gather(1, rows.expand(len(states), -1, states.shape[-1]))


def write_run(layers: list[Tensor], start: int, span: int, layer: int, kv: Tensor) -> Tensor:
    """Write keys and values [R, 2K, n, d] of a layer to n slots from ``start`` on; return those in
    the first ``span`` slots.
    """
    slots = layers[layer]
    slots.narrow(2, start, kv.shape[2]).copy_(kv)
    return slots.narrow(2, 0, span)


def write_places(
    layers: list[Tensor], places: Tensor, span: int, layer: int, kv: Tensor
) -> Tensor:
    """As ``write_run``, to ``places`` among all slots of all rows and heads."""
    slots = layers[layer]
    slots.flatten(0, 2).index_copy_(0, places, kv.flatten(0, 2))
    return slots.narrow(2, 0, span)
