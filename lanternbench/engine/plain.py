"""The parts of a component's plain definition, without tensors.

``lossless.plain`` computes from them what the component should do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Probs = Sequence[float]


class PlainRule:
    """An acceptance rule in scalar Python, written from its paper; this is the exact one."""

    def ratio(
        self,
        q: Probs,
        p: Probs,
        x: int,
        depth: int,
    ) -> float:
        """Return q̃(x)/p(x), or P(x is accepted), at ``depth`` 1 … L.

        p(x) > 0; it is 1 for a chosen x.
        """
        return q[x] / p[x]  # Leviathan et al. 2023, algorithm 1

    def group(self, q: Probs, x: int) -> list[int]:
        """Return the tokens whose probability x takes, x first."""
        return [x]

    def probability(
        self,
        q: Probs,
        p: Probs,
        x: int,
        depth: int,
    ) -> float:
        """Return f(x), the probability that x is accepted; 0 if p cannot have drawn it."""
        if p[x] <= 0:
            return 0.0
        return min(1.0, self.ratio(q, p, x, depth))


# (q, p, x, depth, rule) -> what is sampled after x was rejected, unnormalised; p is 1 at x for a
# chosen child
PlainResidual = Callable[[Probs, Probs, int, int, PlainRule], Probs]


def positive_part(q: Probs, p: Probs) -> Probs:
    """[q − p]₊, differences below 1e-15 counted as the rounding that they are."""
    differences = [q_x - p_x for q_x, p_x in zip(q, p, strict=True)]
    return [d if d > 1e-15 else 0.0 for d in differences]


def standard_residual(q: Probs, p: Probs, x: int, depth: int, rule: PlainRule) -> Probs:
    """Leviathan et al. 2023, eq. 2."""
    return positive_part(q, p)


# by the type of a rule's options: (options, codes [V][d], L: the deepest draft position) -> the
# rule, None for options without a definition
PLAIN_RULES: dict[type, Callable[..., PlainRule | None]] = {}


@dataclass(frozen=True)
class FunctionRule(PlainRule):
    """A rule whose acceptance is one function."""

    options: object
    acceptance: Callable[..., float]  # (options, q, p, x, depth)

    def ratio(
        self,
        q: Probs,
        p: Probs,
        x: int,
        depth: int,
    ) -> float:
        return self.acceptance(self.options, q, p, x, depth)


Acceptance = TypeVar("Acceptance", bound=Callable[..., float])


def plain_rule(options: type) -> Callable[[Acceptance], Acceptance]:
    """Decorator: a function (options, q, p, x, depth) -> P(x is accepted) defines a rule.

    q, p are sequences of floats; p is 1 at x for a chosen child; depth is 1 … L.
    """

    def add(acceptance: Acceptance) -> Acceptance:
        PLAIN_RULES[options] = lambda given, codes, length: FunctionRule(given, acceptance)
        return acceptance

    return add


@dataclass(frozen=True)
class AdaptiveBounds:
    """β, the steps l_d and l_k, and the open intervals of depth and width (ADT-Tree, arXiv
    2512.21857, section 4).

    The paper's settings for Anole; for LlamaGen l_k = 10, k ∈ (3, 40).
    """

    beta: float = 1.0
    l_d: int = 1
    l_k: int = 3
    d: tuple[int, int] = (0, 10)
    k: tuple[int, int] = (3, 14)
