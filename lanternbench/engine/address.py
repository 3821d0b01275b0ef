"""Addresses: where the inputs of a forward pass stand in a cache, and what they attend to.

B prompts, b is 1 or B, N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.draft import MAX_DEPTH, Tree, additive
from lanternbench.models.decoder import prefix_mask


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
    """The slots of image tokens in one decoder's cache, in raster order, and of row ends, which no
    last row has.
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
        """Return whether a row end may follow the last committed token of any prompt, or one of
        the ``depth`` tokens after it.
        """
        if not self.width:
            return False
        if lengths.host is None:
            return True
        return any(True in self.row_end_after[n : n + depth + 1] for n in lengths.host)


@lru_cache(maxsize=64)
def raster(
    length: int, width: int, before: int, lag: int, capacity: int, device: torch.device
) -> Layout:
    """``length`` image tokens, and drafts past them, after ``before`` slots; ``width``: see
    ``Layout``.
    """
    slots: list[int] = []
    ends: list[bool] = []
    for n in range(capacity + MAX_DEPTH + 1):
        row_ends_before = (n - 1) // width if width and n else 0
        slots.append(before - 1 + n + row_ends_before)
        ends.append(bool(width) and 0 < n < length and n % width == 0)
    slot_of = torch.tensor(slots, device=device)
    row_end_of = torch.tensor(ends, device=device)
    return Layout(tuple(slots), slot_of, tuple(ends), row_end_of, capacity, lag, width)


@cache
def causal(n: int, device: torch.device) -> Tensor:
    """Additive mask [1, n, n] under which each of n new inputs attends to itself and the earlier
    ones.
    """
    return additive(torch.ones(1, n, n, dtype=torch.bool, device=device).tril())


def prefix_address(valid: Tensor, first_position: int = 0, pad_rows: str = "alone") -> Address:
    """The prompt in slots 0 … P − 1; valid [R, P]; ``pad_rows``: see ``prefix_mask``."""
    n = valid.shape[1]
    positions = slice(first_position, first_position + n)
    return Address(slice(0, n), positions, additive(prefix_mask(valid, n, pad_rows)), n)


def run_address(start: int, n: int, visible: Tensor | None = None) -> Address:
    """``n`` inputs in a row from slot ``start`` on, positions alike; visible additive [b, n, n]."""
    return shared_address(start, 0, n, slice(start, start + n), visible)


def shared_address(
    base: int, first: int, n: int, positions: Tensor | slice, visible: Tensor | None
) -> Address:
    """As ``Cursor.entries``, for prompts of the same length."""
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

    @classmethod
    def at(cls, layout: Layout, lengths: Lengths, span: Span | None) -> Cursor:
        return cls(layout, lengths, lengths.shared, span)

    def tree(self, tree: Tree, visible: Tensor | None, is_chain: bool) -> Address:
        """A draft tree without row ends; visible: additive [b, N, N] of its ancestors, None for a
        lone root.
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
        """The last ``new`` ≤ n committed tokens of every prompt, none of them after a row end; the
        rest of n is void.
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
        positions = slice(base + layout.lag, base + layout.lag + n)
        return shared_address(base, 0, n, positions, visible)

    def level(
        self, filled: int, m: int, depth: int, visible: Tensor | None, past: int = 0
    ) -> Address:
        """``m`` drafted nodes at ``depth`` in the next slots after ``filled`` ones of this step.

        visible: additive [b, m, filled + m] (None: all of them); ``past`` 1: row ends after nodes
        of that depth.
        """
        layout = self.layout
        beyond = layout.lag + past
        if self.shared is None:
            positions = (layout.slot_of[self.lengths.device + depth] + beyond)[:, None]
            base = layout.slot_of[self.lengths.device] + 1
            return self.entries(base, filled, m, positions, visible)
        position = layout.slots[self.shared + depth] + beyond
        base_slot = layout.slots[self.shared] + 1
        return shared_address(base_slot, filled, m, slice(position, position + 1), visible)

    def entries(
        self, base: Tensor, first: int, n: int, positions: Tensor, visible: Tensor | None
    ) -> Address:
        """``n`` entries in slots base [B] + ``first`` … of prompts of different lengths; all
        before base is attended to.

        visible: additive [b, n, first + n] over the slots from base on; None: all.
        """
        width = first + n
        span = min(self.reach(width), self.layout.capacity)
        # [B, span], entry number if ≥ 0
        column = torch.arange(span, device=base.device) - base[:, None]
        if visible is None:
            visible = torch.zeros(1, n, width, device=base.device)
        index = column.clamp(0, width - 1)[:, None].expand(-1, n, -1)
        entries = visible.expand(len(base), -1, -1).gather(-1, index)
        entries = entries.masked_fill(column[:, None] >= width, -torch.inf)
        mask = torch.where(column[:, None] < 0, 0.0, entries)[:, None]
        slots = base[:, None] + torch.arange(first, width, device=base.device)
        return Address(slots, positions, mask, span)

    def reach(self, width: int) -> int:
        """Return how many slots hold the committed tokens and ``width`` more."""
        if self.span is not None:
            return self.span()
        return self.layout.slots[self.lengths.longest] + 1 + width
