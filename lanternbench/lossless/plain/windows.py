"""The Jacobi family by enumeration: SJD and its window initialisations, SCD's coupled redraws, GSD, SJD-PAC's siblings.

A window holds drafts for the positions after the committed prefix, each with the law that it was drawn from.  A law is
named, not stored: ``Law(context)`` is the target's distribution after ``context``, the tokens that stood there when the
draft was (re)drawn; a fresh draft's is uniform or one-hot.  Windows end with the image.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import NamedTuple

from lanternbench.engine.plain import PlainRule, WindowSpec
from lanternbench.lossless.plain.rules import Residual, after_rejection, stage_loss, without
from lanternbench.lossless.plain.world import Prefix, World, normalise, one_hot


class Law(NamedTuple):
    """The distribution that a draft was drawn from."""

    kind: str  # "target", "uniform", "one-hot"
    context: Prefix = ()  # of "one-hot": the token

    def of(self, world: World) -> list[float]:
        if self.kind == "target":
            return world.q(self.context)
        return one_hot(self.context[0], world.vocab) if self.kind == "one-hot" else [1 / world.vocab] * world.vocab


class Slot(NamedTuple):
    """One window position: its drafts in the order they were drawn (SJD-PAC has siblings), and the first one's law."""

    tokens: tuple[int, ...]
    law: Law


@dataclass(frozen=True)
class WindowMethod:
    """A window with an acceptance rule and a residual."""

    spec: WindowSpec
    rule: PlainRule
    residual: Residual


Window = tuple[Slot, ...]
Weighted = dict[tuple[Prefix, Window], float]


def decode_by_steps(world: World, method: WindowMethod) -> tuple[list[dict[Prefix, float]], float]:
    """P(image after 1, 2, … steps), a prefill's token before them; and the expected fidelity loss."""
    spec = method.spec
    states: Weighted = {((), ()): 1.0}
    if spec.prefill:
        states = {((x,), ()): w for x, w in enumerate(world.q(())) if w > 0}
    by_steps: list[dict[Prefix, float]] = []
    total_loss = 0.0
    while states:
        images: dict[Prefix, float] = defaultdict(float)
        after: Weighted = defaultdict(float)
        for (prefix, window), weight in states.items():
            for filled, chance in fill(world, spec, prefix, window):
                forward = step(world, method, prefix, filled)
                total_loss += weight * chance * forward.loss
                for (longer, left), probability in forward.out.items():
                    mass = weight * chance * probability
                    if len(longer) == world.length:
                        images[longer] += mass
                    else:
                        after[longer, left] += mass
        by_steps.append(images)
        states = after
    return by_steps, total_loss


def fill(world: World, spec: WindowSpec, prefix: Prefix, window: Window) -> list[tuple[Window, float]]:
    """Fresh drafts for the positions that the window has none for."""
    size = min(spec.window, world.length - len(prefix))
    options: list[list[tuple[Slot, float]]] = []
    for column in range(1, size + 1):
        if column <= len(window):
            options.append([(window[column - 1], 1.0)])
        else:
            law = fresh_law(world, spec, prefix, len(prefix) + column - 1)
            slots = []
            for tokens, chance in siblings(law.of(world), spec.width(column)):
                slots.append((Slot(tokens, Law("one-hot", tokens[:1]) if spec.one_hot else law), chance))
            options.append(slots)
    return [(tuple(slot for slot, _ in combo), math.prod(c for _, c in combo)) for combo in product(*options)]


def fresh_law(world: World, spec: WindowSpec, prefix: Prefix, position: int) -> Law:
    """SJD, section 4.2: a token that enters the window is random, or comes from a committed neighbour.

    ``horizontal``: the nearest committed token to the left in its row; ``vertical``: the one above.  ``repeat`` copies
    it, ``sample`` draws from its distribution.  Where there is none, the token is random.
    """
    if spec.init == "random":
        return Law("uniform")
    direction, how = spec.init.split("-")
    if direction == "horizontal":
        source = len(prefix) - 1
        there = source >= 0 and source // world.grid_width == position // world.grid_width
    else:
        source = position - world.grid_width
        there = 0 <= source < len(prefix)
    if not there:
        return Law("uniform")
    return Law("one-hot", prefix[source : source + 1]) if how == "repeat" else Law("target", prefix[:source])


def siblings(p: list[float], count: int, first: int | None = None) -> Iterable[tuple[tuple[int, ...], float]]:
    """Ordered draws without replacement from p, fewer where p has fewer tokens; ``first``: the first one is given."""
    support = [x for x, px in enumerate(p) if px > 0 or x == first]
    for tokens in permutations(support, min(count, len(support))):
        if first is not None and tokens[0] != first:
            continue
        chance, left = 1.0, p
        for j, x in enumerate(tokens):
            chance *= 1.0 if j == 0 and first is not None else left[x]
            left = without(left, x)
        if chance > 0:
            yield tokens, chance


