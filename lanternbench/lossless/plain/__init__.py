"""A second definition of every method, from the papers' formulas alone: floats and lists, no
tensor, no engine code.

Here: a world small enough to enumerate, whose target q and drafter p are functions of the prefix,
after guidance, temperature, top-k and top-p; every outcome of a program that draws; a method by
its steps, with its rule and residual at work, whose scalar definitions the components give
themselves.  ``drafts``: draft trees and windows of the Jacobi family.  ``rows``: several rows at
once.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self, TypeVar

from lanternbench.engine.plain import PlainRule, Probs
from lanternbench.settings import Sampling

Prefix = tuple[int, ...]
Path = tuple[int, ...]  # of a draft tree, from the root: tokens, or their ranks among siblings
Logits = Callable[[Prefix], list[float]]
T = TypeVar("T", bound=Hashable)


@dataclass
class World:
    """Target and drafter on images of ``length`` tokens out of ``vocab``.

    ``target``, ``drafter`` and their unconditional twins map a prefix to V logits
    (log-probabilities will do; −∞ bans a token).  They are asked beyond the last token too, as
    drafts may reach further than the image.  ``q``, ``p``: the distributions of target and drafter
    after a prefix.
    """

    vocab: int
    length: int
    target: Logits
    drafter: Logits | None = None
    target_uncond: Logits | None = None
    drafter_uncond: Logits | None = None
    sampling: Sampling = field(default_factory=Sampling)
    grid_width: int = 2
    codebook: list[list[float]] = field(default_factory=list)  # V rows

    def __post_init__(self) -> None:
        self.q: Callable[[Prefix], Probs] = cache(
            lambda at: self._warped(self.target, self.target_uncond, at)
        )
        self.p: Callable[[Prefix], Probs] = cache(
            lambda at: self._warped(self.drafter, self.drafter_uncond, at)
        )

    def drafting_after(self, committed: int) -> Self:
        """This world, with a drafter for which whatever comes after so many tokens is token 0."""
        other = copy(self)
        other.p = lambda prefix: self.p(prefix[:committed] + (0,) * len(prefix[committed:]))
        return other

    def _warped(self, cond: Logits | None, uncond: Logits | None, prefix: Prefix) -> list[float]:
        assert cond is not None, "this world has no drafter"
        logits = cond(prefix)
        if uncond is not None:
            logits = guide(logits, uncond(prefix), self.sampling.guidance)
        return warp(logits, self.sampling)

    def joint(self) -> dict[Prefix, float]:
        """P(image) under the target: Π_t q(x_t | x_<t)."""
        images: dict[Prefix, float] = {(): 1.0}
        for _ in range(self.length):
            images = {
                (*s, x): w * qx
                for s, w in images.items()
                for x, qx in enumerate(self.q(s))
                if qx > 0
            }
        return images


def guide(cond: list[float], uncond: list[float], scale: float) -> list[float]:
    """Classifier-free guidance: uncond + s·(cond − uncond).  A token banned on either side stays
    banned.
    """
    return [
        -math.inf if math.inf in (-c, -u) else u + scale * (c - u)
        for c, u in zip(cond, uncond, strict=True)
    ]


def warp(logits: list[float], sampling: Sampling) -> list[float]:
    """Temperature, then top-k (ties of the k-th stay), then top-p (the fewest tokens whose mass
    reaches p).

    At temperature 0 the distribution is that of temperature 1, and decoding takes its argmax.
    """
    if sampling.temperature == 0:
        return softmax(logits)
    logits = [x / sampling.temperature for x in logits]
    if 0 < sampling.top_k < len(logits):
        kth = sorted(logits, reverse=True)[sampling.top_k - 1]
        logits = [x if x >= kth else -math.inf for x in logits]
    probs = softmax(logits)
    if sampling.top_p < 1:
        mass = 0.0
        for x in sorted(range(len(probs)), key=lambda x: -probs[x]):
            if mass >= sampling.top_p:
                logits[x] = -math.inf
            mass += probs[x]
        probs = softmax(logits)
    return probs


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    return normalise([math.exp(x - top) for x in logits])


def normalise(weights: list[float], otherwise: list[float] | None = None) -> list[float]:
    """Weights as a distribution; ``otherwise`` (all zero if not given) where nothing is left to
    normalise.
    """
    if (total := math.fsum(weights)) > 0:
        return [w / total for w in weights]
    return otherwise if otherwise is not None else [0.0] * len(weights)


def one_hot(x: int, vocab: int) -> list[float]:
    return [float(y == x) for y in range(vocab)]


class DeadEnd(Exception):
    """A draw from a law without any mass."""


class Draws:
    """The draws of one run, of which the first are ``fixed``; their probability, and the loss of
    the tests after.
    """

    def __init__(self, fixed: tuple[int, ...] = ()):
        self.tokens, self.n_fixed, self.count = list(fixed), len(fixed), 0
        self.probability, self.loss = 1.0, 0.0
        self.others: list[tuple[int, ...]] = []  # the fixed draws of further runs

    def token(self, law: Sequence[float]) -> int:
        """A token from its distribution."""
        if self.count == len(self.tokens):
            if not (possible := [x for x, mass in enumerate(law) if mass > 0]):
                raise DeadEnd
            self.others += [(*self.tokens, x) for x in possible[1:]]
            self.tokens.append(possible[0])
        x = self.tokens[self.count]
        self.count += 1
        self.probability *= law[x]
        return x

    def accepts(self, f: float) -> bool:
        """True with probability f."""
        return self.token((1 - f, f)) == 1

    def among(self, outcomes: dict[T, float]) -> T:
        """One of what another program can return."""
        return list(outcomes)[self.token(list(outcomes.values()))]

    def lose(self, q: Sequence[float], law: Callable[..., Probs], *arguments: Any) -> None:
        """Count TV(q, law(…)) as a loss, once over all runs that have the draws before it in
        common.
        """
        if self.count >= self.n_fixed:
            self.loss += self.probability * total_variation(q, law(*arguments))


def outcomes(program: Callable[[Draws], T]) -> tuple[dict[T, float], float]:
    """What the program can return, with probabilities, and its expected loss."""
    returned: dict[T, float] = defaultdict(float)
    loss, runs = 0.0, [Draws()]
    while runs:
        draws = runs.pop()
        with suppress(DeadEnd):
            returned[program(draws)] += draws.probability
        loss += draws.loss
        runs += map(Draws, draws.others)
    return returned, loss


# (q, p, x, depth, rule) -> weights
Residual = Callable[[Probs, Probs, int, int, PlainRule], Probs]
# tokens and ranks on the path to a node -> p of its children, and these: a token, or None for one
# that is drawn when it
# is tried; p is None where they were chosen, which counts as p = 1
Node = Callable[[Path, Path], tuple[Probs | None, Sequence[int | None]]]


@dataclass(frozen=True)
class PlainMethod:
    """What is drafted, and the rule and residual that judge it.

    A state is what a method carries from one step to the next: by default the tokens so far, and a
    memory.
    """

    spec: Any
    rule: PlainRule
    residual: Residual

    def start(self, world: World) -> dict[Any, float]:
        """The states before the first step, with probabilities."""
        return {((x,), ()): w for x, w in enumerate(world.q(())) if w > 0}

    def step(self, world: World, state: Any) -> Callable[[Draws], Any]:
        """The program of one step, which returns the next state."""
        raise NotImplementedError

    def image(self, world: World, state: Any) -> Prefix | None:
        """The image of a state in which it is whole."""
        return state[0] if len(state[0]) == world.length else None

    def verified(self, draws: Draws, world: World, prefix: Prefix, node: Node) -> Prefix:
        """The tokens that a step commits after ``prefix``.

        At a node its children are tried in draft order, each against what the earlier rejections
        left of q and p; the first accepted child is the next node; all rejected, the step ends
        with a token of the residual; at a leaf it ends with a bonus token of q.  What is drawn at
        nodes that are never reached plays no part.
        """
        at: Path = ()
        ranks: Path = ()
        while len(prefix + at) < world.length:
            q, (p, children), depth = world.q(prefix + at), node(at, ranks), len(at) + 1
            for rank, drafted in enumerate(children):
                if p is not None and drafted is None and not any(p):
                    continue  # p is exhausted: there are no more children
                law = one_hot(drafted or 0, world.vocab) if p is None else p
                draws.lose(q, kernel, self.residual, q, law, law, self.rule, depth)
                x = draws.token(law) if drafted is None else drafted
                if draws.accepts(self.rule.probability(q, law, x, depth)):
                    at, ranks = (*at, x), (*ranks, rank)
                    break
                q = after_rejection(self.residual, q, law, x, self.rule, depth)
                p = None if p is None else without(p, x)
            else:
                return (*at, draws.token(q))
        return at


def decode_by_steps(world: World, method: PlainMethod) -> tuple[list[dict[Prefix, float]], float]:
    """P(image after 1, 2, … steps), a prefill's token before them; and the expected fidelity loss."""
    states, by_steps, total_loss = method.start(world), [], 0.0
    while states:
        images: dict[Prefix, float] = defaultdict(float)
        after: dict[Any, float] = defaultdict(float)
        for state, weight in states.items():
            next_states, loss = outcomes(method.step(world, state))
            total_loss += weight * loss
            for next_state, probability in next_states.items():
                image = method.image(world, next_state)
                if image is None:
                    after[next_state] += weight * probability
                else:
                    images[image] += weight * probability
        by_steps.append(images)
        states = after
    return by_steps, total_loss


