"""Exact output distributions of drafted methods, one verification for every tree, and of the
Jacobi family.

Draft trees are nested lists: chains and static shapes, EAGLE-2's dynamic tree, ADT-Tree's depth
and width.  Windows: SJD and its initialisations, SCD's coupled redraws, GSD, SJD-PAC's siblings.
A window holds drafts for the positions after the committed prefix, each with the law that it was
drawn from: the target's after the tokens that stood there when it was (re)drawn; a fresh draft's
is uniform or one-hot.  Windows end with the image.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from lanternbench.engine.plain import AdaptiveBounds, Probs, TreeSpec, WindowSpec
from lanternbench.lossless.plain import (
    Draws,
    Path,
    PlainMethod,
    Prefix,
    World,
    normalise,
    one_hot,
    without,
)
from lanternbench.lossless.plain.rules import ChainRule


def top_children(p: list[float], k: int) -> list[int]:
    """The k likeliest tokens, ties by token id."""
    return sorted(range(len(p)), key=lambda x: (-p[x], x))[:k]


def dynamic_tree(
    world: World, prefix: Prefix, depth: int, top_k: int, total: int
) -> dict[Path, list[int]]:
    """EAGLE-2 (arXiv 2406.16858, section 4): the tokens of every node's children, in draft order.

    A node is the path of its tokens.  Expansion: on each level the ``top_k`` nodes of highest
    value, the product of the drafter's probabilities along the path, get their ``top_k`` likeliest
    children.  Reranking: the total − 1 nodes of highest value over all levels stay; of equal ones
    the shallower, so that the rest is a tree.
    """
    value: dict[Path, float] = {(): 0.0}
    frontier: list[Path] = [()]
    pool: list[Path] = []
    for _ in range(depth):
        level = []
        for node in frontier:
            p = world.p(prefix + node)
            for x in top_children(p, top_k):
                if p[x] > 0:
                    value[(*node, x)] = value[node] + math.log(p[x])
                    level.append((*node, x))
        pool += level
        frontier = sorted(level, key=lambda node: -value[node])[:top_k]
    best = set(sorted(pool, key=lambda node: -value[node])[: total - 1])
    children: dict[Path, list[int]] = {}
    for node in pool:
        if node in best:
            children.setdefault(node[:-1], []).append(node[-1])
    return children


Tree = tuple[int, int]  # depth and width of ADT-Tree's


def adt_step(
    history: list[Tree], alpha: float | None, bounds: AdaptiveBounds, init: str, grid_width: int, radius: int = 2,
    u: tuple[float, float] = (0.0, 0.0),
) -> Tree:  # fmt: skip
    """(d̂, k̂) of the tree that drafts token number len(history): (d̃, k̃) by adjacency, then
    adapted.

    ``history``: the tree that produced each earlier token, in raster order.  ``alpha``: τ/d̂ of
    the previous tree, its τ tokens counted with the bonus token; None before the first, which
    starts where it is initialised.  ``radius``: δ of ``token-flock``.  ``u``: two uniforms, read
    by ``random`` alone.  Where ``vertical`` has no token above, the tree of the one to the left
    stands in.
    """
    start: tuple[float, float] = history[-1]  # horizontal: the tree of the token to the left
    # uniform over the integers strictly inside the two ranges, whatever the trees so far
    if init == "random":
        (d, d_end), (k, k_end) = bounds.d, bounds.k
        start = d + 1 + int(u[0] * (d_end - d - 1)), k + 1 + int(u[1] * (k_end - k - 1))
    elif init == "vertical" and len(history) >= grid_width:  # the tree of the token above
        start = history[-grid_width]
    elif init == "token-flock":
        start = token_flock(history, grid_width, radius)
    return adt_adapt(start, alpha, bounds)


def token_flock(history: list[Tree], grid_width: int, radius: int) -> tuple[float, float]:
    """d̃ = Σ w·d / Σ w and k̃ likewise, over the earlier tokens at a Euclidean distance of at most
    δ (eq. 6).

    A token Δy rows above weighs w = (δ − Δy + 1)/δ.
    """
    row, column = divmod(len(history), grid_width)
    near = []
    for i, (d, k) in enumerate(history):
        other = divmod(i, grid_width)
        if math.dist((row, column), other) <= radius:
            near.append(((radius - (row - other[0]) + 1) / radius, d, k))
    total = sum(w for w, _, _ in near)
    return (
        (sum(w * d for w, d, _ in near) / total, sum(w * k for w, _, k in near) / total)
        if near
        else history[-1]
    )


def adt_adapt(start: tuple[float, float], alpha: float | None, bounds: AdaptiveBounds) -> Tree:
    """Bisectional adaptation: α ≥ β makes the next tree deeper and narrower, else shallower and
    wider.

    The intervals are open.  The width is held inside its own only where d̃ ± l_d > 1: of a tree of
    one level every child is a leaf.
    """
    sign = 0 if alpha is None else 1 if alpha >= bounds.beta else -1
    d, k = start[0] + sign * bounds.l_d, start[1] - sign * bounds.l_k
    depth, width = (
        min(max(round(x), low + 1), high - 1) for x, (low, high) in ((d, bounds.d), (k, bounds.k))
    )
    return depth, width if d > 1 else max(1, round(k))


class Memory(NamedTuple):
    """What ADT-Tree carries from step to step: its earlier trees and α."""

    history: tuple[Tree, ...] = ()
    alpha: float | None = None


TreeState = tuple[Prefix, Memory]


@dataclass(frozen=True)
class MethodSpec(PlainMethod):
    """A drafted method.  ``sampled``: are a static tree's children drawn without replacement, or
    the likeliest tokens?

    ``marginals``: the drafter knows the committed tokens alone, so that its distribution at a
    depth is the same after any drafts.
    """

    spec: TreeSpec
    sampled: bool = True
    marginals: bool = False

    def start(self, world: World) -> dict[TreeState, float]:
        memory = Memory((self.spec.first,) if self.spec.kind == "adaptive" else ())
        return {(prefix, memory): w for (prefix, _), w in super().start(world).items()}

    def step(self, world: World, state: TreeState) -> Callable[[Draws], TreeState]:
        (prefix, memory), spec, adaptive = state, self.spec, self.spec.kind == "adaptive"
        drafting = world.drafting_after(len(prefix)) if self.marginals else world
        dynamic = cache(
            lambda depth, width: dynamic_tree(drafting, prefix, depth, width, spec.total)
        )

        def static(at: Path, ranks: Path) -> tuple[Probs | None, Sequence[int | None]]:
            count = sum(path[:-1] == ranks for path in spec.paths)
            p = drafting.p(prefix + at) if count else []
            return (p, [None] * count) if self.sampled else (None, top_children(p, count))

        def run(draws: Draws) -> TreeState:
            after, size = memory, (spec.depth, spec.top_k)
            if isinstance(self.rule, ChainRule):
                tokens = self.verified_chain(draws, drafting, prefix, self.rule)
            elif spec.kind == "static":
                tokens = self.verified(draws, drafting, prefix, static)
            else:
                size = adapted(draws, spec, memory, world.grid_width) if adaptive else size
                children = dynamic(*size)
                tokens = self.verified(
                    draws, drafting, prefix, lambda at, _: (None, children.get(at, []))
                )
            if adaptive:
                after = Memory(
                    memory.history + (size,) * len(tokens),
                    (len(tokens) - (not spec.bonus)) / size[0],
                )
            return (prefix + tokens)[: world.length], after

        return run

    def verified_chain(
        self, draws: Draws, world: World, prefix: Prefix, rule: ChainRule
    ) -> Prefix:
        """Verification as a whole of a chain drawn from p."""
        xs: Prefix = ()
        for _ in range(self.spec.deepest):
            xs += (draws.token(world.p(prefix + xs)),)
        ps = [world.p(prefix + xs[:i]) for i in range(len(xs))]
        qs = [world.q(prefix + xs[:i]) for i in range(len(xs) + 1)]
        endings = rule.endings(qs, ps, xs)
        _, accepted, weights = endings[draws.token([ending.probability for ending in endings])]
        return (*xs[:accepted], draws.token(normalise(weights, qs[accepted])))


def adapted(draws: Draws, spec: TreeSpec, memory: Memory, grid_width: int) -> Tree:
    """ADT-Tree's (d̂, k̂) of the tree that is drafted next."""
    u = [0.5, 0.5]
    if spec.init == "random":
        for i, (low, high) in enumerate((spec.bounds.d, spec.bounds.k)):
            n = high - low - 1
            u[i] = (draws.token([1 / n] * n) + 0.5) / n
    return adt_step(
        list(memory.history),
        memory.alpha,
        spec.bounds,
        spec.init,
        grid_width,
        spec.radius,
        (u[0], u[1]),
    )


