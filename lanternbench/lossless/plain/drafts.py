"""Draft trees and windows.

Draft trees: chains and static shapes, EAGLE-2's dynamic tree, ADT-Tree's depth and width.
Windows: SJD and its initialisations, SCD's coupled redraws, GSD, SJD-PAC's siblings.  A window
holds drafts for the positions after the committed prefix, each with the law that it was drawn
from: the target's after the tokens that stood there when it was (re)drawn; a fresh draft's is
uniform or one-hot.  Windows end with the image, unless their drafts are judged as a whole.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from typing import NamedTuple

from lanternbench.engine.plain import AdaptiveBounds
from lanternbench.lossless.plain import (
    Draws,
    Family,
    Law,
    Path,
    PlainMethod,
    Prefix,
    World,
    normalise,
    one_hot,
    without,
)
from lanternbench.lossless.plain.rules import ChainRule, positive_residual


def top_children(p: Law, k: int) -> list[int]:
    """The k likeliest tokens, ties by token id."""
    return sorted(range(len(p)), key=lambda x: (-p[x], x))[:k]


@lru_cache(maxsize=16)
def dynamic_tree(
    world: World, prefix: Prefix, depth: int, top_k: int, total: int
) -> dict[Path, list[int]]:
    """EAGLE-2 (arXiv 2406.16858, section 4): the tokens of every node's children, in draft order.

    A node is the path of its tokens.  Expansion: on each level the ``top_k`` nodes of highest
    value, the product of the drafter's probabilities along the path, get their ``top_k`` likeliest
    children.  Reranking: the total − 1 nodes of highest value over all levels stay; of equal ones
    the shallower, so that the rest is a tree.
    """
    value: dict[Path, float] = {(): 0.0}  # its logarithm
    frontier: list[Path] = [()]
    for _ in range(depth):
        level: list[Path] = []
        for node in frontier:
            p = world.p(prefix + node)
            for x in top_children(p, top_k):
                if p[x] > 0:
                    value[(*node, x)] = value[node] + math.log(p[x])
                    level.append((*node, x))
        frontier = sorted(level, key=value.__getitem__, reverse=True)[:top_k]
    del value[()]
    best = sorted(value, key=value.__getitem__, reverse=True)[: total - 1]
    children: dict[Path, list[int]] = {}
    for node in value:
        if node in best:
            children.setdefault(node[:-1], []).append(node[-1])
    return children


RADIUS = 2  # δ of a token flock
Tree = tuple[int, int]  # depth and width of ADT-Tree's


class Memory(NamedTuple):
    """The state that ADT-Tree carries from step to step."""

    history: tuple[Tree, ...] = ()  # the tree that produced each token, in raster order
    # τ/d̂ of the previous tree, its τ tokens counted with the bonus token; None before the first
    alpha: float | None = None


def adjacent_tree(history: tuple[Tree, ...], init: str, grid_width: int) -> tuple[float, float]:
    """(d̃, k̃) of the tree that drafts token number len(history).

    ``init``: ``horizontal``, ``vertical`` or ``token-flock``; the tree of the token to the left
    stands in for one above that is missing.
    """
    if init == "token-flock":
        return token_flock(history, grid_width, RADIUS)
    if init == "vertical" and len(history) >= grid_width:
        return history[-grid_width]
    return history[-1]


def token_flock(history: tuple[Tree, ...], grid_width: int, radius: int) -> tuple[float, float]:
    """d̃ = Σ w·d / Σ w and k̃ likewise, over the earlier tokens at a Euclidean distance of at most
    δ (eq. 6).

    A token Δy rows above weighs w = (δ − Δy + 1)/δ.
    """
    row, column = divmod(len(history), grid_width)
    total = depth = width = 0.0
    for i, (d, k) in enumerate(history):
        its_row, its_column = divmod(i, grid_width)
        if math.dist((row, column), (its_row, its_column)) <= radius:
            w = (radius - (row - its_row) + 1) / radius
            total += w
            depth += w * d
            width += w * k
    return depth / total, width / total


def adt_adapt(start: tuple[float, float], alpha: float | None, bounds: AdaptiveBounds) -> Tree:
    """Bisectional adaptation: α ≥ β makes the next tree deeper and narrower, else shallower and
    wider.

    The width is held inside its interval only if d̃ ± l_d > 1: of a tree of one level every child
    is a leaf.
    """
    sign = 0
    if alpha is not None:
        sign = 1 if alpha >= bounds.beta else -1
    d = start[0] + sign * bounds.l_d
    k = start[1] - sign * bounds.l_k
    depth = clamped(d, bounds.d)
    return depth, clamped(k, bounds.k) if d > 1 else max(1, round(k))


def clamped(x: float, interval: tuple[int, int]) -> int:
    """The integer of an open interval that is nearest."""
    low, high = interval
    return min(max(round(x), low + 1), high - 1)


class Slot(NamedTuple):
    """One drafted position: its drafts in the order they were drawn (SJD-PAC has siblings), and
    the first one's law.
    """

    tokens: tuple[int, ...]
    law: Law


def judged_chain(
    draws: Draws, world: World, rule: ChainRule, prefix: Prefix, chain: Sequence[Slot]
) -> Prefix:
    """Return what a step commits after ``prefix`` of a chain that is judged as a whole: the
    accepted tokens and the next one.
    """
    xs = tuple(slot.tokens[0] for slot in chain)
    qs = [world.q(prefix + xs[:count]) for count in range(len(xs) + 1)]
    endings = rule.endings(qs, [slot.law for slot in chain], xs)
    ending = endings[draws.token([ending.probability for ending in endings])]
    law = normalise(ending.weights, qs[ending.accepted])
    tokens = (*xs[: ending.accepted], draws.token(law))
    return tokens[: world.length - len(prefix)]


TreeState = tuple[Prefix, Memory]


@dataclass(frozen=True)
class TreeMethod(PlainMethod[TreeState]):
    """A drafted tree.  ``kind``: ``static``, ``dynamic`` or ``adaptive``; the sizes are those of a
    dynamic tree.
    """

    kind: str = "static"
    paths: tuple[Path, ...] = ()  # a static tree's child paths, none for a lone root
    # whether its children are drawn without replacement, not the likeliest tokens
    sampled: bool = True
    # whether the drafter knows the committed tokens alone, so that its distribution at a depth is
    # the same after any drafts
    marginals: bool = False
    depth: int = 2
    top_k: int = 2
    total: int = 4
    bounds: AdaptiveBounds = field(default_factory=AdaptiveBounds)
    init: str = "horizontal"
    # the depth and width said to have produced token 0, which no tree did
    first: Tree = (2, 2)
    bonus: bool = True  # whether α counts the bonus token

    @property
    def deepest(self) -> int:
        if self.kind == "static":
            return max(map(len, self.paths), default=0)
        return self.depth if self.kind == "dynamic" else self.bounds.d[1] - 1

    def start(self, world: World) -> dict[TreeState, float]:
        memory = Memory((self.first,))
        return {(prefix, memory): mass for prefix, mass in world.first_tokens().items()}

    def step(self, world: World, state: TreeState) -> Callable[[Draws], TreeState]:
        if self.marginals:
            world = world.drafting_after(len(state[0]))
        return partial(self.next_state, world, state)

    def next_state(self, world: World, state: TreeState, draws: Draws) -> TreeState:
        prefix, memory = state
        if isinstance(self.rule, ChainRule):
            chain = self.drawn_chain(draws, world, prefix)
            return prefix + judged_chain(draws, world, self.rule, prefix, chain), memory
        if self.kind == "static":
            family_at = partial(self.static_family, world, prefix)
            return prefix + self.verified(draws, world, prefix, family_at), memory
        size = self.tree_size(world, memory)
        children = dynamic_tree(world, prefix, *size, self.total)
        tokens = self.verified(
            draws, world, prefix, lambda path, _: Family(children.get(path, []), None)
        )
        if self.kind == "adaptive":
            counted = len(tokens) if self.bonus else len(tokens) - 1
            memory = Memory(memory.history + (size,) * len(tokens), counted / size[0])
        return prefix + tokens, memory

    def static_family(self, world: World, prefix: Prefix, path: Path, ranks: Path) -> Family:
        count = [child[:-1] for child in self.paths].count(ranks)
        if count == 0:
            return Family([], None)
        p = world.p(prefix + path)
        return Family([None] * count, p) if self.sampled else Family(top_children(p, count), None)

    def tree_size(self, world: World, memory: Memory) -> Tree:
        """(d̂, k̂) of the tree that is drafted next."""
        if self.kind == "dynamic":
            return self.depth, self.top_k
        start = adjacent_tree(memory.history, self.init, world.grid_width)
        return adt_adapt(start, memory.alpha, self.bounds)

    def drawn_chain(self, draws: Draws, world: World, prefix: Prefix) -> list[Slot]:
        """A chain drawn from p."""
        xs: Prefix = ()
        chain = []
        for _ in range(self.deepest):
            law = world.p(prefix + xs)
            xs = (*xs, draws.token(law))
            chain.append(Slot(xs[-1:], law))
        return chain


Window = tuple[Slot, ...]
WindowState = tuple[Prefix, Window]


@dataclass(frozen=True)
class WindowMethod(PlainMethod[WindowState]):
    """A Jacobi window.  Its columns count from 1."""

    window: int = 2
    init: str = "random"
    # ``independent`` (SJD), ``maximal`` (SCD), ``keep`` (SJD++), or ``kept-law``: SCD's public
    # code, which records the old law of a kept draft
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
        return self.window

    def width(self, column: int) -> int:
        """Siblings at window column 1, 2, …"""
        return self.siblings if column < self.tree_depth else 1

    @property
    def runs_past_end(self) -> bool:
        """Return whether drafts past the end of the image count: a rule that judges a chain as a
        whole judges them with the others.
        """
        return isinstance(self.rule, ChainRule)

    def start(self, world: World) -> dict[WindowState, float]:
        if not self.prefill:
            return {((), ()): 1.0}
        return {(prefix, ()): mass for prefix, mass in world.first_tokens().items()}

    def step(self, world: World, state: WindowState) -> Callable[[Draws], WindowState]:
        return partial(self.next_state, world, state)

    def next_state(self, world: World, state: WindowState, draws: Draws) -> WindowState:
        """One forward pass over the window: what is committed, and the drafts that stay."""
        prefix, window = state
        window = self.filled(draws, world, prefix, window)
        if isinstance(self.rule, ChainRule):
            tokens = judged_chain(draws, world, self.rule, prefix, window)
        else:
            tokens = self.verified(draws, world, prefix, partial(self.family_at, window))
        return prefix + tokens, self.redrawn(draws, world, prefix, window, tokens[:-1])

    def family_at(self, window: Window, path: Path, ranks: Path) -> Family:
        column = len(path) + 1
        after_sibling = any(ranks)  # the tree grows from first siblings alone
        if column > len(window) or (after_sibling and column >= self.tree_depth):
            return Family([], None)
        return Family(*window[column - 1])

    def filled(self, draws: Draws, world: World, prefix: Prefix, window: Window) -> Window:
        """Fresh drafts for the positions that the window has none for."""
        size = self.window
        if not self.runs_past_end:
            size = min(size, world.length - len(prefix))
        window = window[:size]
        for column in range(len(window) + 1, size + 1):
            law = fresh_law(world, self.init, prefix, len(prefix) + column - 1)
            first = draws.token(law)
            tokens = siblings(draws, law, first, self.width(column))
            recorded = one_hot(first, world.vocab) if self.one_hot else law
            window = (*window, Slot(tokens, recorded))
        return window

    def redrawn(
        self, draws: Draws, world: World, prefix: Prefix, window: Window, accepted: Prefix
    ) -> Window:
        """The drafts after the token that ends the step, from what this forward pass says of their
        positions.

        The forward pass has seen, at each later position, the accepted path and from there on the
        first siblings; beyond the tree, where an accepted path of other siblings has no nodes, the
        chain of first siblings.
        """
        chain = tuple(slot.tokens[0] for slot in window)
        stop = len(accepted) + 1  # the column of the token that ends the step
        last = len(window) + 1
        if not self.runs_past_end:
            last = min(last, world.length - len(prefix))
        after: Window = ()
        for column in range(stop + 1, last + 1):
            seen = chain[: column - 1]
            if column <= self.tree_depth:
                seen = accepted + seen[len(accepted) :]
            q = world.q(prefix + seen)
            old = window[column - 1] if column <= len(window) else None
            after = (*after, self.redrawn_slot(draws, q, old, self.width(column - stop)))
        return after

    def redrawn_slot(self, draws: Draws, q: Law, old: Slot | None, count: int) -> Slot:
        """New drafts for a position, of which the first has the law q."""
        if old is None or self.redraw == "independent":
            return Slot(siblings(draws, q, draws.token(q), count), q)
        x = old.tokens[0]
        p = old.law
        if self.redraw == "keep":
            kept = q[x] > self.theta * p[x]
            first = x if kept else draws.token(q)
        else:
            first, kept = coupled(draws, q, p, x)
        law = p if kept and self.redraw in ("keep", "kept-law") else q
        return Slot(siblings(draws, q, first, count), law)


def fresh_law(world: World, init: str, prefix: Prefix, position: int) -> Law:
    """SJD, section 4.2: a token that enters the window is random, or comes from a committed
    neighbour.

    ``horizontal``: the nearest committed token to the left in its row; ``vertical``: the one
    above.  ``repeat`` copies it, ``sample`` draws from its distribution.  Without one, the token
    is random.
    """
    direction, _, how = init.partition("-")
    if direction == "horizontal":
        source = len(prefix) - 1
        exists = source >= 0 and source // world.grid_width == position // world.grid_width
    else:
        source = position - world.grid_width
        exists = 0 <= source < len(prefix)
    if direction == "random" or not exists:
        return (1 / world.vocab,) * world.vocab
    return one_hot(prefix[source], world.vocab) if how == "repeat" else world.q(prefix[:source])


def siblings(draws: Draws, p: Law, first: int, count: int) -> tuple[int, ...]:
    """``first`` and further ordered draws without replacement from p, fewer than ``count`` if p
    has fewer tokens.
    """
    tokens: tuple[int, ...] = (first,)
    left = without(p, first)
    while len(tokens) < count and any(left):
        x = draws.token(left)
        tokens = (*tokens, x)
        left = without(left, x)
    return tokens


def coupled(draws: Draws, q: Law, p: Law, x: int) -> tuple[int, bool]:
    """Maximal coupling (SCD, arXiv 2510.24211): keep x ~ p with min(1, q(x)/p(x)), else draw from
    [q − p]₊.

    Return the token, and whether it was kept.  Over x ~ p the token has the law q, and equals x as
    often as possible.
    """
    if draws.accepts(min(1.0, q[x] / p[x])):
        return x, True
    return draws.token(normalise(positive_residual(1.0, q, p), q)), False


def inverse_cdf(p: Law, u: float) -> int:
    """The first token whose cumulated probability exceeds u."""
    above = [x for x, mass in enumerate(accumulate(p)) if mass > u]
    possible = [x for x, p_x in enumerate(p) if p_x > 0]
    return above[0] if above else possible[-1]