def after_rejection(
    residual: Residual, q: Probs, p: Probs, x: int, rule: PlainRule, depth: int
) -> Probs:
    """The distribution after x was rejected.  Where its formula leaves nothing, q itself."""
    return normalise(residual(q, p, x, depth, rule), q)


def without(p: Probs, x: int) -> Probs:
    """p of the next sibling: x removed, renormalised; all zero where nothing is left."""
    return normalise([0.0 if y == x else py for y, py in enumerate(p)])


def kernel(
    residual: Residual, q: Probs, p: Probs, law: Probs, rule: PlainRule, depth: int
) -> Probs:
    """K = ℓ·f + Σ_x ℓ(x)·(1 − f(x))·G_x: what a test leaves of a draft from ℓ, ``law`` (Cool-SD,
    Theorem 2).
    """
    mass = [0.0] * len(q)
    for x, share in enumerate(law):
        if share > 0:
            f = rule.probability(q, p, x, depth)
            mass[x] += share * f
            if f < 1:
                after = after_rejection(residual, q, p, x, rule, depth)
                mass = [k + share * (1 - f) * g for k, g in zip(mass, after, strict=True)]
    return mass


def total_variation(a: Iterable[float], b: Iterable[float]) -> float:
    """½ Σ |a − b| of two distributions."""
    return 0.5 * math.fsum(abs(x - y) for x, y in zip(a, b, strict=True))
