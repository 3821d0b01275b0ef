"""A decoder with its keys and values, and the places of a forward pass's inputs in them.

One allocation per run, written by slot, committed in place.  B prompts, b is 1 or B; R rows (B, or
2B with guidance, conditional rows first): values given per prompt serve both halves.  N nodes, n
inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.tree import MAX_DEPTH, Tree, numbers
from lanternbench.models.compiled import CacheParts, CompilationFailed, CompiledForward, watched
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.transformer import DecoderConfig, Depths, additive
from lanternbench.utils.graph_capture import Graphs


class Address(NamedTuple):
    """``slots`` and ``positions`` are slices if all prompts share them."""

    slots: Tensor | slice  # cache slots written, [b, n]
    positions: Tensor | slice  # rows of the rotary table, [b, n], or one for all inputs [b, 1]
    mask: Tensor | None  # additive [b, 1, n, span]; None: every slot below ``span`` is attended to
    span: int  # slots 0 … span − 1 are attended to


class Lengths(NamedTuple):
    """A count per prompt, on the device and on the host."""

    device: Tensor  # [B]
    host: tuple[int, ...] | None  # None while a CUDA graph is recorded: the host knows no length

    @property
    def shared(self) -> int | None:
        """The count of all prompts if the host knows that it is the same."""
        if self.host is None or min(self.host) != max(self.host):
            return None
        return self.host[0]

    @property
    def longest(self) -> int:
        """The largest count; 0 while a CUDA graph is recorded."""
        return 0 if self.host is None else max(self.host)


class Span:
    """The number of slots that a recorded forward pass attends to."""

    def __init__(self, slots: int):
        self.slots = slots
        self.asked = False  # whether the recorded work depends on it

    def __call__(self) -> int:
        self.asked = True
        return self.slots


@dataclass(frozen=True, eq=False)
class Layout:
    """The slots of image tokens in one decoder's cache, in raster order, and of row ends.

    No row end follows the last row.
    """

    # of the n-th image token, n = 1, 2, …; slots[0] is the slot before the image
    slots: tuple[int, ...]
    slot_of: Tensor  # the same on the device
    row_end_after: tuple[bool, ...]  # whether a row end follows the n-th image token
    row_end_of: Tensor  # the same on the device
    capacity: int  # slots of the cache
    lag: int  # rotary positions minus slots
    width: int  # image tokens a row if row ends follow, else 0

    def any_row_end(self, lengths: Lengths, depth: int = 0) -> bool:
        """Return whether a row end may follow any prompt's last token, or ``depth`` after it."""
        if not self.width:
            return False
        if lengths.host is None:
            return True
        return any(True in self.row_end_after[n : n + depth + 1] for n in lengths.host)


@lru_cache(maxsize=64)
def raster(
    length: int,
    width: int,
    before: int,
    lag: int,
    capacity: int,
    device: torch.device,
) -> Layout:
    """Lay out ``length`` image tokens, and drafts past them, after ``before`` slots.

    width: see ``Layout``
    """
    slots: list[int] = []
    ends: list[bool] = []
    for n in range(capacity + MAX_DEPTH + 1):
        row_ends_before = 0
        if width and n:
            row_ends_before = (n - 1) // width
        is_inside = 0 < n < length
        slots.append(before - 1 + n + row_ends_before)
        ends.append(bool(width) and is_inside and n % width == 0)
    slot_of = torch.tensor(slots, device=device)
    row_end_of = torch.tensor(ends, device=device)
    return Layout(tuple(slots), slot_of, tuple(ends), row_end_of, capacity, lag, width)


@cache
def causal(n: int, device: torch.device) -> Tensor:
    """Return the additive mask of inputs that attend to themselves and earlier ones: [1, n, n]."""
    everything = torch.ones(1, n, n, dtype=torch.bool, device=device)
    return additive(everything.tril())


def prefix_address(valid: Tensor, first_position: int = 0, pad_rows: str = "alone") -> Address:
    """Address the prompt in slots 0 … P − 1; valid [R, P]; ``pad_rows``: see ``prefix_mask``."""
    n = valid.shape[1]
    positions = slice(first_position, first_position + n)
    mask = additive(prefix_mask(valid, n, pad_rows))
    return Address(slice(0, n), positions, mask, n)


def run_address(start: int, n: int, visible: Tensor | None = None) -> Address:
    """Address ``n`` inputs at slots and positions from ``start`` on; visible: [b, n, n]."""
    return shared_address(start, 0, n, slice(start, start + n), visible)


def shared_address(
    base: int,
    first: int,
    n: int,
    positions: Tensor | slice,
    visible: Tensor | None,
) -> Address:
    """Address inputs as ``Cursor.entries`` does, for prompts of the same length."""
    start = base + first
    mask = None
    if visible is not None:
        mask = F.pad(visible[:, None], (base, 0))
    return Address(slice(start, start + n), positions, mask, start + n)