def step(world: World, method: WindowMethod, prefix: Prefix, window: Window) -> Forward:
    """One forward over the window: what is committed, and the drafts that stay, with probabilities."""
    forward = Forward(world, method, prefix, window)
    forward.verify((), True, 1.0)
    return forward


@dataclass
class Forward:
    """One step on a filled window, and what it can lead to."""

    world: World
    method: WindowMethod
    prefix: Prefix
    window: Window
    out: Weighted = field(default_factory=lambda: defaultdict(float))
    loss: float = 0.0  # the expected Σ TV(q_j, K_j) of its tests

    def verify(self, at: Prefix, first: bool, weight: float) -> None:
        """``at``: the drafts accepted so far; ``first``: were all first siblings?  The chain grows from those alone."""
        world, column, rule, rest = self.world, len(at) + 1, self.method.rule, self.method.residual
        if len(self.prefix + at) == world.length:
            self.out[self.prefix + at, ()] += weight
            return
        q = world.q(self.prefix + at)
        if column > len(self.window) or (column > 1 and not first and column >= self.method.spec.tree_depth):
            self.finish(at, q, weight)  # a leaf: the bonus token
            return
        tokens, law = self.window[column - 1]
        p = law.of(world)
        for j, x in enumerate(tokens):
            self.loss += weight * stage_loss(rest, q, p, rule, column)
            f = rule.plain_prob(q, p, x, column)
            if f > 0:
                self.verify((*at, x), first and j == 0, weight * f)
            weight *= 1 - f
            if weight == 0:
                return
            q, p = after_rejection(rest, q, p, x, rule, column), without(p, x)
        self.finish(at, q, weight)

    def finish(self, at: Prefix, law: list[float], weight: float) -> None:
        """The step ends with a token of ``law``; the later positions are redrawn from what this forward says of them.

        The forward has seen, at each later position, the accepted path and from there on the first siblings; beyond the
        tree, where an accepted path of other siblings has no nodes, the chain of first siblings.
        """
        world, window, spec = self.world, self.window, self.method.spec
        stop = len(at) + 1  # the column of the token that ends the step
        chain = tuple(slot.tokens[0] for slot in window)
        options: list[list[tuple[Slot, float]]] = []
        for column in range(stop + 1, min(len(window) + 1, world.length - len(self.prefix)) + 1):
            seen = chain[: column - 1] if column > spec.tree_depth else at + chain[len(at) : column - 1]
            old = window[column - 1] if column <= len(window) else None
            options.append(redraw(world, spec, self.prefix + seen, old, spec.width(column - stop)))
        for x, probability in enumerate(law):
            if probability > 0:
                for combo in product(*options):
                    mass = weight * probability * math.prod(chance for _, chance in combo)
                    self.out[(*self.prefix, *at, x), tuple(slot for slot, _ in combo)] += mass


def redraw(world: World, spec: WindowSpec, context: Prefix, old: Slot | None, count: int) -> list[tuple[Slot, float]]:
    """New drafts for a position, of which the first has the law q(·|context)."""
    q, law = world.q(context), Law("target", context)
    drawn: dict[tuple[int, Law], float] = defaultdict(float)
    if old is not None and spec.redraw == "keep" and q[old.tokens[0]] > spec.theta * old.law.of(world)[old.tokens[0]]:
        drawn[old.tokens[0], old.law] = 1.0
    elif old is None or spec.redraw in ("independent", "keep"):
        for x, qx in enumerate(q):
            drawn[x, law] += qx
    else:
        for x, chance, kept in coupled(q, old.law.of(world), old.tokens[0]):
            drawn[x, old.law if kept and spec.redraw == "kept-law" else law] += chance
    return [
        (Slot(tokens, recorded), chance * more)
        for (x, recorded), chance in drawn.items()
        if chance > 0
        for tokens, more in siblings(q, count, x)
    ]


def coupled(q: list[float], p: list[float], x: int) -> Iterable[tuple[int, float, bool]]:
    """Maximal coupling (SCD, arXiv 2510.24211): keep x ~ p with min(1, q(x)/p(x)), else draw from [q − p]₊.

    -> (token, probability, was it kept?); over x ~ p the token has the law q, and equals x as often as is possible.
    """
    keep = min(1.0, q[x] / p[x])
    yield x, keep, True
    if keep < 1:
        for y, gy in enumerate(normalise([max(0.0, qy - py) for qy, py in zip(q, p, strict=True)], q)):
            if gy > 0:
                yield y, (1 - keep) * gy, False


def inverse_cdf(p: list[float], u: float) -> int:
    """The first token whose cumulated probability exceeds u."""
    mass = 0.0
    for x, px in enumerate(p):
        mass += px
        if mass > u:
            return x
    return max(x for x, px in enumerate(p) if px > 0)
