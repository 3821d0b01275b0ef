"""A method by its steps, and its rule and residual at work: each component gives its own scalar definition, ``plain``.

q is the target, p the drafter, both after guidance, temperature, top-k and top-p.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lanternbench.engine.plain import PlainRule, Probs
from lanternbench.lossless.plain.branches import Draws, outcomes
from lanternbench.lossless.plain.draft_trees import Path
from lanternbench.lossless.plain.world import Prefix, World, normalise, one_hot

Residual = Callable[[Probs, Probs, int, int, PlainRule], Probs]  # (q, p, x, depth, rule) -> weights
# tokens and ranks on the path to a node -> p of its children, and these: a token, or None for one that is drawn when it
# is tried; p is None where they were chosen, which counts as p = 1
Node = Callable[[Path, Path], tuple[Probs | None, Sequence[int | None]]]


@dataclass(frozen=True)
class PlainMethod:
    """What is drafted, and the rule and residual that judge it.

    A state is what a method carries from one step to the next: by default the tokens so far, and a ``memory``.
    """

    spec: Any
    rule: PlainRule
    residual: Residual

    @property
    def memory(self) -> Any:
        """What is remembered before the first step."""
        return ()

    def start(self, world: World) -> dict[Any, float]:
        """The states before the first step, with probabilities."""
        return {((x,), self.memory): w for x, w in enumerate(world.q(())) if w > 0}

    def step(self, world: World, state: Any) -> Callable[[Draws], Any]:
        """The program of one step, which returns the next state."""
        raise NotImplementedError

    def image(self, world: World, state: Any) -> Prefix | None:
        """The image of a state in which it is whole."""
        return state[0] if len(state[0]) == world.length else None

    def verified(self, draws: Draws, world: World, prefix: Prefix, node: Node) -> Prefix:
        """The tokens that a step commits after ``prefix``.

        At a node its children are tried in draft order, each against what the earlier rejections left of q and p; the
        first accepted child is the next node; all rejected, the step ends with a token of the residual; at a leaf it
        ends with a bonus token of q.  What is drawn at nodes that are never reached plays no part.
        """
        at: Path = ()
        ranks: Path = ()
        while len(prefix + at) < world.length:
            q, (p, children), depth = world.q(prefix + at), node(at, ranks), len(at) + 1
            for rank, drafted in enumerate(children):
                if p is not None and drafted is None and not any(p):
                    continue  # p is exhausted: there are no more children
                law = one_hot(drafted or 0, world.vocab) if p is None else p
                draws.lose(stage_loss, self.residual, q, law, self.rule, depth)
                x = draws.token(law) if drafted is None else drafted
                if draws.accepts(self.rule.plain_prob(q, law, x, depth)):
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


def after_rejection(residual: Residual, q: Probs, p: Probs, x: int, rule: PlainRule, depth: int) -> Probs:
    """The distribution after x was rejected.  Where its formula leaves nothing, q itself."""
    return normalise(residual(q, p, x, depth, rule), q)


def without(p: Probs, x: int) -> Probs:
    """p of the next sibling: x removed, renormalised; all zero where nothing is left."""
    return normalise([0.0 if y == x else py for y, py in enumerate(p)])


def kernel(residual: Residual, q: Probs, p: Probs, law: Probs, rule: PlainRule, depth: int) -> Probs:
    """K = ℓ·f + Σ_x ℓ(x)·(1 − f(x))·G_x: what a test leaves of a draft from ℓ, ``law`` (Cool-SD, Theorem 2)."""
    mass = [0.0] * len(q)
    for x, share in enumerate(law):
        if share > 0:
            f = rule.plain_prob(q, p, x, depth)
            mass[x] += share * f
            if f < 1:
                after = after_rejection(residual, q, p, x, rule, depth)
                mass = [k + share * (1 - f) * g for k, g in zip(mass, after, strict=True)]
    return mass


def stage_loss(residual: Residual, q: Probs, p: Probs, rule: PlainRule, depth: int) -> float:
    """TV(q, K) of one test."""
    return total_variation(q, kernel(residual, q, p, p, rule, depth))


def total_variation(a: Iterable[float], b: Iterable[float]) -> float:
    """½ Σ |a − b| of two distributions."""
    return 0.5 * math.fsum(abs(x - y) for x, y in zip(a, b, strict=True))
