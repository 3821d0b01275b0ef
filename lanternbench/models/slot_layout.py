"""The cache slot of an image token, for models that write a token after each row of an image: a row end.

Everything else counts image tokens alone, in raster order.  A row end takes the slot, and the rotary position, between
two rows.  None follows the last row, as no token is drawn after it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Index = TypeVar("Index", int, Tensor)


class SlotLayout(NamedTuple):
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

    def end(self, count: Index, first: int = 0) -> Index:
        """The slot after ``count`` image tokens, without the row end that may follow the last of them."""
        if not self.width:
            return count if isinstance(first, int) and first == 0 else count + first
        return count + (count - 1 + (count == 0)) // self.width + first

    def follows(self, token: Index) -> Index:
        """Does a row end follow image token ``token``?"""
        return ((token + 1) % self.width == 0) & (token + 1 < self.length)

    def any_follows(self, tokens: list[int], depth: int = 0) -> bool:
        """Does one follow any of ``tokens``, or any of the ``depth`` tokens after them?"""
        return self.width > 0 and any(self.follows(t + d) for t in tokens for d in range(depth + 1))

    def token(self, slot: Tensor) -> tuple[Tensor, Tensor]:
        """The image token in each slot, counted from the image's first, or before a row end; and whether it is one."""
        if not self.width:
            return slot, torch.zeros_like(slot, dtype=torch.bool)
        stride = self.width + 1
        return slot - slot // stride, slot % stride == self.width

    def slots(self, nodes: int) -> int:
        """Room for the image, ``nodes`` drafted tokens with their row ends, and one slot that is never read."""
        return self.length + nodes + 1 if not self.width else self.slot(self.length) + 2 * nodes + 2


def with_row_ends(ancestors: Tensor, ends: Tensor) -> Tensor:
    """Which of N nodes and, after them, the row ends that may follow each attend to which: bool [B, 2N, 2N].

    ancestors [b, N, N]; ends [B, N]: whether one follows the node.  A row end is the child of its node, and the node's
    descendants attend to both.  One that does not follow is computed all the same, and nothing attends to it.
    """
    nodes = ancestors.expand(len(ends), -1, -1)
    upper = nodes & ends[:, None]
    own = torch.eye(ends.shape[1], dtype=torch.bool, device=ends.device)
    return torch.cat([torch.cat([nodes, upper & ~own], -1), torch.cat([nodes, upper], -1)], 1)
