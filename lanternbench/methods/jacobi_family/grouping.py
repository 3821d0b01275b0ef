"""Grouped acceptance (GSD, arXiv 2508.07747): a draft is judged by the mass of the tokens that could stand for it.

Every function works on any leading shape [...].  V vocabulary, d width of the codebook, C members that are looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

RANKS, MARGIN, RADIUS = 7, 0.15, 0.5  # of the public code; the radius bounds a squared distance


class Group(NamedTuple):
    """Candidates for the group of a token x, and which of them belong to it."""

    ids: Tensor  # [..., C]
    inside: Tensor  # [..., C] bool


def group(
    q: Tensor, x: Tensor, codebook: Tensor, ranks: int = RANKS, margin: float = MARGIN, radius: float = RADIUS
) -> Group:
    """C(x): tokens at most ``ranks`` away in the order of q, with |q(y) − q(x)| < margin and |c_y − c_x|² < radius.

    q [..., V], x [...], codebook [V, d].  x belongs to its group.
    """
    order, at = _order(q, x)
    offset = torch.arange(-ranks, ranks + 1, device=q.device)
    return _members(q, x, codebook, order, at[..., None] + offset, margin, radius)


def reference_group(
    q: Tensor, x: Tensor, codebook: Tensor, ranks: int = RANKS, margin: float = MARGIN, radius: float = RADIUS
) -> Group:
    """The public code's group: ranks −7 … +6 around x in ascending order, and x alone where its rank is below 7."""
    order, at = _order(q, x)
    offset = torch.arange(-ranks, ranks, device=q.device)
    found = _members(q, x, codebook, order, at[..., None] + offset, margin, radius)
    alone = (at < ranks)[..., None]
    return Group(found.ids, torch.where(alone, offset == 0, found.inside))


def accept_prob(found: Group, q: Tensor, p: Tensor) -> Tensor:
    """min(1, Σ_C q / Σ_C p): q, p [..., V] -> [...]."""
    drafted = _mass(found, p)
    return torch.where(drafted > 0, (_mass(found, q) / drafted).clamp(max=1), 0.0)


def grouped_target(found: Group, q: Tensor, p: Tensor, x: Tensor) -> Tensor:
    """q̃(x) = p(x)·Σ_C q / Σ_C p, of which verification accepts min(1, q̃(x)/p(x)): [...]."""
    drafted = _mass(found, p)
    px = p.gather(-1, x[..., None])[..., 0]
    return torch.where(drafted > 0, px * _mass(found, q) / drafted, 0.0)


def _order(q: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens in ascending order of q [..., V], and the rank of x [...]."""
    order = q.sort(dim=-1, stable=True).indices
    return order, (order == x[..., None]).long().argmax(-1)


def _members(
    q: Tensor, x: Tensor, codebook: Tensor, order: Tensor, rank: Tensor, margin: float, radius: float
) -> Group:
    exists = (rank >= 0) & (rank < q.shape[-1])
    ids = order.gather(-1, rank.clamp(0, q.shape[-1] - 1))
    qx = q.gather(-1, x[..., None])
    near = (codebook[ids] - codebook[x][..., None, :]).square().sum(-1) < radius
    inside = exists & (((q.gather(-1, ids) - qx).abs() < margin) & near | (ids == x[..., None]))
    return Group(ids, inside)


def _mass(found: Group, p: Tensor) -> Tensor:
    return torch.where(found.inside, p.gather(-1, found.ids), 0.0).sum(-1)
