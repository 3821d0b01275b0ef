"""Acceptance rules and residuals, one token at a time, as the papers write them.

q is the target, p the drafter, both after guidance, temperature, top-k and top-p.  p None means that the child was
chosen and not sampled: p is then 1 at x.  Every rule is a function f(x) = acceptance(rule, q, p, x, depth).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lanternbench.lossless.plain.world import normalise, one_hot

OwnRule = Callable[[list[float], "list[float] | None", int, int], float]  # (q, p, x, depth) -> f(x)
OwnResidual = Callable[[list[float], "list[float] | None", int, int], list[float]]  # (q, p, x, depth) -> [V] ≥ 0


@dataclass(frozen=True)
class Rule:
    """An acceptance rule by name, with the options of its paper.

    ``exact`` · ``annealed`` (lam, schedule, nu, length) · ``lantern`` (near, delta, distance) · ``lantern++`` (near,
    lam) · ``typical`` (epsilon) · ``top-k`` (top, rho) · ``grouped`` (ranks, dq, radius, codebook).
    """

    name: str = "exact"
    lam: float = 2.0
    schedule: str = "exp"
    nu: float = 0.7
    length: int = 1  # L, the deepest draft position
    near: tuple[tuple[int, ...], ...] = ()  # B_k of every token, nearest first, itself included
    delta: float = 0.1
    distance: str = "tvd"
    epsilon: float = 0.09
    top: int = 1
    rho: float = 0.0
    ranks: int = 7
    dq: float = 0.15
    radius: float = 0.5  # of the squared codebook distance
    codebook: tuple[tuple[float, ...], ...] = ()
    own: OwnRule | None = None  # f itself, of a rule that is none of these
    own_residual: OwnResidual | None = None  # weights of a residual that is none of the three below


EXACT = Rule()


def acceptance(rule: Rule, q: list[float], p: list[float] | None, x: int, depth: int) -> float:
    """f(x): the probability that the drafted token x at draft position ``depth`` = 1 … L is accepted."""
    px = 1.0 if p is None else p[x]
    if px == 0:
        return 0.0  # p cannot have drawn it
    if rule.own is not None:
        return min(1.0, rule.own(q, p, x, depth))
    if rule.name == "typical":  # Medusa, section 2.3.1: q(x) > min(ε, √ε·exp(−H(q)))
        return float(q[x] > min(rule.epsilon, math.sqrt(rule.epsilon) * math.exp(-entropy(q))))
    if rule.name == "top-k":  # among the K likeliest, and q(x) ≥ ρ·max q
        rank = sum(qy > q[x] or (qy == q[x] and y < x) for y, qy in enumerate(q))
        return float(rank < rule.top and q[x] >= rule.rho * max(q))
    if rule.name == "grouped":  # GSD: min(1, Σ_C q / Σ_C p)
        group = gsd_group(rule, q, x)
        drafted = math.fsum(one_hot(x, len(q))[y] if p is None else p[y] for y in group)
        return min(1.0, math.fsum(q[y] for y in group) / drafted)
    return min(1.0, relaxed_target(rule, q, x, depth) / px)


def relaxed_target(rule: Rule, q: list[float], x: int, depth: int) -> float:
    """q̃(x), of which exact, annealed, LANTERN and LANTERN++ accept min(1, q̃(x)/p(x))."""
    if rule.name == "exact":  # Leviathan et al. 2023, algorithm 1
        return q[x]
    if rule.name == "annealed":  # Cool-SD, eq. 6: ω_i·q(x)
        return omega(rule.schedule, rule.lam, rule.length, rule.nu)[depth - 1] * q[x]
    if rule.name in ("lantern", "lantern++"):  # LANTERN, eq. 5: q_{k,δ}(x) = Σ_{y∈A} q(y)
        return math.fsum(q[y] for y in neighbourhood(rule, q, x))
    raise ValueError(f"no rule is called {rule.name!r}")


def omega(schedule: str, lam: float, length: int, nu: float) -> list[float]:
    """Cool-SD, section 4: ω_1 … ω_L with Σω_i = L·λ."""
    if schedule == "uniform":
        return [lam] * length
    if schedule == "exp":  # ω_i = λ·L·ν^(i−1) / Σ_j ν^(j−1)
        return [
            lam * length * nu ** (i - 1) / sum(nu ** (j - 1) for j in range(1, length + 1)) for i in positions(length)
        ]
    if schedule == "linear":  # the steepest line of mean λ that stays positive: ω_i ∝ L + 1 − i
        return [2 * lam * (length + 1 - i) / (length + 1) for i in positions(length)]
    raise ValueError(f"no schedule is called {schedule!r}")


def positions(length: int) -> range:
    return range(1, length + 1)


def nearest(codebook: list[list[float]], k: int, proximity: str = "l2") -> tuple[tuple[int, ...], ...]:
    """B_k(x) of every token x, nearest first by ``l2`` or ``cosine``, x itself included and first (LANTERN, eq. 3)."""
    near = []
    for x, code in enumerate(codebook):
        far = math.dist if proximity == "l2" else cosine_distance
        order = sorted(range(len(codebook)), key=lambda y: (y != x, far(code, codebook[y]), y))
        near.append(tuple(order[:k]))
    return tuple(near)


def cosine_distance(a: list[float], b: list[float]) -> float:
    return 1 - math.fsum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def neighbourhood(rule: Rule, q: list[float], x: int) -> list[int]:
    """A_{k,δ}(x): grown from x, nearest first, as far as the bound allows (LANTERN, eq. 4; LANTERN++, eq. 3)."""
    group, moved = [x], 0.0
    for y in rule.near[x][1:]:
        moved += q[y]
        if rule.name == "lantern++":
            inside = moved <= (rule.lam - 1) * q[x]
        else:
            far = moved if rule.distance == "tvd" else jsd(q, moved_onto(q, [*group, y], x))
            inside = far < rule.delta
        if not inside:
            break
        group.append(y)
    return group


def moved_onto(q: list[float], group: list[int], x: int) -> list[float]:
    """q_{k,δ}(·|x): the group's mass on x, 0 on the rest of the group, q elsewhere (LANTERN, eq. 5)."""
    moved = [0.0 if y in group else qy for y, qy in enumerate(q)]
    moved[x] = math.fsum(q[y] for y in group)
    return moved


