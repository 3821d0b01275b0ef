"""Grouped acceptance (GSD, arXiv 2508.07747): a draft is judged by the mass of the tokens that
could stand for it.

Every function works on any leading shape [...].  V vocabulary, d width of a code, C candidates for
a group.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from lanternbench.component import Choices, Prepared, option
from lanternbench.engine.plain import Probs
from lanternbench.engine.verify import AcceptanceRule, Forms, RelaxedProb, at, is_argmax
from lanternbench.models.target import Target
from lanternbench.registry import register


class Bounds(NamedTuple):
    """Which tokens y that are ``alike`` belong to C(x): r(y) − r(x) in −``below`` … ``above``, r
    the rank in ascending order of q, with |q(y) − q(x)| < ``margin``.  Below rank ``alone`` C(x)
    is x."""

    below: int
    above: int
    margin: float
    alone: int = 0

    @classmethod
    def of(cls, ranks: int, margin: float, variant: str = "paper") -> Bounds:
        """The public code's ranks are −7 … +6, and x stands alone where its rank is below 7."""
        public = variant == "reference"
        return cls(ranks, ranks - public, margin, ranks * public)


def alike(codes: Tensor, radius: float) -> Tensor:
    """[V, V] bool: is |c_y − c_x|² < ``radius``?  codes [V, d]; a block of rows at a time, in
    float64.
    """
    codes = codes.detach().double()
    square = codes.square().sum(-1)
    blocks = zip(codes.split(1024), square.split(1024), strict=True)
    return torch.cat(
        [
            (each[:, None] + square - 2 * rows @ codes.T).clamp(min=0) < radius
            for rows, each in blocks
        ]
    )


class Group(NamedTuple):
    """Candidates for the group of a token x, and which of them belong to it."""

    ids: Tensor  # [..., C]
    inside: Tensor  # [..., C] bool

    def mass(self, p: Tensor) -> Tensor:
        """Σ_C p: [..., V] -> [...]."""
        return torch.where(self.inside, p.gather(-1, self.ids), 0.0).sum(-1)


def group(q: Tensor, x: Tensor, alike: Tensor, bounds: Bounds) -> Group:
    """C(x), to which x belongs.  q [..., V], x [...], alike [V, V]."""
    order = q.sort(dim=-1, stable=True).indices
    rank = (order == x[..., None]).long().argmax(-1, keepdim=True)
    near = rank + torch.arange(-bounds.below, bounds.above + 1, device=q.device)
    exists = (near >= 0) & (near < q.shape[-1]) & (rank >= bounds.alone)
    ids = order.gather(-1, near.clamp(0, q.shape[-1] - 1))
    close = alike[x[..., None], ids]
    close &= (q.gather(-1, ids) - q.gather(-1, x[..., None])).abs() < bounds.margin
    return Group(ids, exists & close | (near == rank))


def every_mass(q: Tensor, p: Tensor, alike: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Σ_C(x) q and Σ_C(x) p for every token x: [..., V] each, in O(V·C)."""
    vocab, order = q.shape[-1], q.sort(dim=-1, stable=True).indices
    sorted_q, sorted_p = q.gather(-1, order), p.gather(-1, order)
    total_q, total_p = sorted_q.clone(), sorted_p.clone()
    for offset in range(max(-bounds.below, 1 - vocab), min(bounds.above, vocab - 1) + 1):
        if offset:
            first = max(bounds.alone, -offset)
            x = slice(first, max(first, vocab - max(offset, 0)))
            y = slice(x.start + offset, x.stop + offset)
            inside = alike[order[..., x], order[..., y]]
            inside &= (sorted_q[..., y] - sorted_q[..., x]).abs() < bounds.margin
            total_q[..., x] += torch.where(inside, sorted_q[..., y], 0.0)
            total_p[..., x] += torch.where(inside, sorted_p[..., y], 0.0)
    return torch.empty_like(q).scatter_(-1, order, total_q), torch.empty_like(p).scatter_(
        -1, order, total_p
    )


@register("acceptance", "gsd")
class Gsd(AcceptanceRule):
    """accept with min(1, Σq/Σp) over tokens alike in rank, probability and code"""

    lossless: ClassVar[bool] = False
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

    alike = Prepared[Tensor]()  # [V, V] bool
    bounds = Prepared[Bounds]()
    codebook = Prepared[Tensor]()  # [V, d]

    def prepare(self, target: Target, max_depth: int) -> Self:
        codes = target.codebook
        # the public code compares rows of the target's embed_tokens.weight
        if self.variant == "reference":
            codes = target.model.tok_embeddings(torch.arange(target.vocab, device=target.device))
        bounds = Bounds.of(self.ranks, self.margin, self.variant)
        size = bounds.below + bounds.above + 1
        return self.ready(
            alike=alike(codes, self.radius), bounds=bounds, group_size=size, codebook=codes
        )

    def refuses(self, choices: Choices) -> str | None:
        if choices.residual in ("standard", "optimal"):
            return None
        return f"the residual '{choices.residual}' belongs to LANTERN's groups; use standard or optimal with 'gsd'"

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        """A chosen child has p = 1, so that its group's mass of q is q̃(x)."""
        return RelaxedProb(group(q, x, self.alike, self.bounds).mass(q))

    def _everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return every_mass(q, q, self.alike, self.bounds)[0]

    def _accept(self, q: Tensor, p: Tensor, x: Tensor, depth: Tensor, u: Tensor) -> Tensor:
        alike_x = group(q, x, self.alike, self.bounds)
        return (u * alike_x.mass(p) < alike_x.mass(q)) & (at(p, x) > 0)

    def _accepted_prob(self, q: Tensor, p: Tensor, depth: Tensor) -> Tensor:
        total_q, total_p = every_mass(q, p, self.alike, self.bounds)
        return torch.where(p > 0, p * (total_q / total_p).clamp(max=1), 0.0)

    # greedy: meant for T > 0
    forms: ClassVar[Forms] = Forms(relax, _everywhere, _accept, _accepted_prob, is_argmax)

    def plain(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        group = self.plain_group(q, x)
        return math.fsum(q[y] for y in group) / math.fsum(p[y] for y in group)

    def plain_group(self, q: Probs, x: int) -> list[int]:
        """C(x): within ± ``ranks`` of x by q, |q(y) − q(x)| < ``margin``, squared distance of
        codes < ``radius``.
        """
        order = sorted(range(len(q)), key=lambda y: (q[y], y))
        at, codes = order.index(x), self.codes
        near = (y for y in order[max(0, at - self.ranks) : at + self.ranks + 1] if y != x)
        close = (y for y in near if abs(q[y] - q[x]) < self.margin)
        return [x, *(y for y in close if math.dist(codes[y], codes[x]) ** 2 < self.radius)]

    @cached_property
    def codes(self) -> list[list[float]]:
        return self.codebook.double().tolist()
