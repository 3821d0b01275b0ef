"""Row ends, the tokens that some models write after each row of an image: they cost no step of
their own.

They are further inputs of a forward.  A row end is the child of the node it follows, and whoever
attends to that node attends to it as well.  While a graph is recorded, where the host knows no
length, one is computed after every node, and nothing attends to one that does not follow.

B prompts, R rows, N nodes, A new tokens, D depth of a tree.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.address import (
    Address,
    Layout,
    Lengths,
    append_address,
    causal,
    entries_address,
    level_address,
)
from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.draft import Tree, additive

# states [R, m, dim] at rows' last tokens, like -> inputs of row ends
RowEnd = Callable[[Tensor, Tensor], Tensor]


def tree_row_ends(layout: Layout, lengths: Lengths, tree: Tree) -> Tensor:
    """[B, N] after which nodes one follows."""
    return layout.row_end_of[lengths.device[:, None] + tree.depth]


def tree_address(layout: Layout, lengths: Lengths, tree: Tree, follows: Tensor) -> Address:
    """A draft tree's N nodes and, after them, the N row ends that may follow each."""
    # of the target, whose cache has no lag
    positions = layout.slot_of[lengths.device[:, None] + tree.depth]
    both = torch.cat([positions, positions + 1], 1)
    visible = additive(with_row_ends(tree.ancestors, follows))
    return entries_address(
        layout, lengths, layout.slot_of[lengths.device], 0, both.shape[1], both, visible
    )


def with_row_ends(ancestors: Tensor, follows: Tensor) -> Tensor:
    """Which of N nodes and, after them, row ends (``follows`` [B, N]) attend to which: bool [B,
    2N, 2N].
    """
    nodes = ancestors.expand(len(follows), -1, -1)
    upper = nodes & follows[:, None]
    itself = torch.eye(follows.shape[1], dtype=torch.bool, device=follows.device)
    return torch.cat([torch.cat([nodes, upper & ~itself], -1), torch.cat([nodes, upper], -1)], 1)


def path_slots(
    layout: Layout, lengths: Lengths, path: Tensor, columns: Tensor, nodes: int
) -> tuple[Tensor, Tensor]:
    """An accepted path [B, D + 1] with its row ends: the slots where they were computed, and where
    they belong.
    """
    count = lengths.device[:, None] + columns
    root, slot = layout.slot_of[lengths.device][:, None], layout.slot_of[count]
    # the last slot is never read
    end = torch.where(layout.row_end_of[count], slot + 1, layout.capacity - 1)
    return torch.cat([root + path, root + nodes + path], 1), torch.cat([slot, end], 1)


class Group(NamedTuple):
    """Drafted nodes side by side in a drafter's cache."""

    nodes: int
    # have they row ends, in as many slots after them?  bool [B] where some prompts have
    ends: bool | Tensor = False


Groups = tuple[Group, ...]
ROOT: Groups = (Group(1),)  # the root, whose own slot is before those of this step


def filled(groups: Groups) -> int:
    """Slots that a drafter has filled after the committed tokens in this step."""
    return sum(g.nodes * (1 + (g.ends is not False)) for g in groups) - 1


def spread(visible: Tensor | None, groups: Groups) -> Tensor | None:
    """A mask over drafted nodes, additive [b, m, nodes], -> over the slots of this step; None: all
    are attended to.
    """
    partial = [g.ends for g in groups if isinstance(g.ends, Tensor)]
    if all(g.ends is False for g in groups) or (visible is None and not partial):
        return visible
    if visible is None:
        visible = torch.zeros(1, 1, sum(g.nodes for g in groups) - 1, device=partial[0].device)
    columns, parts = F.pad(visible, (1, 0)).split([g.nodes for g in groups], -1), []
    for i, (group, nodes) in enumerate(zip(groups, columns, strict=True)):
        parts += [nodes] if i else []  # the root's slot is before those of this step
        if isinstance(group.ends, Tensor):
            nodes = nodes + additive(group.ends)[:, None, None]
        parts += [nodes] if group.ends is not False else []
    most = max(len(part) for part in parts)
    return torch.cat([part.expand(most, -1, -1) for part in parts], -1)


