"""Row ends, the tokens that some models write after each row of an image.

They take no step of their own but are further inputs of a forward pass.  A row end is the child of
the node it follows, and whatever attends to that node attends to it as well.  While a graph is
recorded, the host knows no length: one is computed after every node, and nothing attends to one
that does not follow.

B prompts, R rows, N nodes, A new tokens, D depth of a tree.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.cache import Cursor, DecoderCache, Layout, Lengths, causal
from lanternbench.engine.state import Feed
from lanternbench.engine.tree import Tree, numbers
from lanternbench.models.transformer import additive

# states [R, m, dim] at rows' last tokens, like -> inputs of row ends
RowEnd = Callable[[Tensor, Tensor], Tensor]


def tree_row_ends(layout: Layout, count: Tensor) -> Tensor:
    """Return the nodes that a row end follows: bool [B, N]; count [B, N] tokens up to each."""
    return layout.row_end_of[count]


def tree_feed(cursor: Cursor, tokens: Tensor, tree: Tree) -> Feed:
    """Feed a draft tree's N nodes and then the N row ends that may follow them; tokens [B, N].

    The target's cache has no lag.
    """
    n = tokens.shape[1]
    slot_of = cursor.layout.slot_of
    length = cursor.lengths.device
    count = length[:, None] + tree.depth
    follows = tree_row_ends(cursor.layout, count)
    positions = slot_of[count]
    both = torch.cat([positions, positions + 1], 1)
    visible = additive(with_row_ends(tree.ancestors, follows))
    inputs = numbers(2 * n, follows.device)
    return Feed(
        tokens=torch.cat([tokens, tokens], 1),
        address=cursor.entries(slot_of[length], 0, 2 * n, both, visible),
        reads=torch.where(follows, inputs[n:], inputs[:n]),
        row_ends=inputs[None] >= n,
    )


@cache
def _others(n: int, device: torch.device) -> Tensor:
    """[n, n] bool: two different nodes."""
    return ~torch.eye(n, dtype=torch.bool, device=device)


def with_row_ends(ancestors: Tensor, follows: Tensor) -> Tensor:
    """Return what each of N nodes and the N row ends after them attends to: bool [B, 2N, 2N].

    follows [B, N]: the nodes that have a row end.
    """
    nodes = ancestors.expand(len(follows), -1, -1)
    ends = nodes & follows[:, None]
    earlier_ends = ends & _others(follows.shape[1], follows.device)
    of_nodes = torch.cat([nodes, earlier_ends], -1)
    of_row_ends = torch.cat([nodes, ends], -1)
    return torch.cat([of_nodes, of_row_ends], 1)


class Group(NamedTuple):
    """Drafted nodes next to each other in a drafter's cache."""

    nodes: int
    # whether they have row ends, in as many slots after them; bool [B] if some prompts have
    ends: bool | Tensor = False


Groups = tuple[Group, ...]
ROOT: Groups = (Group(1),)  # the root, whose own slot is before those of this step


def filled(groups: Groups) -> int:
    """Return the slots that a drafter has filled after the committed tokens in this step."""
    slots = -1
    for group in groups:
        slots += group.nodes
        if group.ends is not False:
            slots += group.nodes
    return slots


def spread(visible: Tensor | None, groups: Groups) -> Tensor | None:
    """Spread a mask over drafted nodes, additive [b, m, nodes], over the slots of this step.

    None: all are attended to.
    """
    ends = [group.ends for group in groups]
    partial = [x for x in ends if isinstance(x, Tensor)]
    if not partial and (visible is None or True not in ends):
        return visible
    sizes = [group.nodes for group in groups]
    if visible is None:
        visible = torch.zeros(1, 1, sum(sizes) - 1, device=partial[0].device)
    parts: list[Tensor] = []
    with_root = F.pad(visible, (1, 0))
    columns = with_root.split_with_sizes(sizes, -1)
    for group, nodes in zip(groups, columns, strict=True):
        parts.append(nodes)
        if isinstance(group.ends, Tensor):
            exists = additive(group.ends)
            parts.append(nodes + exists[:, None, None])
        elif group.ends:
            parts.append(nodes)
    parts = parts[1:]  # the root's slot is before those of this step
    rows = max(len(part) for part in parts)
    return torch.cat([part.expand(rows, -1, -1) for part in parts], -1)


