"""LANTERN (arXiv 2410.03355) and LANTERN++ (2502.06352): a token takes the probability of its nearest codes."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lanternbench.engine.sampling import draw
from lanternbench.engine.tree import Draft, first_leaf
from lanternbench.engine.verify import (
    AcceptanceRule,
    Families,
    RelaxedProb,
    Residual,
    VerifyResult,
    rows_at,
    walk,
)
from lanternbench.methods.acceptance.neighbours import nearest
from lanternbench.methods.component import Acceptance, option
from lanternbench.methods.residuals import lantern
from lanternbench.models.target import Target
from lanternbench.registry import register

NEIGHBOURS = 1000  # per token, where neither the method nor the target sets k


class LanternRule(AcceptanceRule):
    """q̃(x) = q_{k,δ}(x): the group A grows nearest first, as far as the bound allows.

    LANTERN (eq. 4–6): while D(q_{k,δ}, q) < δ, D = TVD or JSD (in nats).  LANTERN++: while Σ_{A∖x} q ≤ (λ − 1)·q(x).
    """

    def __init__(self, near: Tensor, bound: str, limit: float):
        """``near`` [V, k]: nearest tokens of each token, itself first; ``bound``: tvd, jsd or multiplicative."""
        self.near, self.bound, self.limit = near, bound, limit
        self.group_size = near.shape[1]

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        group = self.near[x]  # [..., k]
        qn = q.gather(-1, group) if group.ndim == q.ndim else q[..., None, :].expand(*x.shape, -1).gather(-1, group)
        taken = self.taken(qn)
        return RelaxedProb((qn * taken).sum(-1), group, taken)

    def taken(self, qn: Tensor) -> Tensor:
        """Which tokens are in A: q of a token and its neighbours, nearest first [..., k] -> bool [..., k]."""
        moved = qn[..., 1:].cumsum(-1)  # Σ_{A∖x} q, growing
        qx = qn[..., :1]
        if self.bound == "multiplicative":
            keep = moved <= (self.limit - 1.0) * qx
        else:
            keep = self.within(moved if self.bound == "tvd" else jensen_shannon(qx, moved))
        return torch.cat([torch.ones_like(qx, dtype=torch.bool), keep], -1)

    def within(self, distance: Tensor) -> Tensor:
        return distance < self.limit

    def verify_chosen(self, draft: Draft, q: Tensor, u: Tensor, residual: Residual) -> VerifyResult:
        """As the general form with LANTERN's residual, at a cost that grows with k and not with V.

        A chosen child that is rejected takes its group out of q (eq. 7 with p = 1 at x).  So q is never rewritten:
        members are set to 0 in place, and the mass and the number of tokens that are left say how to scale it.  Nodes
        are sorted by their number of children, as no more than (N − 1) / j of them can have a j-th.
        """
        if residual is not lantern:
            return super().verify_chosen(draft, q, u, residual)
        tree, (b, n, _) = draft.tree, q.shape
        children = tree.children.expand(b, -1, -1)
        named = children >= 0
        order = named.sum(-1).argsort(-1, descending=True)  # [B, N] node ids
        family, q_left = Families.of(rows_at(children, order), draft, u), rows_at(q, order)
        mass, support = q_left.sum(-1, dtype=torch.float64), q_left.sign().sum(-1)
        ok = torch.zeros(b, n + 1, dtype=torch.bool, device=q.device)
        for j, parts in enumerate(zip(*(part.unbind(-1) for part in family), strict=True)):
            most = (n - 1) // (j + 1)
            exists, x, u_child, cell, rows, total, some = (part[:, :most] for part in (*parts, q_left, mass, support))
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


class PublicLanternRule(LanternRule):
    """The public code's form: the bound is inclusive, and the residual sets ``barred`` [V, k'] to 0, itself first."""

    def __init__(self, near: Tensor, bound: str, limit: float, barred: Tensor):
        super().__init__(near, bound, limit)
        self.barred = barred

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return super().relax(q, x, depth)._replace(barred=self.barred[x])

    def within(self, distance: Tensor) -> Tensor:
        return distance <= self.limit

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor:
        """Unlike the general form, the group's other tokens keep their probabilities in the comparison."""
        rows, tokens = rows_at(q, parent), draft.tokens
        value = self.relax(rows, tokens, draft.tree.depth.expand_as(tokens)).value
        return value >= rows.scatter(-1, tokens[..., None], 0.0).amax(-1)

    def order_greedily(self, draft: Draft) -> Tensor | None:
        """In a dynamic tree the path whose leaf comes first."""
        return first_leaf(draft.tree) if draft.static is None else None


def jensen_shannon(qx: Tensor, moved: Tensor) -> Tensor:
    """Jensen–Shannon divergence, nats, of q and q with mass ``moved`` put onto x, in closed form."""
    mean = qx + moved / 2
    to_mean = torch.special.xlogy(qx + moved, (qx + moved) / mean) + torch.special.xlogy(qx, qx / mean)
    return (0.5 * (moved * math.log(2) + to_mean)).nan_to_num(0.0)


class Neighbourly(Acceptance):
    """Base of LANTERN and LANTERN++."""

    lossless: ClassVar[bool] = False
    usual_residual: ClassVar[str] = "lantern"

    def rule(self, target: Target, k: int, proximity: str, bound: str, limit: float) -> AcceptanceRule:
        if self.variant == "reference":  # counts k without the token itself and bars one token more
            table = neighbours(target, k + 2, proximity)
            return PublicLanternRule(table[:, : k + 1], bound, limit, table)
        return LanternRule(neighbours(target, k, proximity), bound, limit)


@register("acceptance", "lantern")
class Lantern(Neighbourly):
    """accept with min(1, q_{k,δ}(x)/p(x)), the group bounded by δ"""

    k: int | None = option(
        None, "neighbours of a token, itself included (default: the target's)", small=None, ge=1, le=1 << 20
    )
    delta: float = option(
        0.1, "bound δ on the distance between q_{k,δ} and q", symbol="δ", in_label=True, also=0.4, gt=0, le=1
    )
    proximity: Literal["l2", "cosine", "random"] = option("l2", "distance of codes")
    divergence: Literal["tvd", "jsd"] = option("tvd", "distance of distributions")

    def build(self, target: Target, max_depth: int) -> AcceptanceRule:
        k = self.k or target.options.get("near", NEIGHBOURS)
        return self.rule(target, k, self.proximity, self.divergence, self.delta)


@register("acceptance", "lantern++")
class LanternPP(Neighbourly):
    """accept with min(1, q_{k,λ}(x)/p(x)), the group bounded by (λ − 1)·q(x)"""

    lam: float = option(
        2.0, "multiplicative bound λ", symbol="λ", in_label=True, alias="lambda", ge=1, le=1000, allow_inf_nan=False
    )
    k: int = option(10, "neighbours of a token, itself included", small=3, ge=1, le=1 << 20)
    proximity: Literal["l2", "cosine", "random"] = option("l2", "distance of codes")

    def build(self, target: Target, max_depth: int) -> AcceptanceRule:
        return self.rule(target, self.k, self.proximity, "multiplicative", self.lam)


def neighbours(target: Target, k: int, proximity: str) -> Tensor:
    """[V, k] nearest codes: the methods of a sweep share one table, which takes long to make for a large codebook."""
    kept = target.near.get(proximity)
    if kept is None or kept.shape[1] < min(k, target.vocab):
        kept = target.near[proximity] = nearest(target.codebook, k, proximity)
    return kept if kept.shape[1] <= k else kept[:, :k].contiguous()