class Slot(NamedTuple):
    """One window position: its drafts in the order they were drawn (SJD-PAC has siblings), and the
    first one's law.
    """

    tokens: tuple[int, ...]
    law: tuple[float, ...]


Window = tuple[Slot, ...]
WindowState = tuple[Prefix, Window]


@dataclass(frozen=True)
class WindowMethod(PlainMethod):
    """A window with an acceptance rule and a residual."""

    spec: WindowSpec

    def start(self, world: World) -> dict[WindowState, float]:
        return super().start(world) if self.spec.prefill else {((), ()): 1.0}

    def step(self, world: World, state: WindowState) -> Callable[[Draws], WindowState]:
        """One forward over the window: what is committed, and the drafts that stay."""
        prefix, old = state

        def run(draws: Draws) -> WindowState:
            window = self.fill(draws, world, prefix, old)

            def node(at: Path, ranks: Path) -> tuple[Probs, Path]:
                column = len(at) + 1
                # the tree grows from first siblings alone
                leaf = column > len(window) or (any(ranks) and column >= self.spec.tree_depth)
                return (
                    ([], ()) if leaf else (list(window[column - 1].law), window[column - 1].tokens)
                )

            tokens = self.verified(draws, world, prefix, node)
            return prefix + tokens, self.redrawn(draws, world, prefix, window, tokens[:-1])

        return run

    def fill(self, draws: Draws, world: World, prefix: Prefix, window: Window) -> Window:
        """Fresh drafts for the positions that the window has none for."""
        spec, size = self.spec, min(self.spec.window, world.length - len(prefix))
        window = window[:size]
        for column in range(len(window) + 1, size + 1):
            law = fresh_law(world, spec, prefix, len(prefix) + column - 1)
            tokens = siblings(draws, law, spec.width(column))
            window += (
                Slot(tokens, tuple(one_hot(tokens[0], world.vocab) if spec.one_hot else law)),
            )
        return window

    def redrawn(
        self, draws: Draws, world: World, prefix: Prefix, window: Window, at: Prefix
    ) -> Window:
        """The drafts after the token that ends the step, from what this forward says of their
        positions.

        The forward has seen, at each later position, the accepted path ``at`` and from there on
        the first siblings; beyond the tree, where an accepted path of other siblings has no nodes,
        the chain of first siblings.
        """
        spec, stop = self.spec, len(at) + 1  # the column of the token that ends the step
        chain = tuple(slot.tokens[0] for slot in window)
        after: Window = ()
        for column in range(stop + 1, min(len(window) + 1, world.length - len(prefix)) + 1):
            seen = (
                chain[: column - 1]
                if column > spec.tree_depth
                else at + chain[len(at) : column - 1]
            )
            old = window[column - 1] if column <= len(window) else None
            after += (redraw(draws, spec, world.q(prefix + seen), old, spec.width(column - stop)),)
        return after