class RowEnds(NamedTuple):
    """What a drafter's forwards over row ends need in one step."""

    cache: DecoderCache
    row_end: RowEnd
    lengths: Lengths

    def append(
        self, x: Tensor, before: Callable[[Tensor], Tensor] | None, new: Lengths
    ) -> tuple[Tensor, Groups]:
        """The ``new`` last tokens of every prompt, x [R, A, dim], and the row ends before and
        after them.

        ``before``: like x -> inputs of row ends before each; None after the prompt, where there
        are none. Returns the states [R, 1, dim] that predict the next token.
        """
        cache, lengths, layout, n = self.cache, self.lengths, self.cache.layout, x.shape[1]
        count = new
        if lengths.host is not None and new.host is not None:
            slots = layout.slots
            fresh = tuple(
                slots[m] - slots[m - c] for m, c in zip(lengths.host, new.host, strict=True)
            )
            if fresh == new.host:
                before = None  # no row end lies before any of the new tokens
            count, n = new._replace(host=fresh), max(fresh)
        elif before is not None:
            n = n + 1 + n // layout.width
        if before is None:
            at = append_address(layout, lengths, new, n)
        else:
            start = lengths.device - new.device
            base = layout.slot_of[start] + 1
            slot = base[:, None] + torch.arange(n, device=x.device)
            token, is_end = token_in(slot - layout.slot_of[1], layout.width)
            index = (token - start[:, None]).clamp(0, x.shape[1] - 1)
            ends = cache.states_at(before(x), index)
            x = torch.where(cache.per_row(is_end)[..., None], ends, cache.states_at(x, index))
            at = entries_address(
                layout, lengths, base, 0, n, slot + layout.lag, causal(n, x.device)
            )
            count = count._replace(device=layout.slot_of[lengths.device] - layout.slot_of[start])
        return self._after(cache.forward_last(x, at, count), ROOT, None, 0)

    def level(
        self, x: Tensor, groups: Groups, visible: Tensor | None, depth: int
    ) -> tuple[Tensor, Groups]:
        """Drafted nodes x [R, m, dim] at ``depth`` -> their states, or those at the row ends after
        them.
        """
        groups = (*groups, Group(x.shape[1]))
        first = filled(groups) - x.shape[1]
        at = level_address(
            self.cache.layout, self.lengths, first, x.shape[1], depth, spread(visible, groups)
        )
        return self._after(self.cache.forward(x, at), groups, visible, depth)

    def _after(
        self, states: Tensor, groups: Groups, visible: Tensor | None, depth: int
    ) -> tuple[Tensor, Groups]:
        """The states [R, m, dim] at the last group's nodes -> those at their row ends, where
        prompts have these.
        """
        cache, lengths, layout, everywhere = self.cache, self.lengths, self.cache.layout, False
        if lengths.host is not None:
            follow = [layout.row_end_after[n + depth] for n in lengths.host]
            if not any(follow):
                return states, groups
            everywhere = all(follow)
        follows = layout.row_end_of[lengths.device + depth]  # [B]
        first, m = filled(groups), states.shape[1]
        groups = (*groups[:-1], groups[-1]._replace(ends=everywhere or follows))
        at = level_address(layout, lengths, first, m, depth, spread(visible, groups), past=1)
        after = cache.forward(self.row_end(states, states), at)
        if everywhere:
            return after, groups
        return torch.where(cache.per_row(follows)[:, None, None], after, states), groups


def token_in(slot: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The image token in each slot, both counted from the image's first, or before a row end; and
    whether it is one.
    """
    if not width:
        return slot, torch.zeros_like(slot, dtype=torch.bool)
    return slot - slot // (width + 1), slot % (width + 1) == width
