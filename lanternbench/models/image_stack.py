"""A cached decoder that is addressed by image tokens: slots, positions and row ends are decided here and nowhere else.

Two uses.  A target runs a whole draft tree (``tree``) and moves the accepted path into place (``settle``).  A drafter
first appends the tokens of the last commit (``append``) and then runs drafted nodes level by level (``level``).

B prompts, R rows (2B with guidance), N nodes, D depth of the tree, P prefix slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.models.cached_stack import CachedStack, Lengths, additive, causal
from lanternbench.models.slot_layout import SlotLayout, with_row_ends


class TreeStates(NamedTuple):
    """The states of a tree's nodes: ``next`` [R, N, dim] predicts the token after each node.

    Where row ends are in between, ``own`` [R, N, dim] is the state of the node itself.
    """

    next: Tensor
    own: Tensor | None = None


class Settled(NamedTuple):
    """An accepted path: its states [R, D + 1, dim] (see ``TreeStates``), and which cache entries move where."""

    next: Tensor
    own: Tensor | None = None
    source: Tensor | None = None
    target: Tensor | None = None


class Block(NamedTuple):
    """Nodes ``first`` … ``stop`` − 1 of this step (node 0 is the root), or the row ends after them, side by side."""

    first: int
    stop: int
    void: Tensor | None = None  # [B] for row ends: where none follows


class Drafted(NamedTuple):
    """The slots that a drafter has filled after the appended tokens in this step, and the blocks that they hold."""

    slots: int = 0
    blocks: tuple[Block, ...] = (Block(0, 1),)


class ImageStack:
    """Of a model without row ends."""

    def __init__(self, stack: CachedStack, layout: SlotLayout, prefix: int, lag: int = 0):
        """``prefix``: position of image token 0; ``lag``: by how much slots are below positions in this cache."""
        self.stack, self.layout, self.first, self.lag = stack, layout, prefix - lag, lag

    def select(self, rows: Tensor) -> None:
        self.stack.select(rows)

    def spans(self, length: int, room: int) -> list[int]:
        """The spans for recordings with ``length`` committed tokens and ``room`` slots after them."""
        return self.stack.spans(self.first + self.layout.slot(length) + room)

    def base(self, lengths: Lengths, ahead: int = 0) -> Lengths:
        """The slot of image token ``length + ahead``."""
        if lengths.equal:
            assert lengths.host is not None
            return Lengths(lengths.device, tuple(self.layout.slot(n, ahead, self.first) for n in lengths.host))
        slots = self.layout.slot(lengths.device, ahead, self.first)
        host = lengths.host and tuple(self.layout.slot(n, ahead, self.first) for n in lengths.host)
        return Lengths(slots, host, lengths.span)

    def tree(self, x: Tensor, depth: Tensor, mask: Mask, lengths: Lengths) -> TreeStates:
        """All nodes of a tree, whose root is the last committed token, x [R, N, dim], depth [b, N]."""
        base, n = self.base(lengths, -1), x.shape[1]
        if not base.equal:
            position: Tensor | range = base.device[:, None] + depth
        else:
            assert base.host is not None
            position = range(base.host[0], base.host[0] + n) if mask.is_chain else depth + base.host[0]
        return TreeStates(self.stack.forward(x, position, base, 0, mask.visible))

    def settle(self, states: TreeStates, path: Tensor, columns: Tensor, lengths: Lengths, chain: bool) -> Settled:
        """The accepted path [B, D + 1] of node ids; columns = 0 … D."""
        if chain or path.shape[1] == 1:
            return Settled(states.next)
        base = self.stack.per_row(self.layout.slot(lengths.device, -1, self.first)[:, None])
        source = self.stack.cache.places(base + self.stack.per_row(path))
        return Settled(self._rows(states.next, path), None, source, self.stack.cache.places(base + columns))

    def _rows(self, hidden: Tensor, index: Tensor) -> Tensor:
        """hidden [R, N, dim] at index [B, n] -> [R, n, dim]."""
        rows = self.stack.per_row(index)[..., None]
        return hidden.gather(1, rows.expand(hidden.shape[0], -1, hidden.shape[-1]))

    def append(self, x: Tensor, before: Tensor | None, lengths: Lengths, new: Lengths) -> tuple[Tensor, Drafted]:
        """The ``new`` last tokens of every prompt, x [R, A, dim] (entries past ``new`` are void) -> hidden at the last.

        ``before`` [R, A, dim]: the target's state at the token before each, where a row end lies between them.
        Returns hidden [R, 1, dim].
        """
        n, start = x.shape[1], Lengths(lengths.device - new.device, _minus(lengths, new), lengths.span)
        base = self.base(start)
        if base.equal:
            assert base.host is not None
            at = base.host[0] + self.lag
            position: Tensor | range = range(at, at + n)
        else:
            position = base.device[:, None] + (self.lag + torch.arange(n, device=x.device))
        return self._run_new(x, position, base, new)

    def _run_new(self, x: Tensor, position: Tensor | range, base: Lengths, count: Lengths) -> tuple[Tensor, Drafted]:
        n = x.shape[1]
        alone = len(count.device) == 1 and count.host is not None  # else entries past ``count`` are void
        visible = None if n == 1 and count.host is not None else causal(n, x.dtype, x.device)
        hidden = self.stack.forward(x, position, base, 0, visible, last=alone)
        return (hidden if alone else at_last(hidden, count, self.stack)[:, None]), Drafted()

    def level(
        self, x: Tensor, visible: Tensor | None, depth: int, lengths: Lengths, drafted: Drafted
    ) -> tuple[Tensor, Drafted]:
        """Drafted nodes x [R, m, dim] at ``depth``; visible additive [b, m, nodes so far, root excluded]."""
        base = self.base(lengths)
        hidden = self.stack.forward(x, self._position(base, depth - 1), base, drafted.slots, visible)
        return hidden, drafted._replace(slots=drafted.slots + x.shape[1])

    def _position(self, slot: Lengths, ahead: int) -> Tensor | range:
        if not slot.equal:
            return (slot.device + (self.lag + ahead))[:, None]
        assert slot.host is not None
        at = slot.host[0] + self.lag + ahead
        return range(at, at + 1)


class Mask(NamedTuple):
    """Which nodes of a tree attend to which: ``visible`` additive [b, N, N], None where all earlier ones count."""

    ancestors: Tensor  # [b, N, N] bool
    visible: Tensor | None
    is_chain: bool
    max_depth: int


class RowEndStack(ImageStack):
    """Of a model that writes row ends: they cost no step of their own.

    While a graph is recorded, where the host knows no length, a row end is computed after every node; nothing attends
    to one that does not follow.
    """

    def __init__(
        self,
        stack: CachedStack,
        layout: SlotLayout,
        prefix: int,
        lag: int,
        row_end: Callable[[Tensor], Tensor],
    ):
        """``row_end``: states [R, m, dim] at rows' last tokens -> the row ends' inputs [R, m, dim]."""
        super().__init__(stack, layout, prefix, lag)
        self.row_end = row_end

    def spans(self, length: int, room: int) -> list[int]:
        return super().spans(length, 2 * room + 1)

    def tree(self, x: Tensor, depth: Tensor, mask: Mask, lengths: Lengths) -> TreeStates:
        if lengths.host is not None and not self.layout.any_follows([n - 1 for n in lengths.host], mask.max_depth):
            return super().tree(x, depth, mask, lengths)
        at = lengths.device[:, None] - 1 + depth  # the image token that a node drafts
        slot, ends = self.layout.slot(at, 0, self.first), self.layout.follows(at)
        x = torch.cat([x, self.row_end(x)], 1)
        visible = additive(with_row_ends(mask.ancestors, ends), self.stack.dtype)
        base = self.base(lengths, -1)
        own, after = self.stack.forward(x, torch.cat([slot, slot + 1], 1), base, 0, visible).chunk(2, 1)
        return TreeStates(torch.where(self.stack.per_row(ends)[..., None], after, own), own)

    def settle(self, states: TreeStates, path: Tensor, columns: Tensor, lengths: Lengths, chain: bool) -> Settled:
        if states.own is None:
            return super().settle(states, path, columns, lengths, chain)
        at, nodes = lengths.device[:, None] - 1 + columns, states.own.shape[1]
        ends, slot = self.layout.follows(at), self.layout.slot(at, 0, self.first)
        base = self.layout.slot(lengths.device, -1, self.first)[:, None]
        nowhere = self.stack.cache.slots - 1
        source = torch.cat([base + path, base + nodes + path], 1)
        target = torch.cat([slot, torch.where(ends, slot + 1, nowhere)], 1)
        source, target = (self.stack.cache.places(self.stack.per_row(x)) for x in (source, target))
        return Settled(self._rows(states.next, path), self._rows(states.own, path), source, target)

    def append(self, x: Tensor, before: Tensor | None, lengths: Lengths, new: Lengths) -> tuple[Tensor, Drafted]:
        layout, n = self.layout, x.shape[1]
        start = lengths.device - new.device
        base = Lengths(layout.end(start, self.first), None, lengths.span)
        filled: tuple[int, ...] | None = None
        if lengths.host is not None and new.host is not None:
            was = [m - c for m, c in zip(lengths.host, new.host, strict=True)]
            filled = tuple(layout.end(m) - layout.end(w) for m, w in zip(lengths.host, was, strict=True))
            base = base._replace(host=tuple(layout.end(w, self.first) for w in was))
        # may a row end lie before one of the new tokens?  There is none, and no state, before image token 0
        between = before is not None if filled is None else filled != new.host
        if between:
            n = n + 1 + n // layout.width if filled is None else max(filled)
        if base.equal and not between:
            assert base.host is not None
            at = base.host[0] + self.lag
            position: Tensor | range = range(at, at + n)
        else:
            slot = layout.end(start)[:, None] + torch.arange(n, device=x.device)
            position = slot + (self.first + self.lag)
            if between:
                assert before is not None
                x = self._with_row_ends(x, self.row_end(before), slot, start)
        count = Lengths(layout.end(lengths.device) - layout.end(start), filled)
        hidden, _ = self._run_new(x, position, base, count)
        return self._past_row_end(hidden, None, 0, lengths, Drafted())

    def _with_row_ends(self, x: Tensor, ends: Tensor, slot: Tensor, start: Tensor) -> Tensor:
        """Tokens from ``start`` [B] on and the row ends before them [R, A, dim] -> in slots [B, n]: [R, n, dim]."""
        token, is_end = self.layout.token(slot)
        index = (token - start[:, None]).clamp(0, x.shape[1] - 1)
        return torch.where(self.stack.per_row(is_end)[..., None], self._rows(ends, index), self._rows(x, index))

    def level(
        self, x: Tensor, visible: Tensor | None, depth: int, lengths: Lengths, drafted: Drafted
    ) -> tuple[Tensor, Drafted]:
        first = drafted.blocks[-1].stop
        drafted = drafted._replace(blocks=(*drafted.blocks, Block(first, first + x.shape[1])))
        hidden, drafted = self._place(x, visible, depth - 1, lengths, drafted)
        return self._past_row_end(hidden, visible, depth, lengths, drafted)

    def _past_row_end(
        self, hidden: Tensor, visible: Tensor | None, depth: int, lengths: Lengths, drafted: Drafted
    ) -> tuple[Tensor, Drafted]:
        """The states [R, m, dim] at the nodes last placed -> those at their row ends, where ``depth`` ends a row."""
        everywhere = False
        if lengths.host is not None:
            at = [m - 1 + depth for m in lengths.host]
            if not self.layout.any_follows(at):
                return hidden, drafted
            everywhere = all(map(self.layout.follows, at))
        ends = self.layout.follows(lengths.device + (depth - 1))  # [B]
        last = drafted.blocks[-1]._replace(void=None if everywhere else ~ends)
        drafted = drafted._replace(blocks=(*drafted.blocks, last))
        after, drafted = self._place(self.row_end(hidden), visible, depth - 1, lengths, drafted, past=1)
        if everywhere:
            return after, drafted
        return torch.where(self.stack.per_row(ends)[:, None, None], after, hidden), drafted

    def _place(
        self, x: Tensor, visible: Tensor | None, ahead: int, lengths: Lengths, drafted: Drafted, past: int = 0
    ) -> tuple[Tensor, Drafted]:
        """Run x [R, m, dim] in the next free slots, all at the position ``past`` image token length + ``ahead``."""
        end = Lengths(self.layout.end(lengths.device, self.first), None, lengths.span)
        if lengths.host is not None:
            end = end._replace(host=tuple(self.layout.end(n, self.first) for n in lengths.host))
        position = self._position(self.base(lengths, ahead), past)
        hidden = self.stack.forward(x, position, end, drafted.slots, self._attended(visible, drafted, x))
        return hidden, drafted._replace(slots=drafted.slots + x.shape[1])

    def _attended(self, visible: Tensor | None, drafted: Drafted, x: Tensor) -> Tensor | None:
        """A mask over nodes -> over the cache: what attends to a node attends to the row end after it as well."""
        blocks = drafted.blocks[1:]
        if drafted.slots + x.shape[1] == drafted.blocks[-1].stop - 1:
            return visible
        if visible is None:
            if all(block.void is None for block in blocks):
                return None
            visible = torch.zeros(1, x.shape[1], drafted.blocks[-1].stop - 1, device=x.device)
        voids = [block.void for block in blocks if block.void is not None]
        seen = F.pad(visible, (1, 0)).expand(len(voids[0]) if voids else -1, -1, -1)  # all attend to the root
        parts = []
        for block in blocks:
            part = seen[..., block.first : block.stop]
            parts.append(part if block.void is None else part.masked_fill(block.void[:, None, None], -torch.inf))
        return torch.cat(parts, -1)


def image_stack(
    stack: CachedStack, layout: SlotLayout, prefix: int, lag: int, row_end: Callable[[Tensor], Tensor] | None
) -> ImageStack:
    """The stack of a decoder: ``row_end`` None where its model writes none."""
    return (
        ImageStack(stack, layout, prefix, lag) if row_end is None else RowEndStack(stack, layout, prefix, lag, row_end)
    )


def _minus(a: Lengths, b: Lengths) -> tuple[int, ...] | None:
    return None if a.host is None or b.host is None else tuple(m - n for m, n in zip(a.host, b.host, strict=True))


def at_last(hidden: Tensor, count: Lengths, stack: CachedStack) -> Tensor:
    """The state of each prompt's last new entry: [R, A, dim] -> [R, dim]."""
    last = (count.device - 1).clamp(min=0)  # a finished prompt has nothing new
    index = stack.per_row(last)[:, None, None]
    return hidden.gather(1, index.expand(len(hidden), 1, hidden.shape[-1]))[:, 0]
