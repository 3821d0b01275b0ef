"""A second definition of every method, from the papers' formulas alone: floats and lists, no
tensor, no engine code.

This file has a world small enough to enumerate, whose target q and drafter p are functions of the
prefix; every outcome of a program that draws; and a method by its steps.  ``rules`` has acceptance
rules, ``drafts`` draft trees and the windows of the Jacobi family, ``rows`` several rows at once.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Generic, NamedTuple, Self, TypeVar

from lanternbench.engine.plain import PlainResidual, PlainRule, Probs, standard_residual
from lanternbench.settings import Sampling

Prefix = tuple[int, ...]
Path = tuple[int, ...]  # of a draft tree, from the root: tokens, or their ranks among siblings
Logits = Callable[[Prefix], list[float]]
Law = tuple[float, ...]  # a distribution
Probabilities = dict[Prefix, float]  # of images, or of their beginnings
T = TypeVar("T", bound=Hashable)
State = TypeVar("State", bound=tuple)  # begins with what was committed


def guide(cond: list[float], uncond: list[float], scale: float) -> list[float]:
    """Classifier-free guidance: uncond + s·(cond − uncond).  A token banned on either side stays
    banned.
    """
    guided = []
    for c, u in zip(cond, uncond, strict=True):
        banned = -math.inf in (c, u)
        guided.append(-math.inf if banned else u + scale * (c - u))
    return guided


def warp(logits: list[float], sampling: Sampling) -> Law:
    """Temperature, then top-k (ties of the k-th stay), then top-p (the fewest tokens whose mass
    reaches p).
    """
    logits = [x / sampling.temperature for x in logits]
    logits = likely(logits, sampling.top_k)
    probs = softmax(logits)
    if sampling.top_p < 1:
        mass = 0.0
        for x in sorted(range(len(probs)), key=lambda x: -probs[x]):
            if mass >= sampling.top_p:
                logits[x] = -math.inf
            mass += probs[x]
        probs = softmax(logits)
    if sampling.min_p > 0:
        least = sampling.min_p * max(probs)
        probs = normalise([q if q >= least else 0.0 for q in probs])
    return probs


def likely(logits: list[float], top_k: int) -> list[float]:
    """Logits without those below the ``top_k``-th; 0 keeps all."""
    if not 0 < top_k < len(logits):
        return logits
    kth = sorted(logits, reverse=True)[top_k - 1]
    return [x if x >= kth else -math.inf for x in logits]


def softmax(logits: list[float]) -> Law:
    top = max(logits)
    return normalise([math.exp(x - top) for x in logits])


def normalise(weights: Probs, otherwise: Law = ()) -> Law:
    """Weights as a distribution; if all are zero, ``otherwise`` (by default all zero)."""
    total = math.fsum(weights)
    if total > 0:
        return tuple(w / total for w in weights)
    return otherwise or tuple(weights)


def one_hot(x: int | None, vocab: int) -> Law:
    return tuple(float(y == x) for y in range(vocab))


def without(p: Probs, x: int) -> Law:
    """p of the next sibling: x removed, renormalised; all zero if nothing is left."""
    return normalise([0.0 if y == x else p_y for y, p_y in enumerate(p)])


def total_variation(a: Iterable[float], b: Iterable[float]) -> float:
    """½ Σ |a − b| of two distributions."""
    return 0.5 * math.fsum(abs(x - y) for x, y in zip(a, b, strict=True))


@dataclass(eq=False)
class World:
    """Target and drafter on images of ``length`` tokens out of ``vocab``.

    ``target``, ``drafter`` and their unconditional twins map a prefix to V logits
    (log-probabilities will do; −∞ bans a token).  They are asked beyond the last token too, because
    drafts may reach further than the image.  ``q`` and ``p`` are the distributions of target and
    drafter after a prefix: guided, then warped.
    """

    vocab: int
    length: int
    target: Logits
    drafter: Logits | None = None
    target_uncond: Logits | None = None
    drafter_uncond: Logits | None = None
    sampling: Sampling = field(default_factory=Sampling)
    warp: Callable[[list[float], Sampling], Law] = warp
    grid_width: int = 2
    codebook: list[list[float]] = field(default_factory=list)  # V rows
    q: Callable[[Prefix], Law] = field(init=False)
    p: Callable[[Prefix], Law] = field(init=False)

    def __post_init__(self) -> None:
        self.q = self.warped(self.target, self.target_uncond)
        if self.drafter is not None:
            self.p = self.warped(self.drafter, self.drafter_uncond)

    def warped(self, cond: Logits, uncond: Logits | None) -> Callable[[Prefix], Law]:
        """The distribution that decoding draws from, as a function of the prefix."""

        @cache
        def distribution(prefix: Prefix) -> Law:
            logits = cond(prefix)
            if uncond is not None:
                logits = guide(logits, uncond(prefix), self.sampling.guidance)
            return self.warp(logits, self.sampling)

        return distribution

    def drafting_after(self, committed: int) -> Self:
        """This world, with a drafter for which whatever comes after so many tokens is token 0."""
        other = copy(self)
        other.p = lambda prefix: self.p(prefix[:committed] + (0,) * len(prefix[committed:]))
        return other

    def first_tokens(self) -> Probabilities:
        """P(x) of a first token that a prefill draws."""
        return {(x,): q_x for x, q_x in enumerate(self.q(())) if q_x > 0}

    def joint(self) -> Probabilities:
        """P(image) under the target: Π_t q(x_t | x_<t)."""
        images: Probabilities = {(): 1.0}
        for _ in range(self.length):
            longer = {}
            for prefix, probability in images.items():
                for x, q_x in enumerate(self.q(prefix)):
                    if q_x > 0:
                        longer[(*prefix, x)] = probability * q_x
            images = longer
        return images


class DeadEnd(Exception):
    """A draw from a law without any mass."""


@dataclass
class Draws:
    """The draws of one run of a program, of which the first are ``fixed``; their probability, and
    the loss of the tests after them.
    """

    fixed: tuple[int, ...] = ()
    drawn: tuple[int, ...] = ()
    probability: float = 1.0
    loss: float = 0.0
    others: list[tuple[int, ...]] = field(default_factory=list)  # the fixed ones of further runs

    def token(self, law: Probs) -> int:
        """A token from its distribution."""
        count = len(self.drawn)
        if count < len(self.fixed):
            x = self.fixed[count]
        else:
            possible = [x for x, mass in enumerate(law) if mass > 0]
            if not possible:
                raise DeadEnd
            x = possible[0]
            self.others += [(*self.drawn, other) for other in possible[1:]]
        self.drawn = (*self.drawn, x)
        self.probability *= law[x]
        return x

    def accepts(self, f: float) -> bool:
        """True with probability f."""
        return self.token((1 - f, f)) == 1

    def among(self, outcomes: dict[T, float]) -> T:
        """One of what another program can return."""
        return list(outcomes)[self.token(list(outcomes.values()))]

    def lose(self, q: Law, law: Callable[[], Law]) -> None:
        """Count TV(q, law()) as a loss, once over all runs that have the draws before it in
        common.
        """
        if len(self.drawn) >= len(self.fixed):
            self.loss += self.probability * total_variation(q, law())


def outcomes(program: Callable[[Draws], T]) -> tuple[dict[T, float], float]:
    """Everything that the program can return, with probabilities, and its expected loss."""
    returned: dict[T, float] = defaultdict(float)
    loss = 0.0
    runs = [Draws()]
    while runs:
        draws = runs.pop()
        with suppress(DeadEnd):
            result = program(draws)
            returned[result] += draws.probability
        loss += draws.loss
        runs += map(Draws, draws.others)
    return returned, loss


class Family(NamedTuple):
    """The children of a node in draft order: tokens, or None for one that is drawn from p when it
    is tried.  p is None if they were chosen, which counts as p = 1 at each.
    """

    tokens: Sequence[int | None]
    p: Law | None


# tokens and ranks on the path to a node -> its children
FamilyAt = Callable[[Path, Path], Family]


@dataclass(frozen=True)
class PlainMethod(Generic[State]):
    """A way to draft, and the rule and residual that judge drafts: the exact ones unless others
    are given.

    A state is what a method carries from one step to the next.
    """

    rule: PlainRule = field(default_factory=PlainRule)
    residual: PlainResidual = standard_residual

    @property
    def deepest(self) -> int:
        """L, the deepest draft position; 0 if nothing is drafted."""
        return 0

    def world(self, world: World) -> World:
        """The world in which it decodes."""
        return world

    def start(self, world: World) -> dict[State, float]:
        """The states before the first step, with probabilities."""
        raise NotImplementedError

    def step(self, world: World, state: State) -> Callable[[Draws], State]:
        """The program of one step, which returns the next state."""
        raise NotImplementedError

    def tokens(self, state: State) -> Prefix:
        """All committed tokens, which are an image once there are ``length``."""
        return state[0]

    def verified(self, draws: Draws, world: World, prefix: Prefix, family_at: FamilyAt) -> Prefix:
        """The tokens that a step commits after ``prefix``: the accepted path, and the token that
        ends the step.

        What is drawn at nodes that are never reached plays no part.
        """
        path: Path = ()
        ranks: Path = ()
        while len(prefix + path) < world.length:
            q = world.q(prefix + path)
            rank, token = self.decided(draws, q, family_at(path, ranks), len(path) + 1)
            path = (*path, token)
            if rank is None:
                break
            ranks = (*ranks, rank)
        return path

    def decided(self, draws: Draws, q: Law, family: Family, depth: int) -> tuple[int | None, int]:
        """Rank and token of the accepted child; None and a token of the residual if all are
        rejected, or a bonus token of q if there are none.

        Children are tried in draft order, each against what the earlier rejections left of q and
        p.
        """
        p = family.p or ()
        for rank, child in enumerate(family.tokens):
            if family.p is None:
                p = one_hot(child, len(q))
            elif child is None and not any(p):
                break  # p is exhausted: there are no more children
            draws.lose(q, partial(self.kernel, q, p, p, depth))
            x = draws.token(p) if child is None else child
            if draws.accepts(self.rule.probability(q, p, x, depth)):
                return rank, x
            q = self.after_rejection(q, p, x, depth)
            p = without(p, x)
        return None, draws.token(q)

    def after_rejection(self, q: Law, p: Law, x: int, depth: int) -> Law:
        """The distribution after x was rejected; q itself if the residual's formula leaves
        nothing.
        """
        return normalise(self.residual(q, p, x, depth, self.rule), q)

    def kernel(self, q: Law, p: Law, law: Law, depth: int) -> Law:
        """K = ℓ·f + Σ_x ℓ(x)·(1 − f(x))·G_x: what a test leaves of a draft from ℓ, ``law``
        (Cool-SD, Theorem 2).
        """
        mass = [0.0] * len(q)
        for x, share in enumerate(law):
            if share == 0:
                continue
            f = self.rule.probability(q, p, x, depth)
            mass[x] += share * f
            if f < 1:
                for y, g in enumerate(self.after_rejection(q, p, x, depth)):
                    mass[y] += share * (1 - f) * g
        return tuple(mass)


def decode_by_steps(world: World, method: PlainMethod[State]) -> tuple[list[Probabilities], float]:
    """P(image after 1, 2, … steps), a prefill's token before them; and the expected fidelity
    loss.
    """
    by_steps: list[Probabilities] = []
    total_loss = 0.0
    world = method.world(world)
    states = method.start(world)
    while states:
        images: Probabilities = defaultdict(float)
        unfinished: dict[State, float] = defaultdict(float)
        for state, weight in states.items():
            next_states, loss = outcomes(method.step(world, state))
            total_loss += weight * loss
            for next_state, probability in next_states.items():
                tokens = method.tokens(next_state)
                if len(tokens) == world.length:
                    images[tokens] += weight * probability
                else:
                    unfinished[next_state] += weight * probability
        by_steps.append(images)
        states = unfinished
    return by_steps, total_loss