def jsd(a: list[float], b: list[float]) -> float:
    """Jensen–Shannon divergence in nats."""
    mean = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
    return 0.5 * kl(a, mean) + 0.5 * kl(b, mean)


def kl(a: list[float], b: list[float]) -> float:
    return math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)


def entropy(q: list[float]) -> float:
    return -math.fsum(x * math.log(x) for x in q if x > 0)


def gsd_group(rule: Rule, q: list[float], x: int) -> list[int]:
    """GSD's C(x): within ± ``ranks`` of x by q, |q(y) − q(x)| < dq, squared codebook distance < radius."""
    order = sorted(range(len(q)), key=lambda y: (q[y], y))
    at = order.index(x)
    window = order[max(0, at - rule.ranks) : at + rule.ranks + 1]
    codes = rule.codebook
    return [
        y for y in window if y == x or (abs(q[y] - q[x]) < rule.dq and math.dist(codes[y], codes[x]) ** 2 < rule.radius)
    ]


# ---------------------------------------------------------------- residuals


def residual(name: str, q: list[float], p: list[float] | None, x: int, rule: Rule, depth: int) -> list[float]:
    """The distribution after x was rejected.  Where its formula leaves nothing, q itself."""
    vocab = len(q)
    drafted = one_hot(x, vocab) if p is None else p
    if rule.own_residual is not None:
        left = rule.own_residual(q, p, x, depth)
    elif name == "standard":  # ∝ [q − p]₊ (Leviathan et al. 2023, algorithm 1)
        left = positive_part(q, drafted)
    elif name == "lantern":  # ∝ [q_{k,δ}(·|x) − p]₊ (LANTERN, eq. 7); without a group that is the standard residual
        group = neighbourhood(rule, q, x) if rule.near else [x]
        left = positive_part(moved_onto(q, group, x), drafted)
    elif name == "optimal":  # ∝ [q − p·f]₊ (Cool-SD, Theorem 2)
        f = [acceptance(rule, q, p, y, depth) if drafted[y] else 0.0 for y in range(vocab)]
        left = positive_part(q, [py * fy for py, fy in zip(drafted, f, strict=True)])
    else:
        raise ValueError(f"no residual is called {name!r}")
    return normalise(left, q)


def positive_part(q: list[float], p: list[float]) -> list[float]:
    """[q − p]₊, differences below 1e-15 counted as the rounding that they are."""
    return [d if (d := qx - px) > 1e-15 else 0.0 for qx, px in zip(q, p, strict=True)]


def without(p: list[float], x: int) -> list[float]:
    """p of the next sibling: x removed, renormalised; all zero where nothing is left."""
    return normalise([0.0 if y == x else py for y, py in enumerate(p)])


def stage_loss(name: str, q: list[float], p: list[float] | None, x: int, rule: Rule, depth: int) -> float:
    """TV(q, K) of one test, K = p·f + Σ_x p(x)·(1 − f(x))·G_x (Cool-SD, Theorem 2; p None: x alone can be drafted)."""
    vocab = len(q)
    drafted = one_hot(x, vocab) if p is None else p
    kernel = [0.0] * vocab
    for y, py in enumerate(drafted):
        if py > 0:
            f = acceptance(rule, q, p, y, depth)
            kernel[y] += py * f
            if f < 1:
                rest = residual(name, q, p, y, rule, depth)
                kernel = [k + py * (1 - f) * g for k, g in zip(kernel, rest, strict=True)]
    return 0.5 * math.fsum(abs(a - b) for a, b in zip(q, kernel, strict=True))


# ---------------------------------------------------------------- block verification


def block(qs: list[list[float]], ps: list[list[float]], xs: tuple[int, ...]) -> list[tuple[float, int, list[float]]]:
    """Block verification (arXiv 2403.10444, algorithm 2) of the chain x_1 … x_L.

    qs: q_1 … q_{L+1} along the chain; ps: p_1 … p_L.  -> (probability, accepted length i, law of the token after it).
    """
    length = len(xs)
    w = [1.0]
    for q, p, x in zip(qs, ps, xs, strict=False):
        w.append(min(1.0, w[-1] * q[x] / p[x]))  # w_i = min(1, w_{i−1}·q_i(x_i)/p_i(x_i))
    rest = [[max(0.0, w[i] * qy - py) for qy, py in zip(qs[i], ps[i], strict=True)] for i in range(length)]
    h = []
    for i in range(length):  # h_i = Σ(w_i q − p)₊ / (Σ(w_i q − p)₊ + 1 − w_i)
        left = math.fsum(rest[i])
        h.append(left / (left + 1 - w[i]) if left > 0 else 0.0)
    h.append(w[length])
    outcomes, longer = [], 1.0
    for i in range(length, -1, -1):  # the longest i whose uniform is at most h_i
        stop = h[i] if i else 1.0
        law = qs[length] if i == length else normalise(rest[i], qs[i])
        outcomes.append((longer * stop, i, law))
        longer *= 1 - stop
    return outcomes