def fresh_law(world: World, spec: WindowSpec, prefix: Prefix, position: int) -> Probs:
    """SJD, section 4.2: a token that enters the window is random, or comes from a committed
    neighbour.

    ``horizontal``: the nearest committed token to the left in its row; ``vertical``: the one
    above.  ``repeat`` copies it, ``sample`` draws from its distribution.  Where there is none, the
    token is random.
    """
    direction, _, how = spec.init.partition("-")
    if direction == "horizontal":
        source = len(prefix) - 1
        exists = source >= 0 and source // world.grid_width == position // world.grid_width
    else:
        source = position - world.grid_width
        exists = 0 <= source < len(prefix)
    if direction == "random" or not exists:
        return [1 / world.vocab] * world.vocab
    return one_hot(prefix[source], world.vocab) if how == "repeat" else world.q(prefix[:source])


def siblings(draws: Draws, p: Probs, count: int, first: int | None = None) -> tuple[int, ...]:
    """Ordered draws without replacement from p, fewer where p has fewer tokens; ``first``: the
    first one is given.
    """
    tokens, p = ((), p) if first is None else ((first,), without(p, first))
    while len(tokens) < count and any(p):
        x = draws.token(p)
        tokens, p = (*tokens, x), without(p, x)
    return tokens


def redraw(draws: Draws, spec: WindowSpec, q: Probs, old: Slot | None, count: int) -> Slot:
    """New drafts for a position, of which the first has the law q."""
    if old is None or spec.redraw == "independent":
        return Slot(siblings(draws, q, count), tuple(q))
    x, p = old.tokens[0], list(old.law)
    if spec.redraw == "keep":
        kept = q[x] > spec.theta * p[x]
        x = x if kept else draws.token(q)
    else:
        x, kept = coupled(draws, q, p, x)
    law = old.law if kept and spec.redraw in ("keep", "kept-law") else tuple(q)
    return Slot(siblings(draws, q, count, x), law)


def coupled(draws: Draws, q: Probs, p: Probs, x: int) -> tuple[int, bool]:
    """Maximal coupling (SCD, arXiv 2510.24211): keep x ~ p with min(1, q(x)/p(x)), else draw from
    [q − p]₊.

    -> (token, was it kept?); over x ~ p the token has the law q, and equals x as often as is
    possible.
    """
    if draws.accepts(min(1.0, q[x] / p[x])):
        return x, True
    return draws.token(
        normalise([max(0.0, qy - py) for qy, py in zip(q, p, strict=True)], q)
    ), False


def inverse_cdf(p: Probs, u: float) -> int:
    """The first token whose cumulated probability exceeds u."""
    above = (x for x, mass in enumerate(accumulate(p)) if mass > u)
    return next(above, max(x for x, px in enumerate(p) if px > 0))
