"""LANTERN (arXiv 2410.03355), LANTERN++ (2502.06352): tokens take their neighbours' mass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.special import xlogy

from lanternbench.component import option
from lanternbench.engine.chosen import Siblings
from lanternbench.engine.relaxed import Group, RelaxedProb, Residual
from lanternbench.engine.sampling import draw, rows_at
from lanternbench.engine.tree import Draft, VerifyResult, first_leaf, walk
from lanternbench.engine.verify import AcceptanceRule, RatioTest
from lanternbench.methods.residuals import lantern
from lanternbench.models.target import Target
from lanternbench.registry import register

Proximity = Literal["l2", "cosine", "random"]
Comparison = Callable[[Tensor, float], Tensor]
# (q(x) [..., 1], Σ_{A∖x} q [..., k − 1], growing) -> may A grow so far?  [..., k − 1] bool
Bound = Callable[[Tensor, Tensor], Tensor]
BLOCK = 1024  # rows of a table of V × V that are computed at once


def jensen_shannon(q_x: Tensor, moved: Tensor) -> Tensor:
    """Return the Jensen–Shannon divergence of q and q with mass ``moved`` put onto x, nats."""
    relaxed = q_x + moved
    mean = q_x + moved / 2
    to_mean: Tensor = xlogy(relaxed, relaxed / mean) + xlogy(q_x, q_x / mean)
    return (0.5 * (moved * math.log(2) + to_mean)).nan_to_num(0.0)


def variation(q_x: Tensor, moved: Tensor) -> Tensor:
    """Return the total variation of q and q with mass ``moved`` put onto x."""
    return moved


@dataclass(frozen=True)
class DistanceBound:
    """A grows while the distance of q_{k,δ} and q is below δ (LANTERN, eq. 4)."""

    distance: Callable[[Tensor, Tensor], Tensor]
    delta: float
    is_below: Comparison

    def __call__(self, q_x: Tensor, moved: Tensor) -> Tensor:
        return self.is_below(self.distance(q_x, moved), self.delta)


@dataclass(frozen=True)
class RatioBound:
    """A grows while Σ_{A∖x} q ≤ (λ − 1)·q(x) (LANTERN++, eq. 3)."""

    lam: float

    def __call__(self, q_x: Tensor, moved: Tensor) -> Tensor:
        return moved <= (self.lam - 1.0) * q_x


@register("acceptance", "lantern")
class Lantern(AcceptanceRule):
    """accept with min(1, q_{k,δ}(x)/p(x)), the group bounded by δ"""

    lossless = False
    usual_residual = "lantern"

    k: int | None = option(
        None, "neighbours of a token, itself included", small=None, ge=1, le=1 << 20,
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
    proximity: Proximity = option("l2", "distance of codes")
    divergence: Literal["tvd", "jsd"] = option("tvd", "distance of distributions")

    def build(self, target: Target, depth: int) -> NearbyTest:
        k = target.vocab if self.k is None else self.k
        if self.variant == "reference":
            return public_test(target, k, self.proximity, self.bound(torch.le))
        return NearbyTest(neighbours(target, k, self.proximity), self.bound(torch.lt))

    def bound(self, is_below: Comparison) -> Bound:
        """Return the bound on A; the public code's comparison with δ is inclusive."""
        distance = jensen_shannon if self.divergence == "jsd" else variation
        return DistanceBound(distance, self.delta, is_below)


@register("acceptance", "lantern++")
class LanternPP(AcceptanceRule):
    """accept with min(1, q_{k,λ}(x)/p(x)), the group bounded by (λ − 1)·q(x)"""

    lossless = False
    usual_residual = "lantern"

    lam: float = option(
        2.0,
        "relaxation λ; 1 is none",
        symbol="λ",
        in_label=True,
        alias="lambda",
        ge=1,
        le=1000,
        allow_inf_nan=False,
    )
    k: int = option(10, "neighbours of a token, itself included", small=3, ge=1, le=1 << 20)
    proximity: Proximity = option("l2", "distance of codes")

    def build(self, target: Target, depth: int) -> NearbyTest:
        bound = RatioBound(self.lam)
        if self.variant == "reference":
            return public_test(target, self.k, self.proximity, bound)
        return NearbyTest(neighbours(target, self.k, self.proximity), bound)