class Cursor(NamedTuple):
    """The end of the committed tokens in one cache, from which new inputs are addressed."""

    layout: Layout
    lengths: Lengths  # committed image tokens
    shared: int | None  # see ``Lengths.shared``
    span: Span | None = None  # while a CUDA graph is recorded

    def tree(self, tree: Tree, visible: Tensor | None, is_chain: bool = False) -> Address:
        """Address a draft tree without row ends.

        visible: additive [b, N, N] of its ancestors; None for a lone root.
        """
        n = tree.depth.shape[1]
        if self.shared is None:
            root = self.layout.slot_of[self.lengths.device]
            return self.entries(root, 0, n, root[:, None] + tree.depth, visible)
        base = self.layout.slots[self.shared]
        if is_chain:
            return shared_address(base, 0, n, slice(base, base + n), visible)
        return shared_address(base, 0, n, tree.depth + base, visible)

    def append(self, new: Lengths, n: int) -> Address:
        """Address the last ``new`` ≤ n committed tokens of every prompt; the rest of n is void.

        None of the tokens follows a row end.
        """
        layout = self.layout
        visible = None if n == 1 else causal(n, new.device.device)
        fresh = new.shared
        if self.shared is None or fresh is None:
            # the slot after the tokens before
            after = layout.slot_of[self.lengths.device - new.device] + 1
            offsets = torch.arange(layout.lag, layout.lag + n, device=after.device)
            return self.entries(after, 0, n, after[:, None] + offsets, visible)
        base = layout.slots[self.shared - fresh] + 1
        position = base + layout.lag
        positions = slice(position, position + n)
        return shared_address(base, 0, n, positions, visible)

    def level(
        self,
        filled: int,
        m: int,
        depth: int,
        visible: Tensor | None,
        past: int = 0,
    ) -> Address:
        """Address ``m`` drafted nodes at ``depth``, after ``filled`` slots of this step.

        visible: additive [b, m, filled + m] (None: all of them); ``past`` 1: row ends after nodes
        of that depth.
        """
        layout = self.layout
        beyond = layout.lag + past
        if self.shared is None:
            lengths = self.lengths.device
            each_position = layout.slot_of[lengths + depth] + beyond
            base = layout.slot_of[lengths] + 1
            return self.entries(base, filled, m, each_position[:, None], visible)
        position = layout.slots[self.shared + depth] + beyond
        one_position = slice(position, position + 1)
        base_slot = layout.slots[self.shared] + 1
        return shared_address(base_slot, filled, m, one_position, visible)

    def entries(
        self,
        base: Tensor,
        first: int,
        n: int,
        positions: Tensor,
        visible: Tensor | None,
    ) -> Address:
        """Address ``n`` entries in slots base [B] + ``first`` … of prompts of different lengths.

        All slots before base are attended to; visible: additive [b, n, first + n] over the slots
        from base on, None: all.
        """
        width = first + n
        span = min(self.reach(width), self.layout.capacity)
        if visible is None:
            visible = torch.zeros(1, n, width, device=base.device)
        # number of the entry in each slot, negative before base
        column = torch.arange(span, device=base.device) - base[:, None]
        column = column[:, None]  # [B, 1, span]
        index = column.clamp(0, width - 1).expand(-1, n, -1)
        visible = visible.expand(len(base), -1, -1)
        entries = visible.gather(-1, index)
        entries = entries.masked_fill(column >= width, -torch.inf)
        mask = torch.where(column < 0, 0.0, entries)
        offsets = torch.arange(first, width, device=base.device)
        slots = base[:, None] + offsets
        return Address(slots, positions, mask[:, None], span)

    def reach(self, width: int) -> int:
        """Return how many slots hold the committed tokens and ``width`` more."""
        if self.span is not None:
            return self.span()
        return self.layout.slots[self.lengths.longest] + 1 + width


