"""LANTERN (arXiv 2410.03355) and LANTERN++ (2502.06352): a token takes the probability of its
nearest codes.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Prepared, option
from lanternbench.engine.chosen import Families
from lanternbench.engine.plain import Probs
from lanternbench.engine.sampling import draw
from lanternbench.engine.tree import Draft, first_leaf
from lanternbench.engine.verify import (
    AcceptanceRule,
    Forms,
    RelaxedProb,
    Residual,
    VerifyResult,
    rows_at,
    walk,
)
from lanternbench.methods.residuals import lantern
from lanternbench.models.target import Target
from lanternbench.registry import register


class Neighbourly(AcceptanceRule):
    """q̃(x) = Σ_A q: the group A grows from x, nearest first, as far as a bound allows (LANTERN,
    eq. 4–6).

    The public code counts k without the token itself, its bound is inclusive, and its residual
    bars one token more.
    """

    lossless: ClassVar[bool] = False
    usual_residual: ClassVar[str] = "lantern"

    if TYPE_CHECKING:  # options of both
        k: Any
        proximity: Literal["l2", "cosine", "random"]

    near = Prepared[Tensor]()  # [V, k] nearest tokens of each token, itself first
    barred = Prepared[Tensor | None](None)  # [V, k'] what the public code's residual sets to 0
    codebook = Prepared[Tensor]()  # [V, d]

    def prepare(self, target: Target, max_depth: int) -> Self:
        barred = (
            neighbours(target, self.k + 2, self.proximity) if self.variant == "reference" else None
        )
        near = (
            neighbours(target, self.k, self.proximity)
            if barred is None
            else barred[:, : self.k + 1]
        )
        return self.ready(
            near=near, barred=barred, group_size=near.shape[1], codebook=target.codebook
        )

    def taken(self, qn: Tensor) -> Tensor:
        """Which tokens are in A: q of a token and its neighbours, nearest first [..., k] -> bool
        [..., k].
        """
        raise NotImplementedError

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        group = self.near[x]  # [..., k]
        qn = (
            q.gather(-1, group)
            if group.ndim == q.ndim
            else q[..., None, :].expand(*x.shape, -1).gather(-1, group)
        )
        taken = self.taken(qn)
        return RelaxedProb(
            (qn * taken).sum(-1), group, taken, None if self.barred is None else self.barred[x]
        )

    def _without_groups(
        self, draft: Draft, q: Tensor, u: Tensor, residual: Residual
    ) -> VerifyResult:
        """Chosen children, at a cost that grows with k and not with V.

        A rejected one takes its group out of q (eq. 7 with p = 1 at x): members are set to 0 in
        place, and the mass and number of the tokens left say how to scale q.  Nodes are sorted by
        their number of children, as no more than (N − 1) / j of them can have a j-th.
        """
        tree, (b, n, _) = draft.tree, q.shape
        children = tree.children.expand(b, -1, -1)
        named = children >= 0
        order = named.sum(-1).argsort(-1, descending=True)  # [B, N] node ids
        family, q_left = Families.of(rows_at(children, order), draft, u), rows_at(q, order)
        mass, support = q_left.sum(-1, dtype=torch.float64), q_left.sign().sum(-1)
        ok = torch.zeros(b, n + 1, dtype=torch.bool, device=q.device)
        for j, parts in enumerate(zip(*(part.unbind(-1) for part in family), strict=True)):
            most = (n - 1) // (j + 1)
            exists, x, u_child, cell, rows, total, some = (
                part[:, :most] for part in (*parts, q_left, mass, support)
            )
            group = self.near[x]  # [B, most, k]
            left = rows.gather(-1, group)
            taken = self.taken(left / total[..., None].to(q.dtype))
            gone = torch.where(taken, left, 0.0)
            moved, members = gone.sum(-1, dtype=torch.float64), gone.sign().sum(-1)
            ok.scatter_(1, cell, exists & (u_child * total < moved))
            drop = exists & (some > members)  # where nothing would remain, q stays as it was
            rows.scatter_(-1, group, torch.where(taken & drop[..., None], 0.0, left))
            total -= moved * drop
            some -= members * drop
        accept = ok.gather(1, torch.where(named, children, n).flatten(1)).view_as(named)
        path, accepted, tried = walk(tree, named, accept)
        stop = (order == path[:, -1:]).int().argmax(-1)
        return VerifyResult(path, accepted, draw(rows_at(q_left, stop), u[:, 0]), tried)

    forms: ClassVar[Forms] = Forms(relax, verify_chosen=_without_groups, residual=lantern)

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor:
        """In the public code the group's other tokens keep their probabilities in the comparison."""
        if self.variant == "paper":
            return super().accept_greedily(q, best, parent, draft)
        rows, tokens = rows_at(q, parent), draft.tokens
        value = self.relax(rows, tokens, draft.tree.depth.expand_as(tokens)).value
        return value >= rows.scatter(-1, tokens[..., None], 0.0).amax(-1)

    def order_greedily(self, draft: Draft) -> Tensor | None:
        """In a dynamic tree the public code takes the path whose leaf comes first."""
        return (
            first_leaf(draft.tree)
            if self.variant == "reference" and draft.static is None
            else None
        )

    @property
    def has_plain(self) -> bool:
        """Of random neighbours any table is right, and only the engine knows which it drew."""
        return super().has_plain and self.proximity != "random"

    def plain(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        return math.fsum(q[y] for y in self.plain_group(q, x)) / p[x]

    def plain_group(self, q: Probs, x: int) -> list[int]:
        """A(x)."""
        group = [x]
        for y in self.plain_near[x][1:]:
            if not self.plain_inside(q, [*group, y]):
                break
            group.append(y)
        return group

    def plain_inside(self, q: Probs, group: list[int]) -> bool:
        raise NotImplementedError

    @cached_property
    def plain_near(self) -> list[list[int]]:
        return plain_nearest(self.codebook.double().tolist(), self.k, self.proximity)


@register("acceptance", "lantern")
class Lantern(Neighbourly):
    """accept with min(1, q_{k,δ}(x)/p(x)), the group bounded by δ"""

    k: int | None = option(
        None, "neighbours of a token, itself included (default: the target's)", small=None, ge=1, le=1 << 20,
        target_key="near", unset=1000,
    )  # fmt: skip
    delta: float = option(
        0.1,
        "bound δ on the distance between q_{k,δ} and q",
        symbol="δ",
        in_label=True,
        also=0.4,
        gt=0,
        le=1,
    )
    proximity: Literal["l2", "cosine", "random"] = option("l2", "distance of codes")
    divergence: Literal["tvd", "jsd"] = option("tvd", "distance of distributions")

    def taken(self, qn: Tensor) -> Tensor:
        """While D(q_{k,δ}, q) < δ, D = TVD or JSD (in nats)."""
        qx, moved = qn[..., :1], qn[..., 1:].cumsum(-1)  # q(x); Σ_{A∖x} q, growing
        distance = moved if self.divergence == "tvd" else jensen_shannon(qx, moved)
        inside = distance <= self.delta if self.variant == "reference" else distance < self.delta
        return torch.cat([torch.ones_like(qx, dtype=torch.bool), inside], -1)

    def plain_inside(self, q: Probs, group: list[int]) -> bool:
        relaxed = moved_onto(q, group)
        far = sum(q[y] for y in group[1:]) if self.divergence == "tvd" else plain_jsd(q, relaxed)
        return far < self.delta


@register("acceptance", "lantern++")
class LanternPP(Neighbourly):
    """accept with min(1, q_{k,λ}(x)/p(x)), the group bounded by (λ − 1)·q(x)"""

    lam: float = option(
        2.0,
        "multiplicative bound λ",
        symbol="λ",
        in_label=True,
        alias="lambda",
        ge=1,
        le=1000,
        allow_inf_nan=False,
    )
    k: int = option(10, "neighbours of a token, itself included", small=3, ge=1, le=1 << 20)
    proximity: Literal["l2", "cosine", "random"] = option("l2", "distance of codes")

    def taken(self, qn: Tensor) -> Tensor:
        """While Σ_{A∖x} q ≤ (λ − 1)·q(x) (LANTERN++, eq. 3)."""
        qx, moved = qn[..., :1], qn[..., 1:].cumsum(-1)
        return torch.cat(
            [torch.ones_like(qx, dtype=torch.bool), moved <= (self.lam - 1.0) * qx], -1
        )

    def plain_inside(self, q: Probs, group: list[int]) -> bool:
        return sum(q[y] for y in group[1:]) <= (self.lam - 1) * q[group[0]]


def jensen_shannon(qx: Tensor, moved: Tensor) -> Tensor:
    """Jensen–Shannon divergence, nats, of q and q with mass ``moved`` put onto x, in closed form."""
    mean = qx + moved / 2
    to_mean = torch.special.xlogy(qx + moved, (qx + moved) / mean) + torch.special.xlogy(
        qx, qx / mean
    )
    return (0.5 * (moved * math.log(2) + to_mean)).nan_to_num(0.0)


def moved_onto(q: Probs, group: list[int]) -> Probs:
    """q_{k,δ}(·|x): the group's mass on its first token x, 0 on the rest of it, q elsewhere
    (LANTERN, eq. 5).
    """
    moved = [0.0 if y in group else qy for y, qy in enumerate(q)]
    moved[group[0]] = math.fsum(q[y] for y in group)
    return moved


def plain_jsd(a: Probs, b: Probs) -> float:
    """Jensen–Shannon divergence in nats, by its definition."""
    mean = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
    return 0.5 * math.fsum(
        x * math.log(x / y) for c in (a, b) for x, y in zip(c, mean, strict=True) if x > 0
    )


def neighbours(target: Target, k: int, proximity: str) -> Tensor:
    """[V, k] nearest codes: the methods of a sweep share one table, which takes long to make for a
    large codebook.
    """
    table = target.near.get(proximity)
    if table is None or table.shape[1] < min(k, target.vocab):
        table = target.near[proximity] = nearest(target.codebook, k, proximity)
    return table if table.shape[1] <= k else table[:, :k].contiguous()


def nearest(codebook: Tensor, k: int, proximity: str = "l2", seed: int = 0) -> Tensor:
    """[V, k] nearest tokens of each token, itself first, by ``l2`` or ``cosine`` distance, or
    ``random``.

    Rows that coincide rank by token id, after the token itself.  k is cut to V.
    """
    rows = F.normalize(codebook.float(), dim=-1) if proximity == "cosine" else codebook.float()
    generator, table = torch.Generator().manual_seed(seed), list[Tensor]()
    for block in torch.arange(len(rows), device=rows.device).split(1024):
        if proximity == "random":
            distance = torch.rand(len(block), len(rows), generator=generator).to(rows.device)
        else:
            distance = torch.cdist(rows[block], rows, compute_mode="donot_use_mm_for_euclid_dist")
        distance.scatter_(1, block[:, None], -1.0)
        table.append(distance.sort(dim=-1, stable=True).indices[:, :k].clone())
    return torch.cat(table)


def plain_nearest(codebook: list[list[float]], k: int, proximity: str = "l2") -> list[list[int]]:
    """The same in scalar Python: B_k(x) of every token x (LANTERN, eq. 3)."""
    distance = math.dist if proximity == "l2" else _cosine_distance
    far = [[distance(a, b) for b in codebook] for a in codebook]
    return [
        sorted(range(len(row)), key=lambda y: (y != x, row[y], y))[:k] for x, row in enumerate(far)
    ]


def _cosine_distance(a: list[float], b: list[float]) -> float:
    return 1 - math.fsum(x * y for x, y in zip(a, b, strict=True)) / (
        math.hypot(*a) * math.hypot(*b)
    )
