"""Acceptance rules and residuals: the mathematics of the five papers, one short function each.

A rule answers one question: what probability q̃(x̃) does the (relaxed) target give the drafted token?  Verification
then accepts x̃ with probability min(1, q̃(x̃) / p(x̃)).  A residual says what is sampled after a rejection.

q [..., V] target, p [..., V] drafter (None: the child was chosen, not sampled, so p is 1 at x), x [...] the child's
token, depth [...] or [] its depth 1 … L.  All distributions are after guidance, temperature, top-k and top-p.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Mass(NamedTuple):
    """q̃(x) [...]; for neighbourhood rules also the tokens whose mass x takes: ids [..., k] and which of them count."""

    value: Tensor
    group: Tensor | None = None
    taken: Tensor | None = None


class Rule(Protocol):
    """An acceptance rule.  ``lossless``: q̃ = q.  Add your own with ``registry.acceptance``."""

    lossless: bool

    def __call__(self, q: Tensor, x: Tensor, depth: Tensor) -> Mass: ...


class Residual(Protocol):
    """What to sample after x was rejected: unnormalised [..., V]."""

    def __call__(self, q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: Rule) -> Tensor: ...


def at(q: Tensor, x: Tensor) -> Tensor:
    """q(x): [..., V], [...] -> [...]."""
    return q.gather(-1, x[..., None])[..., 0]


# ---------------------------------------------------------------- rules


class Exact:
    """q̃ = q (Leviathan et al. 2023)."""

    lossless = True

    def __call__(self, q: Tensor, x: Tensor, depth: Tensor) -> Mass:
        return Mass(at(q, x))


def schedule(kind: str, lam: float, length: int, nu: float) -> list[float]:
    """ω_1 … ω_L with Σω_i = L·λ (Cool-SD, arXiv 2601.09212, section 4).

    ``uniform``: ω_i = λ.  ``exp``: ω_i = λ·L·ν^(i−1) / Σ_j ν^(j−1).  ``linear``: equal falls from 2λ·L/(L+1) to
    2λ/(L+1), the steepest line of mean λ that stays positive.
    """
    if kind == "uniform":
        raw = [1.0] * length
    elif kind == "exp":
        raw = [nu**i for i in range(length)]
    else:
        raw = [float(length - i) for i in range(length)]
    return [lam * length * w / sum(raw) for w in raw]


class Annealed:
    """q̃ = ω_i·q at draft position i (Cool-SD; ω constant: uniform relaxed speculative decoding)."""

    lossless = False

    def __init__(self, omega: list[float], device: torch.device | str = "cpu"):
        self.omega = torch.tensor([math.nan, *omega], device=device)  # ω_0 is never asked for

    def __call__(self, q: Tensor, x: Tensor, depth: Tensor) -> Mass:
        return Mass(self.omega[depth] * at(q, x))


class Lantern:
    """q̃(x) = q_{k,δ}(x): x takes the mass of its nearest neighbours, as far as the bound allows.

    LANTERN (arXiv 2410.03355, eq. 4–6): A grows nearest first while D(q_{k,δ}, q) < δ, D = TVD or JSD (in nats).
    LANTERN++ (arXiv 2502.06352): while Σ_{A∖x} q ≤ (λ − 1)·q(x).
    ``near`` [V, k]: nearest tokens of each token, itself first.  ``inclusive`` admits equality (the reference code),
    whose residual bars ``barred`` [V, ≥ k], also itself first (None: ``near``).
    """

    lossless = False

    def __init__(self, near: Tensor, bound: str, limit: float, inclusive: bool = False, barred: Tensor | None = None):
        self.near, self.bound, self.limit, self.inclusive = near, bound, limit, inclusive
        self.barred = near if barred is None else barred

    def __call__(self, q: Tensor, x: Tensor, depth: Tensor) -> Mass:
        group = self.near[x]  # [..., k]
        qn = q.gather(-1, group) if group.ndim == q.ndim else q[..., None, :].expand(*x.shape, -1).gather(-1, group)
        taken = self.taken(qn)
        return Mass((qn * taken).sum(-1), group, taken)

    def taken(self, qn: Tensor) -> Tensor:
        """Who is in A: q of a token and its neighbours, nearest first [..., k] -> bool [..., k]."""
        moved = qn[..., 1:].cumsum(-1)  # Σ_{A∖x} q, growing
        qx = qn[..., :1]
        if self.bound == "multiplicative":
            keep = moved <= (self.limit - 1.0) * qx
        else:
            distance = moved if self.bound == "tvd" else _jsd(qx, moved)
            keep = distance <= self.limit if self.inclusive else distance < self.limit
        return torch.cat([torch.ones_like(qx, dtype=torch.bool), keep], -1)


class Typical:
    """q̃ = ∞ where q(x) > min(ε, √ε·exp(−H(q))), else 0: likely enough is accepted for sure (Medusa, section 2.3.1)."""

    lossless = False

    def __init__(self, epsilon: float):
        self.epsilon = epsilon

    def __call__(self, q: Tensor, x: Tensor, depth: Tensor) -> Mass:
        entropy = torch.special.entr(q).sum(-1)  # H(q), nats
        threshold = (self.epsilon**0.5 * torch.exp(-entropy)).clamp(max=self.epsilon)
        return Mass(torch.where(at(q, x) > threshold, torch.inf, 0.0))


def _jsd(qx: Tensor, moved: Tensor) -> Tensor:
    """Jensen–Shannon divergence, nats, of q and q with mass ``moved`` put onto x, in closed form."""
    mean = qx + moved / 2
    to_mean = torch.special.xlogy(qx + moved, (qx + moved) / mean) + torch.special.xlogy(qx, qx / mean)
    return (0.5 * (moved * math.log(2) + to_mean)).nan_to_num(0.0)


def everywhere(rule: Rule, q: Tensor, depth: Tensor) -> Tensor:
    """q̃(y) for every token y: [..., V]."""
    if isinstance(rule, Exact):
        return q
    if isinstance(rule, Annealed):
        return rule.omega[depth][..., None] * q
    tokens = torch.arange(q.shape[-1], device=q.device).expand(q.shape)
    return rule(q[..., None, :].expand(*q.shape, -1), tokens, depth[..., None]).value


def relaxed(q: Tensor, x: Tensor, mass: Mass) -> Tensor:
    """q_{k,δ}(·|x): the group's mass on x, 0 on the rest of the group, q elsewhere: [..., V]."""
    if mass.group is None or mass.taken is None:
        return q.scatter(-1, x[..., None], mass.value[..., None])
    # a token outside A writes back its own q, so that one scatter does
    kept = torch.where(mass.taken, 0.0, q.gather(-1, mass.group))
    return q.scatter(-1, mass.group, kept).scatter(-1, x[..., None], mass.value[..., None])


