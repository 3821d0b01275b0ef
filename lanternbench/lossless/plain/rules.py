"""Acceptance rules in scalar Python, from their papers alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from lanternbench.engine.plain import PlainRule, Probs

Codes = list[list[float]]  # [V][d]
Within = Callable[[Probs, list[int]], bool]  # (q, A) -> whether A may be so large


@dataclass(frozen=True)
class AnnealedRule(PlainRule):
    """ω_i·q(x)/p(x) (Cool-SD, eq. 6)."""

    lam: float
    schedule: str
    nu: float
    length: int  # L, the deepest draft position

    def omega(self, i: int) -> float:
        if self.schedule == "uniform":
            return self.lam
        if self.schedule == "exp":  # λ·L·ν^(i−1) / Σ_j ν^(j−1)
            powers = [self.nu ** (j - 1) for j in range(1, self.length + 1)]
            return self.lam * self.length * powers[i - 1] / sum(powers)
        # the steepest line of mean λ that stays positive: ω_i ∝ L + 1 − i
        return 2 * self.lam * (self.length + 1 - i) / (self.length + 1)

    def ratio(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        return self.omega(depth) * q[x] / p[x]


@dataclass(frozen=True)
class TypicalRule(PlainRule):
    """Medusa, section 2.3.1: q(x) > min(ε, √ε·exp(−H(q)))."""

    epsilon: float

    def ratio(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        entropy = -math.fsum(q_y * math.log(q_y) for q_y in q if q_y > 0)
        threshold = min(self.epsilon, math.sqrt(self.epsilon) * math.exp(-entropy))
        return float(q[x] > threshold)


@dataclass(frozen=True)
class TopKRule(PlainRule):
    """The target's k likeliest tokens with q(x) ≥ ρ·max q; of equal ones the lower id first."""

    k: int
    rho: float

    def ratio(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        order = sorted(range(len(q)), key=lambda y: (-q[y], y))
        return float(x in order[: self.k] and q[x] >= self.rho * max(q))


def mass(q: Probs, group: list[int]) -> float:
    return math.fsum(q[y] for y in group)


@dataclass(frozen=True)
class GroupRule(PlainRule):
    """Σ_C q / Σ_C p (GSD): C(x) is within ± ``ranks`` of x by q, |q(y) − q(x)| < ``margin``, squared
    distance of codes < ``radius``.
    """

    ranks: int
    margin: float
    radius: float
    codes: Codes

    def group(self, q: Probs, x: int) -> list[int]:
        order = sorted(range(len(q)), key=lambda y: (q[y], y))
        place = order.index(x)
        members = [x]
        for y in order[max(0, place - self.ranks) : place + self.ranks + 1]:
            distance = math.dist(self.codes[y], self.codes[x]) ** 2
            if y != x and abs(q[y] - q[x]) < self.margin and distance < self.radius:
                members.append(y)
        return members

    def ratio(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        group = self.group(q, x)
        return mass(q, group) / mass(p, group)


@dataclass(frozen=True)
class NearbyRule(PlainRule):
    """Σ_A q / p(x) (LANTERN, eq. 4–6): A grows from x, nearest first, while ``within`` (q, A)
    holds.
    """

    k: int
    proximity: str  # l2 or cosine
    codes: Codes
    within: Within

    @cached_property
    def neighbours(self) -> list[list[int]]:
        return nearest(self.codes, self.k, self.proximity)

    def group(self, q: Probs, x: int) -> list[int]:
        members = [x]
        for y in self.neighbours[x][1:]:
            if not self.within(q, [*members, y]):
                break
            members.append(y)
        return members

    def ratio(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        return mass(q, self.group(q, x)) / p[x]


def within_divergence(delta: float, divergence: str) -> Within:
    """D(q_{k,δ}, q) < δ, D the total variation ``tvd`` or the Jensen–Shannon divergence ``jsd``."""
    if divergence == "jsd":
        return lambda q, group: jensen_shannon(q, moved_onto(q, group)) < delta
    return lambda q, group: mass(q, group[1:]) < delta


def within_ratio(lam: float) -> Within:
    """Σ_{A∖x} q ≤ (λ − 1)·q(x) (LANTERN++, eq. 3)."""
    return lambda q, group: mass(q, group[1:]) <= (lam - 1) * q[group[0]]


def moved_onto(q: Probs, group: list[int]) -> Probs:
    """q_{k,δ}(·|x): the group's mass on its first token x, 0 on the rest of it, q elsewhere
    (LANTERN, eq. 5).
    """
    moved = list(q)
    for y in group:
        moved[y] = 0.0
    moved[group[0]] = mass(q, group)
    return moved


def jensen_shannon(a: Probs, b: Probs) -> float:
    """In nats, by its definition."""
    mean = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
    return 0.5 * (divergence(a, mean) + divergence(b, mean))


def divergence(a: Probs, b: Probs) -> float:
    """Kullback–Leibler divergence of b from a, nats."""
    return math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)


def nearest(codes: Codes, k: int, proximity: str = "l2") -> list[list[int]]:
    """B_k(x) of every token x (LANTERN, eq. 3): x first, then by distance, then by id."""
    distance = math.dist if proximity == "l2" else cosine_distance
    table = []
    for x, code in enumerate(codes):
        distances = [distance(code, other) for other in codes]
        others = sorted(range(len(codes)), key=distances.__getitem__)
        others.remove(x)
        table.append([x, *others][:k])
    return table


def cosine_distance(a: Sequence[float], b: Sequence[float]) -> float:
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return 1 - product / (math.hypot(*a) * math.hypot(*b))


class Ending(NamedTuple):
    """One way in which the verification of a chain can end."""

    probability: float
    accepted: int
    weights: Probs  # of the next token; 0 everywhere: the target's distribution


class ChainRule(PlainRule):
    """A rule that judges a chain as a whole."""

    def endings(
        self, qs: Sequence[Probs], ps: Sequence[Probs], xs: tuple[int, ...]
    ) -> list[Ending]:
        """q_1 … q_{L+1} and p_1 … p_L along x_1 … x_L."""
        raise NotImplementedError


def positive_residual(w: float, q: Probs, p: Probs) -> Probs:
    """[w·q − p]₊."""
    return [max(0.0, w * q_y - p_y) for q_y, p_y in zip(q, p, strict=True)]


def ratios(qs: Sequence[Probs], ps: Sequence[Probs], xs: tuple[int, ...]) -> list[float]:
    """q_i(x_i)/p_i(x_i) along a chain."""
    return [q[x] / p[x] for q, p, x in zip(qs, ps, xs, strict=False)]


class BlockRule(ChainRule):
    """Block verification (Sun et al. 2024, algorithm 2)."""

    def endings(
        self, qs: Sequence[Probs], ps: Sequence[Probs], xs: tuple[int, ...]
    ) -> list[Ending]:
        length = len(xs)
        w = [1.0]
        for ratio in ratios(qs, ps, xs):
            w.append(min(1.0, w[-1] * ratio))
        # the longest i whose uniform is at most h_i; h_L = w_L
        endings = [Ending(w[length], length, qs[length])]
        not_longer = 1 - w[length]
        for i in reversed(range(length)):
            residual = positive_residual(w[i], qs[i], ps[i])
            total = math.fsum(residual)
            h = total / (total + 1 - w[i]) if total > 0 else 0.0
            if i == 0:
                h = 1.0
            endings.append(Ending(not_longer * h, i, residual))
            not_longer *= 1 - h
        return endings


@dataclass(frozen=True)
class SegmentRule(ChainRule):
    """Segments (SJD-SV): see ``methods.acceptance.chains``."""

    alpha: float
    excluded: str = "tested"  # or accepted: drafts with q(x) = 0 at the head of a segment

    def endings(
        self, qs: Sequence[Probs], ps: Sequence[Probs], xs: tuple[int, ...]
    ) -> list[Ending]:
        q_x = [q[x] for q, x in zip(qs, xs, strict=False)]
        ratio = ratios(qs, ps, xs)
        endings = []
        reached = 1.0  # P(all segments before were accepted whole)
        for begin, end in segments(q_x):
            tail = self.tail(q_x, begin, end)
            passing = [1.0]  # P(the tail passes up to token i − 1), i from the tail's first
            for i in range(tail, end):
                passing.append(min(1.0, math.prod(ratio[tail : i + 1])))
            # one uniform: token i is rejected if it passes those before and nothing longer
            longer = passing[-1]
            for i in reversed(range(tail, end)):
                passes = max(longer, passing[i - tail])
                residual = positive_residual(1.0, qs[i], ps[i])
                endings.append(Ending(reached * (passes - longer), i, residual))
                longer = passes
            reached *= passing[-1]
        length = len(xs)
        return [*endings, Ending(reached, length, qs[length])]

    def tail(self, q_x: list[float], begin: int, end: int) -> int:
        """b_g: the last position from which on the segment holds the share α of its Σ q(x)."""
        total = math.fsum(q_x[begin:end])
        if total == 0 or (q_x[begin] == 0 and self.excluded == "tested"):
            return begin
        tail = end - 1
        while math.fsum(q_x[tail:end]) < self.alpha * total:
            tail -= 1
        return tail


def segments(q_x: list[float]) -> list[tuple[int, int]]:
    """The runs of drafts, from ``begin`` to before ``end``, along which q(x) does not fall."""
    begins = [i for i in range(len(q_x)) if i == 0 or q_x[i] < q_x[i - 1]]
    return list(pairwise([*begins, len(q_x)]))
