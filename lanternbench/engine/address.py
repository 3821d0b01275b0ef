"""Addresses: where the inputs of one forward stand in a cache, and what they attend to.

A draft tree, the tokens of a commit and the levels of a drafter differ in the function that
returns theirs. B prompts, b is 1 or B, N nodes.
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
    """``slots``, ``positions``: slices where all prompts share them."""

    slots: Tensor | slice  # cache slots written, [b, n]
    positions: Tensor | slice  # rows of the rotary table, [b, n], or one for all inputs [b, 1]
    mask: Tensor | None  # additive [b, 1, n, span]; None: every slot below ``span`` is attended to
    span: int  # slots 0 … span − 1 are attended to


class Lengths(NamedTuple):
    """A count per prompt, on the device and on the host, which does not know it while a CUDA graph
    is recorded.
    """

    device: Tensor  # [B]
    host: tuple[int, ...] | None
    shared: int | None = None  # the count of all prompts, where the host knows that it is the same
    span: int | None = None  # slots attended to, while a CUDA graph is recorded

    @classmethod
    def of(cls, device: Tensor, host: tuple[int, ...]) -> Lengths:
        return cls(device, host, host[0] if min(host) == max(host) else None)


@dataclass(frozen=True, eq=False)
class Layout:
    """The slots of image tokens in one decoder's cache, in raster order, and of row ends, which no
    last row has.
    """

    # of the n-th image token, n = 1, 2, …; slots[0] is the slot before the image
    slots: tuple[int, ...]
    slot_of: Tensor  # the same on the device
    row_end_after: tuple[bool, ...]  # does a row end follow the n-th image token?
    row_end_of: Tensor  # the same on the device
    capacity: int  # slots of the cache
    lag: int  # rotary positions minus slots
    width: int  # image tokens a row where row ends follow, else 0

    def any_row_end(self, lengths: Lengths, depth: int = 0) -> bool:
        """May a row end follow the last committed token of any prompt, or one of the ``depth``
        tokens after it?
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
    count = capacity + MAX_DEPTH + 1
    slots = tuple(before - 1 + n + ((n - 1) // width if width and n else 0) for n in range(count))
    ends = tuple(bool(width) and 0 < n < length and n % width == 0 for n in range(count))
    slot_of, row_end_of = (torch.tensor(x, device=device) for x in (slots, ends))
    return Layout(slots, slot_of, ends, row_end_of, capacity, lag, width)


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


def tree_address(
    layout: Layout, lengths: Lengths, tree: Tree, visible: Tensor | None, is_chain: bool
) -> Address:
    """A draft tree without row ends; visible: additive [b, N, N] of its ancestors, None for a lone
    root.
    """
    n = tree.depth.shape[1]
    if lengths.shared is None:
        root = layout.slot_of[lengths.device]
        return entries_address(layout, lengths, root, 0, n, root[:, None] + tree.depth, visible)
    base = layout.slots[lengths.shared]
    return shared_address(
        base, 0, n, slice(base, base + n) if is_chain else tree.depth + base, visible
    )


def append_address(layout: Layout, lengths: Lengths, new: Lengths, n: int) -> Address:
    """The last ``new`` ≤ n committed tokens of every prompt, none of them after a row end; the
    rest of n is void.
    """
    visible = None if n == 1 else causal(n, new.device.device)
    if lengths.shared is None or new.shared is None:
        after = layout.slot_of[lengths.device - new.device] + 1  # the slot after the tokens before
        positions = after[:, None] + torch.arange(layout.lag, layout.lag + n, device=after.device)
        return entries_address(layout, lengths, after, 0, n, positions, visible)
    base = layout.slots[lengths.shared - new.shared] + 1
    return shared_address(base, 0, n, slice(base + layout.lag, base + layout.lag + n), visible)


def level_address(
    layout: Layout,
    lengths: Lengths,
    filled: int,
    m: int,
    depth: int,
    visible: Tensor | None,
    past: int = 0,
) -> Address:
    """``m`` drafted nodes at ``depth`` in the next slots after ``filled`` ones of this step.

    visible: additive [b, m, filled + m] (None: all of them); ``past`` 1: row ends after nodes of
    that depth.
    """
    beyond = layout.lag + past
    if lengths.shared is None:
        positions = (layout.slot_of[lengths.device + depth] + beyond)[:, None]
        return entries_address(
            layout, lengths, layout.slot_of[lengths.device] + 1, filled, m, positions, visible
        )
    at = layout.slots[lengths.shared + depth] + beyond
    return shared_address(layout.slots[lengths.shared] + 1, filled, m, slice(at, at + 1), visible)


def shared_address(
    base: int, first: int, n: int, positions: Tensor | slice, visible: Tensor | None
) -> Address:
    """As ``entries_address``, of prompts that have the same length."""
    start, stop = base + first, base + first + n
    return Address(
        slice(start, stop),
        positions,
        None if visible is None else F.pad(visible[:, None], (base, 0)),
        stop,
    )


def entries_address(
    layout: Layout,
    lengths: Lengths,
    base: Tensor,
    first: int,
    n: int,
    positions: Tensor,
    visible: Tensor | None,
) -> Address:
    """Prompts of different lengths: ``n`` entries in slots base [B] + ``first`` …, all before base
    attended to.

    visible: additive [b, n, first + n] over the slots from base on; None: all.
    """
    width = first + n
    span = lengths.span or layout.slots[max(lengths.host or (0,))] + 1 + width
    span = min(span, layout.capacity)
    # [B, span], entry number where ≥ 0
    column = torch.arange(span, device=base.device) - base[:, None]
    if visible is None:
        visible = torch.zeros(1, n, width, device=base.device)
    index = column.clamp(0, width - 1)[:, None].expand(-1, n, -1)
    entries = visible.expand(len(base), -1, -1).gather(-1, index)
    entries = entries.masked_fill(column[:, None] >= width, -torch.inf)
    mask = torch.where(column[:, None] < 0, 0.0, entries)[:, None]
    return Address(
        base[:, None] + torch.arange(first, width, device=base.device), positions, mask, span
    )