class DecoderCache:
    """``net``: (inputs, rotary embedding, mask, put, last) -> states, as ``transformer.Stack``."""

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
        _, rows, heads, capacity, _ = store.shape
        self.store = store
        self.layers = list(store)
        self.rows = rows
        # where each row's and head's slots begin
        lines = torch.arange(rows * heads, device=store.device) * capacity
        self.lines = lines.view(rows, -1, 1)

    def _rows(self, rope: Tensor) -> Tensor:
        """Return a rotary table with a row for every slot: drafts past the image need one too."""
        missing = max(0, self.layout.capacity + 1 - len(rope))
        beyond = rope[-1:].expand(missing, -1)
        return torch.cat([rope, beyond])[:, None]

    def reset(self, rope: Tensor) -> None:
        """Empty it and take another rotary table, in the memory that recordings read."""
        self.store.zero_()
        self.rope.copy_(self._rows(rope))
        if self.pads is not None:
            self.pads.zero_()

    def forward(
        self,
        x: Tensor,
        at: Address,
        last: bool = False,
        aux_layers: Depths = (),
    ) -> Tensor:
        """x [R, n, dim] -> states [R, n, (1 + aux) · dim], or [R, 1, dim] of the ``last`` one."""
        rope = self.rope[at.positions]
        if isinstance(at.positions, Tensor):
            rope = self.per_row(rope)
        mask = at.mask
        if mask is not None:
            if mask.dtype != self.dtype:
                mask = mask.to(self.dtype)
            mask = self.per_row(mask)
        if self.pads is not None:
            pads = self.pads[..., : at.span]
            if mask is None:
                mask = pads.expand(-1, -1, x.shape[1], -1)
            else:
                mask = mask + pads
        if isinstance(at.slots, Tensor) and self.compiled is not None and not watched():
            parts = CacheParts(self.keys, self.values, self.per_row(at.slots), at.span)
            angles = torch.view_as_real(rope)
            try:
                return self.compiled(x, angles, mask, parts, last, aux_layers)
            except CompilationFailed:
                self.compiled = None
        if isinstance(at.slots, slice):
            put = partial(write_run, self.layers, at.slots.start, at.span)
        else:
            put = partial(write_places, self.layers, self.places(at.slots), at.span)
        if aux_layers:
            return self.net(x, rope, mask, put, last, aux_layers)
        return self.net(x, rope, mask, put, last)

    def compile(self, graphs: Graphs) -> None:
        """Let forward passes whose slots are tensors run in ``graphs``' fused kernels, if any."""
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
        """Return the states [R, 1, dim] of each prompt's last entry, number ``count``."""
        if len(count.device) == 1 and count.host is not None:  # a single prompt has none
            return self.forward(x, at, last=True)
        last = (count.device - 1).clamp(min=0)[:, None]
        return self.states_at(self.forward(x, at), last)

    def cursor(self, lengths: Lengths, span: Span | None) -> Cursor:
        """Return the end of ``lengths`` committed image tokens."""
        return Cursor(self.layout, lengths, lengths.shared, span)

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

    def path_moves(
        self, length: Tensor, path: Tensor, nodes: int, row_ends: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the places of an accepted path, and of its ``row_ends`` if they were inputs: where
        they are, and where they belong.

        path [B, D + 1] in a draft of ``nodes`` nodes, after ``length`` [B] committed tokens
        """
        layout = self.layout
        count = length[:, None] + numbers(path.shape[1], path.device)
        computed = layout.slot_of[length][:, None] + path
        belong = layout.slot_of[count]
        if row_ends:
            unread = layout.capacity - 1
            row_end = torch.where(layout.row_end_of[count], belong + 1, unread)
            computed = torch.cat([computed, computed + nodes], 1)
            belong = torch.cat([belong, row_end], 1)
        return self.places(computed), self.places(belong)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy the places ``source`` to ``target`` in every layer, to commit an accepted path."""
        store = self.store.flatten(1, 3)
        store.index_copy_(1, target, store.index_select(1, source))

    def select(self, rows: Tensor) -> DecoderCache:
        """Return a cache of these rows [R'] alone."""
        other = copy(self)
        other._hold(self.store.index_select(1, rows))
        other.compiled = None  # it writes the other store
        if self.pads is not None:
            other.pads = self.pads[rows]
        return other

    def per_row(self, x: Tensor) -> Tensor:
        """[B, …] -> [R, …]: repeat for the unconditional half; a single prompt broadcasts."""
        prompts = x.shape[0]
        if prompts in (1, self.rows):
            return x
        return torch.cat([x] * (self.rows // prompts))

    def all_rows(self, x: Tensor) -> Tensor:
        """[B, …] -> [R, …], a single prompt expanded as well."""
        if x.shape[0] == 1:
            return x.expand(self.rows, *x.shape[1:])
        return self.per_row(x)

    def states_at(self, states: Tensor, index: Tensor) -> Tensor:
        """states [R, N, dim] at index [B, n] -> [R, n, dim]."""
        rows = self.per_row(index)[..., None]
        return states.gather(1, rows.expand(len(states), -1, states.shape[-1]))


def write_run(layers: list[Tensor], start: int, span: int, layer: int, kv: Tensor) -> Tensor:
    """Write keys and values [R, 2K, n, d] of a layer to n slots from ``start`` on.

    Returns those in the first ``span`` slots.
    """
    slots = layers[layer]
    slots.narrow(2, start, kv.shape[2]).copy_(kv)
    return slots.narrow(2, 0, span)


def write_places(
    layers: list[Tensor],
    places: Tensor,
    span: int,
    layer: int,
    kv: Tensor,
) -> Tensor:
    """Write as ``write_run`` does, to ``places`` among all slots of all rows and heads."""
    slots = layers[layer]
    slots.flatten(0, 2).index_copy_(0, places, kv.flatten(0, 2))
    return slots.narrow(2, 0, span)