@dataclass(frozen=True, eq=False)
class NearbyTest(RatioTest):
    """q̃(x) = Σ_A q; A grows from x, nearest first, within a bound (LANTERN, eq. 4–6)."""

    near: Tensor  # [V, k] nearest tokens of each token, itself first
    bound: Bound
    barred: Tensor | None = None  # [V, k'] what the public code's residual sets to 0

    @property
    def group_size(self) -> int:
        return self.near.shape[1]

    def inside(self, q_near: Tensor) -> Tensor:
        """Return the tokens in A: q of a token and its neighbours [..., k] -> bool [..., k]."""
        q_x = q_near[..., :1]
        within = self.bound(q_x, q_near[..., 1:].cumsum(-1))
        return torch.cat([torch.ones_like(q_x, dtype=torch.bool), within], -1)

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        near = self.near[x]
        q_near = q.gather(-1, near)
        inside = self.inside(q_near)
        group = Group(near, inside)
        if self.barred is not None:
            group = group._replace(barred=self.barred[x])
        return RelaxedProb((q_near * inside).sum(-1), group)

    def verify_chosen(
        self,
        draft: Draft,
        q: Tensor,
        u: Tensor,
        residual: Residual,
    ) -> VerifyResult:
        """Verify chosen children at a cost that grows with k and not with V."""
        if residual is not lantern:
            return super().verify_chosen(draft, q, u, residual)
        families = Siblings.of(draft, u)
        remaining = Remaining.of(q.clone())
        passed = [self.test_and_strike(rank, remaining) for rank in families.by_rank()]
        path, accepted, tried = walk(draft.tree, families.exists, torch.stack(passed, -1))
        token = draw(rows_at(remaining.q, path[:, -1]), u[:, 0])
        return VerifyResult(path, accepted, token, tried)

    def test_and_strike(self, siblings: Siblings, remaining: Remaining) -> Tensor:
        """Return the siblings [B, N] that pass, and strike each one's group from q in place.

        Eq. 7 with p = 1 at x.  A group stays if nothing would remain without it.
        """
        group = self.near[siblings.tokens]  # [B, N, k]
        left = remaining.q.gather(-1, group)
        inside = self.inside(left / remaining.mass[..., None].to(left.dtype))
        members = torch.where(inside, left, 0.0)
        mass = members.sum(-1, dtype=torch.float64)
        support = members.sign().sum(-1)
        passed = siblings.exists & (siblings.u * remaining.mass < mass)
        strike = siblings.exists & (remaining.support > support)
        kept = torch.where(inside & strike[..., None], 0.0, left)
        remaining.q.scatter_(-1, group, kept)
        remaining.mass.sub_(mass * strike)
        remaining.support.sub_(support * strike)
        return passed


class Remaining(NamedTuple):
    """The part of q that rejected groups have left, unnormalised; it changes in place."""

    q: Tensor  # [B, N, V]
    mass: Tensor  # [B, N] Σ q
    support: Tensor  # [B, N] how many tokens are left

    @classmethod
    def of(cls, q: Tensor) -> Remaining:
        return cls(q, q.sum(-1, dtype=torch.float64), q.sign().sum(-1))


def public_test(target: Target, k: int, proximity: str, bound: Bound) -> PublicNearbyTest:
    """Return the test of the public code, which counts k without the token itself.

    Its residual bars one token more.
    """
    barred = neighbours(target, k + 2, proximity)
    return PublicNearbyTest(barred[:, : k + 1], bound, barred)


@dataclass(frozen=True, eq=False)
class PublicNearbyTest(NearbyTest):
    """As the public code of LANTERN decides."""

    def rivals(self, q: Tensor, relaxed: RelaxedProb) -> Tensor:
        """Return q: the group's other tokens keep their probabilities in the comparison."""
        return q

    def order_greedily(self, draft: Draft) -> Tensor | None:
        """Return the order of leaves: in a dynamic tree the path whose leaf comes first counts."""
        return first_leaf(draft.tree) if draft.static is None else None


def neighbours(target: Target, k: int, proximity: str) -> Tensor:
    """Return the nearest codes [V, k].

    The methods of a sweep share one table, because a large codebook's takes long to make.
    """
    table = target.near.get(proximity)
    if table is None or table.shape[1] < min(k, target.vocab):
        table = target.near[proximity] = nearest(target.codebook, k, proximity)
    return table if table.shape[1] <= k else table[:, :k].contiguous()


def nearest(codebook: Tensor, k: int, proximity: str = "l2", seed: int = 0) -> Tensor:
    """Return the nearest tokens of each token, itself first: [V, min(k, V)].

    proximity: ``l2`` or ``cosine`` distance, or ``random``.  Codes that coincide rank by token id,
    after the token itself.
    """
    rows = codebook.float()
    if proximity == "cosine":
        rows = F.normalize(rows, dim=-1)
    generator = torch.Generator().manual_seed(seed)
    table = []
    for block in torch.split(torch.arange(len(rows), device=rows.device), BLOCK):
        if proximity == "random":
            distance = torch.rand(len(block), len(rows), generator=generator).to(rows.device)
        else:
            distance = torch.cdist(rows[block], rows, compute_mode="donot_use_mm_for_euclid_dist")
        distance.scatter_(1, block[:, None], -1.0)
        table.append(distance.sort(dim=-1, stable=True).indices[:, :k].clone())
    return torch.cat(table)
