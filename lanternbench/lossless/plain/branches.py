"""Every outcome of a random program.

A program is written as it would sample, from ``Draws``.  It is run once for each way that its draws can fall: a draw
that is met for the first time takes the first token that it can, and leaves a run of its own for every other one.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

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
