"""Grouped acceptance (GSD, arXiv 2508.07747): the mass of tokens that could stand for a draft.

Every function works on any leading shape [...].  V vocabulary, d width of a code, C candidates for
a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.component import Choices, option
from lanternbench.engine.relaxed import Group, RelaxedProb
from lanternbench.engine.sampling import at
from lanternbench.engine.verify import AcceptanceRule, OrderedTest
from lanternbench.models.target import Target
from lanternbench.registry import register

BLOCK = 1024  # rows of a table of V × V that are computed at once


class Bounds(NamedTuple):
    """The tokens y that are ``alike`` and belong to C(x).

    r(y) − r(x) is in −``below`` … ``above``, r the rank in ascending order of q, and |q(y) − q(x)|
    < ``margin``.  Below rank ``alone`` C(x) is x.
    """

    below: int
    above: int
    margin: float
    alone: int = 0

    @property
    def candidates(self) -> int:
        return self.below + self.above + 1


def alike(codes: Tensor, radius: float) -> Tensor:
    """Return [V, V] bool: |c_y − c_x|² < ``radius``.  codes [V, d]; in float64."""
    codes = codes.detach().double()
    square = codes.square().sum(-1)
    blocks = []
    for rows in torch.split(torch.arange(len(codes), device=codes.device), BLOCK):
        products = codes[rows] @ codes.T
        distance = square[rows, None] + square - 2 * products
        blocks.append(distance.clamp(min=0) < radius)
    return torch.cat(blocks)


def group(q: Tensor, x: Tensor, alike: Tensor, bounds: Bounds) -> Group:
    """Return C(x), to which x belongs.  q [..., V], x [...], alike [V, V]."""
    x = x[..., None]
    vocab = q.shape[-1]
    order = q.sort(dim=-1, stable=True).indices
    rank = (order == x).long().argmax(-1, keepdim=True)
    offsets = torch.arange(-bounds.below, bounds.above + 1, device=q.device)
    ranks = rank + offsets
    exists = (ranks >= 0) & (ranks < vocab) & (rank >= bounds.alone)
    ids = order.gather(-1, ranks.clamp(0, vocab - 1))
    difference = (q.gather(-1, ids) - q.gather(-1, x)).abs()
    belongs = exists & alike[x, ids] & (difference < bounds.margin)
    is_x = ranks == rank
    return Group(ids, belongs | is_x)


def every_mass(q: Tensor, p: Tensor, alike: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Return Σ_C(x) q and Σ_C(x) p for every token x: [..., V] each, in O(V·C)."""
    order = q.sort(dim=-1, stable=True).indices
    by_rank = torch.stack([q, p]).gather(-1, order.expand(2, *order.shape))
    q_of_rank = by_rank[0]
    total = by_rank.clone()
    for x, y in neighbours_in_rank(q.shape[-1], bounds):
        difference = (q_of_rank[..., y] - q_of_rank[..., x]).abs()
        are_alike = alike[order[..., x], order[..., y]]
        belongs = are_alike & (difference < bounds.margin)
        total[..., x] += torch.where(belongs, by_rank[..., y], 0.0)
    mass = torch.empty_like(total).scatter_(-1, order.expand_as(total), total)
    return mass[0], mass[1]


def neighbours_in_rank(vocab: int, bounds: Bounds) -> Iterator[tuple[slice, slice]]:
    """Yield ranks x, and ranks y at one offset from them, for every offset of a group but 0."""
    least = max(-bounds.below, 1 - vocab)
    largest = min(bounds.above, vocab - 1)
    for offset in range(least, largest + 1):
        if offset == 0:
            continue
        first = max(bounds.alone, -offset)
        end = max(first, vocab - max(offset, 0))
        yield slice(first, end), slice(first + offset, end + offset)


@register("acceptance", "gsd")
class Gsd(AcceptanceRule):
    """accept with min(1, Σq/Σp) over tokens alike in rank, probability and code"""

    lossless = False
    ranks: int = option(
        7,
        "how many ranks away, in the order of q, a token's group reaches",
        small=1,
        ge=0,
        le=1024,
    )
    margin: float = option(0.15, "bound on |q(y) − q(x)| in a group", ge=0, le=2)
    radius: float = option(
        0.5, "bound on the squared distance of codes in a group", ge=0, allow_inf_nan=False
    )

    def refuses(self, choices: Choices) -> str | None:
        if choices.residual in ("standard", "optimal"):
            return None
        return (
            f"the residual '{choices.residual}' belongs to LANTERN's groups; use standard or "
            "optimal with 'gsd'"
        )

    @property
    def bounds(self) -> Bounds:
        """Return the bounds of a group.

        The public code's ranks are −7 … +6, and x stands alone if its rank is below 7.
        """
        if self.variant == "reference":
            return Bounds(self.ranks, self.ranks - 1, self.margin, alone=self.ranks)
        return Bounds(self.ranks, self.ranks, self.margin)

    def build(self, target: Target, depth: int) -> GroupTest:
        codes = target.codebook
        if self.variant == "reference":  # rows of the target's embed_tokens.weight
            codes = target.model.tok_embeddings(torch.arange(target.vocab, device=target.device))
        return GroupTest(alike(codes, self.radius), self.bounds)


@dataclass(frozen=True, eq=False)
class GroupTest(OrderedTest):
    """Accept with min(1, Σ_C q / Σ_C p), at temperature 0 as the target; meant for T > 0."""

    alike: Tensor  # [V, V] bool
    bounds: Bounds

    @property
    def group_size(self) -> int:
        return self.bounds.candidates

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        """Return the group's mass of q, which is q̃(x) for a chosen child because p = 1 there."""
        return RelaxedProb(group(q, x, self.alike, self.bounds).mass(q))

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return every_mass(q, q, self.alike, self.bounds)[0]

    def accept(self, q: Tensor, p: Tensor, x: Tensor, depth: Tensor, u: Tensor) -> Tensor:
        members = group(q, x, self.alike, self.bounds)
        return (u * members.mass(p) < members.mass(q)) & (at(p, x) > 0)

    def accepted_prob(self, q: Tensor, p: Tensor, depth: Tensor) -> Tensor:
        total_q, total_p = every_mass(q, p, self.alike, self.bounds)
        return torch.where(p > 0, p * (total_q / total_p).clamp(max=1), 0.0)
