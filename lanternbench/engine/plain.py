"""The parts of a component's plain definition, without tensors.

``lossless.plain`` computes from them what the component should do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Probs = list[float]


class PlainRule:
    """An acceptance rule in scalar Python, written from its paper; this is the exact one."""

    def ratio(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        """Return q̃(x)/p(x), or P(x is accepted), at ``depth`` 1 … L.

        p(x) > 0; it is 1 for a chosen x.
        """
        return q[x] / p[x]  # Leviathan et al. 2023, algorithm 1

    def group(self, q: Probs, x: int) -> list[int]:
        """Return the tokens whose probability x takes, x first."""
        return [x]

    def probability(self, q: Probs, p: Probs, x: int, depth: int) -> float:
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

    def ratio(self, q: Probs, p: Probs, x: int, depth: int) -> float:
        return self.acceptance(self.options, q, p, x, depth)


Acceptance = TypeVar("Acceptance", bound=Callable[..., float])


def plain_rule(options: type) -> Callable[[Acceptance], Acceptance]:
    """Decorator: a function (options, q, p, x, depth) -> P(x is accepted) defines a rule.

    q, p are lists of floats; p is 1 at x for a chosen child; depth is 1 … L.
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


@dataclass(frozen=True)
class TreeSpec:
    """A draft tree.  ``kind``: ``static``, ``dynamic`` or ``adaptive``; the sizes are those of a
    dynamic tree.
    """

    kind: str = "static"
    paths: tuple[tuple[int, ...], ...] = ()  # a static tree's child paths, none for a lone root
    depth: int = 2
    top_k: int = 2
    total: int = 4
    bounds: AdaptiveBounds = AdaptiveBounds()
    init: str = "horizontal"
    radius: int = 2
    # the depth and width said to have produced token 0, which no tree did
    first: tuple[int, int] = (2, 2)
    bonus: bool = True  # whether α counts the bonus token

    @property
    def deepest(self) -> int:
        """Return L, the deepest draft position."""
        if self.kind == "static":
            return max(map(len, self.paths), default=0)
        if self.kind == "dynamic":
            return self.depth
        return self.bounds.d[1] - 1


@dataclass(frozen=True)
class RowSpec:
    """Several rows at once."""

    lead: int  # tokens of a row when the next begins
    window: int = 0  # of PJD; 0: ZipAR, whose first row is drawn alone
    adaptive: bool = False  # whether ZipAR's window is
    seen: bool = False  # whether tokens see the stand-in that begins a row
    reuse: float = 1.0  # PJD's threshold

    @property
    def deepest(self) -> int:
        """Return L, the deepest draft position."""
        return max(self.window, 1)


@dataclass(frozen=True)
class DiagonalSpec:
    """Anti-diagonals.  ``causal``: a token sees only what is earlier in raster order."""

    causal: bool
    deepest = 1  # nothing is drafted


@dataclass(frozen=True)
class WindowSpec:
    """A Jacobi window."""

    window: int = 2
    init: str = "random"
    # ``independent`` (SJD), ``maximal`` (SCD), or ``kept-law``: SCD's public code, which records
    # the old law of a kept draft
    redraw: str = "independent"
    one_hot: bool = False  # whether fresh drafts count as certain (the public code)
    # whether the forward pass over the prompt draws the first token; else a window begins with it
    prefill: bool = True
    # of SJD-PAC's tree: K siblings down to column ``tree_depth`` − 1, then a chain
    siblings: int = 1
    tree_depth: int = 1
    theta: float = 0.0  # of SJD++

    @property
    def deepest(self) -> int:
        """Return L, the deepest draft position."""
        return self.window

    def width(self, column: int) -> int:
        """Siblings at window column 1, 2, …"""
        return self.siblings if column < self.tree_depth else 1