class RowEnds(NamedTuple):
    """The inputs of a drafter's forward passes over row ends in one step."""

    cache: DecoderCache
    row_end: RowEnd
    cursor: Cursor

    def append(
        self,
        x: Tensor,
        before: Callable[[Tensor], Tensor] | None,
        new: Lengths,
    ) -> tuple[Tensor, Groups]:
        """Read the ``new`` last tokens of every prompt, with the row ends before and after them.

        ``before``: x [R, A, dim] -> inputs of row ends before each; None after the prompt, where
        there are none.  Returns the states [R, 1, dim] that predict the next token.
        """
        count = self.slots_of(new)
        if count is not None and count.host == new.host:
            before = None  # no row end lies before any of the new tokens
        if before is None:
            at = self.cursor.append(new, x.shape[1])
            states = self.cache.forward_last(x, at, new)
            return self._after(states, ROOT, None, 0)
        return self._append_with_row_ends(x, before(x), new, count)

    def slots_of(self, new: Lengths) -> Lengths | None:
        """Return how many slots the last ``new`` tokens and the row ends between them take.

        None: the host knows no length.
        """
        lengths = self.cursor.lengths.host
        if lengths is None or new.host is None:
            return None
        slots = self.cursor.layout.slots
        pairs = zip(lengths, new.host, strict=True)
        counts = tuple(slots[n] - slots[n - count] for n, count in pairs)
        return Lengths(new.device, counts)

    def _append_with_row_ends(
        self,
        x: Tensor,
        ends: Tensor,
        new: Lengths,
        count: Lengths | None,
    ) -> tuple[Tensor, Groups]:
        """Read tokens x with ``ends``, the inputs of row ends before each.

        ``count``: see ``slots_of``.
        """
        cache = self.cache
        layout = self.cursor.layout
        length = self.cursor.lengths.device
        tokens = x.shape[1]
        if count is None:
            n = tokens + 1 + tokens // layout.width
            host = None
        else:
            n = count.longest
            host = count.host
        start = length - new.device
        base = layout.slot_of[start] + 1
        slot = base[:, None] + numbers(n, x.device)
        token, is_end = token_in(slot - layout.slot_of[1], layout.width)
        index = token - start[:, None]
        index = index.clamp(0, tokens - 1)
        is_end = cache.per_row(is_end)[..., None]
        x = torch.where(is_end, cache.states_at(ends, index), cache.states_at(x, index))
        at = self.cursor.entries(base, 0, n, slot + layout.lag, causal(n, x.device))
        slots = Lengths(layout.slot_of[length] - layout.slot_of[start], host)
        return self._after(cache.forward_last(x, at, slots), ROOT, None, 0)

    def level(
        self,
        x: Tensor,
        groups: Groups,
        visible: Tensor | None,
        depth: int,
    ) -> tuple[Tensor, Groups]:
        """Read drafted nodes x [R, m, dim] at ``depth`` -> states there, or at their row ends."""
        m = x.shape[1]
        groups = (*groups, Group(m))
        at = self.cursor.level(filled(groups) - m, m, depth, spread(visible, groups))
        return self._after(self.cache.forward(x, at), groups, visible, depth)

    def _after(
        self,
        states: Tensor,
        groups: Groups,
        visible: Tensor | None,
        depth: int,
    ) -> tuple[Tensor, Groups]:
        """Replace the states [R, m, dim] at the last group's nodes by those at their row ends, for
        prompts that have these.
        """
        layout = self.cursor.layout
        lengths = self.cursor.lengths
        everywhere = False
        if lengths.host is not None:
            follow = [layout.row_end_after[n + depth] for n in lengths.host]
            if True not in follow:
                return states, groups
            everywhere = False not in follow
        follows = layout.row_end_of[lengths.device + depth]  # [B]
        first = filled(groups)
        groups = (*groups[:-1], groups[-1]._replace(ends=everywhere or follows))
        mask = spread(visible, groups)
        at = self.cursor.level(first, states.shape[1], depth, mask, past=1)
        after = self.cache.forward(self.row_end(states, states), at)
        if not everywhere:
            has_end = self.cache.per_row(follows)[:, None, None]
            after = torch.where(has_end, after, states)
        return after, groups


def token_in(slot: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return each slot's image token, or the one before its row end, and whether it is an end.

    Slots and tokens are counted from the image's first.
    """
    if not width:
        return slot, torch.zeros_like(slot, dtype=torch.bool)
    return slot - slot // (width + 1), slot % (width + 1) == width