# ---------------------------------------------------------------- residuals


def standard(q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: Rule) -> Tensor:
    """∝ [q − p]₊ (Leviathan et al. 2023, eq. 2)."""
    return q.scatter(-1, x[..., None], 0.0) if p is None else (q - p).clamp_(min=0)


def lantern(q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: Rule) -> Tensor:
    """∝ [q_{k,δ}(·|x) − p]₊ (LANTERN, eq. 7)."""
    moved = relaxed(q, x, rule(q, x, depth))
    return moved.scatter_(-1, x[..., None], 0.0) if p is None else (moved - p).clamp_(min=0)


def optimal(q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: Rule) -> Tensor:
    """∝ [q − p·f]₊ with f = min(1, q̃/p), the residual that minimises the TV bound (Cool-SD, Theorem 2)."""
    if p is None:
        left = (at(q, x) - rule(q, x, depth).value.clamp(max=1)).clamp_(min=0)
        return q.scatter(-1, x[..., None], left[..., None])
    return (q - torch.minimum(p, everywhere(rule, q, depth))).clamp_(min=0)


def lantern_reference(q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: Rule) -> Tensor:
    """What LANTERN's public code samples after a rejection.

    If A holds any neighbour, all ``barred`` ones count, whatever the bound: a chosen child takes them down with it, and
    from a sampled one's residual p is not subtracted there, so that they keep all of q.  If A is empty it is the
    standard residual; a residual that is 0 everywhere becomes uniform over the vocabulary.
    """
    rest = standard(q, p, x, depth, rule)
    if isinstance(rule, Lantern):
        taken = rule(q, x, depth).taken
        assert taken is not None
        some = taken[..., 1:].any(-1, keepdim=True)
        near = rule.barred[x][..., 1:]
        kept = torch.zeros((), dtype=q.dtype, device=q.device) if p is None else q.gather(-1, near)
        rest = rest.scatter(-1, near, torch.where(some, kept, rest.gather(-1, near)))
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, 1.0)


RESIDUALS: dict[str, Callable[..., Tensor]] = {
    "standard": standard,
    "lantern": lantern,
    "optimal": optimal,
    "lantern-reference": lantern_reference,
}


def normalised(rest: Tensor, fallback: Tensor) -> Tensor:
    """A residual as a distribution; where it is 0 everywhere, ``fallback`` [..., V] (the distribution it came from)."""
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, fallback)
