"""Row ends: the token that Lumina-mGPT writes after each row of an image, known without asking the model.

Everything else counts image tokens alone, in raster order.  Only cached stacks hold row ends too: each takes the slot,
and the rotary position, between two rows.  None follows the last row, as no token is drawn after it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Index = TypeVar("Index", int, Tensor)


class RowEnds(NamedTuple):
    """``width``: image tokens a row, 0 where the model writes no row ends; ``length``: image tokens in all.

    ``first`` is always the slot of image token 0.
    """

    width: int
    length: int

    def slot(self, token: Index, ahead: int = 0, first: int = 0) -> Index:
        """The slot of image token ``token + ahead``."""
        if not self.width:
            return token + (ahead + first)
        return token + ahead + (token + ahead) // self.width + first

    def behind(self, count: Index, first: int = 0) -> Index:
        """The slot behind ``count`` image tokens; the row end that may follow the last of them is not there yet."""
        if not self.width:
            return count if isinstance(first, int) and first == 0 else count + first
        return count + (count - 1 + (count == 0)) // self.width + first

    def follow(self, token: Index) -> Index:
        """Does a row end follow image token ``token``?"""
        return ((token + 1) % self.width == 0) & (token + 1 < self.length)

    def any_follow(self, tokens: list[int], deep: int = 0) -> bool:
        """Does one follow any of ``tokens``, or any of the ``deep`` tokens after them?"""
        return self.width > 0 and any(self.follow(t + d) for t in tokens for d in range(deep + 1))

    def token(self, slot: Tensor) -> tuple[Tensor, Tensor]:
        """The image token in each slot, counted from the image's first, or behind a row end; and whether it is one."""
        if not self.width:
            return slot, torch.zeros_like(slot, dtype=torch.bool)
        stride = self.width + 1
        return slot - slot // stride, slot % stride == self.width

    def slots(self, nodes: int) -> int:
        """Room for the image, ``nodes`` drafted tokens with their row ends, and one slot that nobody reads."""
        return self.length + nodes + 1 if not self.width else self.slot(self.length) + 2 * nodes + 2


def with_row_ends(ancestors: Tensor, ends: Tensor) -> Tensor:
    """Who sees whom among N nodes and, after them, the row ends that may follow each: bool [B, 2N, 2N].

    ancestors [b, N, N]; ends [B, N]: whether one follows the node.  A row end is the child of its node, and the node's
    descendants see both.  One that does not follow is computed all the same, and seen by nobody.
    """
    nodes = ancestors.expand(len(ends), -1, -1)
    upper = nodes & ends[:, None]
    own = torch.eye(ends.shape[1], dtype=torch.bool, device=ends.device)
    return torch.cat([torch.cat([nodes, upper & ~own], -1), torch.cat([nodes, upper], -1)], 1)
