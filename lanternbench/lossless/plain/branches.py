"""Every outcome of a random program, and of decodes that are made of such steps.

A program is written as it would sample, from ``Draws``.  It is run once for each way that its draws can fall: a draw
that is met for the first time takes the first token that it can, and leaves a run of its own for every other one.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

from lanternbench.lossless.plain.world import Prefix, World

T = TypeVar("T", bound=Hashable)


class DeadEnd(Exception):
    """A draw from a law without any mass."""


class Draws:
    """The draws of one run, of which the first are ``fixed``; their probability, and the loss of the tests after."""

    def __init__(self, fixed: tuple[int, ...] = ()):
        self.tokens, self.n_fixed, self.count = list(fixed), len(fixed), 0
        self.probability, self.loss = 1.0, 0.0
        self.others: list[tuple[int, ...]] = []  # the fixed draws of further runs

    def token(self, law: Sequence[float]) -> int:
        """A token from its distribution."""
        if self.count == len(self.tokens):
            possible = [x for x, mass in enumerate(law) if mass > 0]
            if not possible:
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

    def lose(self, loss: Callable[..., float], *arguments: Any) -> None:
        """Count a loss, once over all runs that have the draws before it in common."""
        if self.count >= self.n_fixed:
            self.loss += self.probability * loss(*arguments)


def outcomes(program: Callable[[Draws], T]) -> tuple[dict[T, float], float]:
    """What the program can return, with probabilities, and its expected loss."""
    returned: dict[T, float] = defaultdict(float)
    loss, runs = 0.0, [Draws()]
    while runs:
        draws = runs.pop()
        try:
            result = program(draws)
            returned[result] += draws.probability
        except DeadEnd:
            pass
        loss += draws.loss
        runs += map(Draws, draws.others)
    return returned, loss


class Steps(Protocol):
    """A method by its steps; a state is whatever it carries from one to the next."""

    def start(self, world: World) -> dict[Any, float]:
        """The states before the first step, with probabilities."""

    def step(self, world: World, state: Any) -> Callable[[Draws], Any]:
        """The program of one step, which returns the next state."""

    def image(self, world: World, state: Any) -> Prefix | None:
        """The image of a state in which it is whole."""


def decode_by_steps(world: World, method: Steps) -> tuple[list[dict[Prefix, float]], float]:
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
