"""The Jacobi family: SJD and its window initialisations, SCD's coupled redraws, GSD, SJD-PAC's siblings.

A window holds drafts for the positions after the committed prefix, each with the law that it was drawn from: the
target's after the tokens that stood there when it was (re)drawn; a fresh draft's is uniform or one-hot.  Windows end
with the image.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lanternbench.engine.plain import Probs, WindowSpec
from lanternbench.lossless.plain.branches import Draws
from lanternbench.lossless.plain.draft_trees import Path
from lanternbench.lossless.plain.rules import PlainMethod, without
from lanternbench.lossless.plain.world import Prefix, World, normalise, one_hot


class Slot(NamedTuple):
    """One window position: its drafts in the order they were drawn (SJD-PAC has siblings), and the first one's law."""

    tokens: tuple[int, ...]
    law: tuple[float, ...]


Window = tuple[Slot, ...]
State = tuple[Prefix, Window]


@dataclass(frozen=True)
class WindowMethod(PlainMethod):
    """A window with an acceptance rule and a residual."""

    spec: WindowSpec

    def start(self, world: World) -> dict[State, float]:
        return super().start(world) if self.spec.prefill else {((), ()): 1.0}

    def step(self, world: World, state: State) -> Callable[[Draws], State]:
        """One forward over the window: what is committed, and the drafts that stay."""
        prefix, old = state

        def run(draws: Draws) -> State:
            window = self.fill(draws, world, prefix, old)

            def node(at: Path, ranks: Path) -> tuple[Probs, Path]:
                column = len(at) + 1
                # the tree grows from first siblings alone
                leaf = column > len(window) or (any(ranks) and column >= self.spec.tree_depth)
                return ([], ()) if leaf else (list(window[column - 1].law), window[column - 1].tokens)

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
            window += (Slot(tokens, tuple(one_hot(tokens[0], world.vocab) if spec.one_hot else law)),)
        return window

    def redrawn(self, draws: Draws, world: World, prefix: Prefix, window: Window, at: Prefix) -> Window:
        """The drafts after the token that ends the step, from what this forward says of their positions.

        The forward has seen, at each later position, the accepted path ``at`` and from there on the first siblings;
        beyond the tree, where an accepted path of other siblings has no nodes, the chain of first siblings.
        """
        spec, stop = self.spec, len(at) + 1  # the column of the token that ends the step
        chain = tuple(slot.tokens[0] for slot in window)
        after: Window = ()
        for column in range(stop + 1, min(len(window) + 1, world.length - len(prefix)) + 1):
            seen = chain[: column - 1] if column > spec.tree_depth else at + chain[len(at) : column - 1]
            old = window[column - 1] if column <= len(window) else None
            after += (redraw(draws, spec, world.q(prefix + seen), old, spec.width(column - stop)),)
        return after


def fresh_law(world: World, spec: WindowSpec, prefix: Prefix, position: int) -> Probs:
    """SJD, section 4.2: a token that enters the window is random, or comes from a committed neighbour.

    ``horizontal``: the nearest committed token to the left in its row; ``vertical``: the one above.  ``repeat`` copies
    it, ``sample`` draws from its distribution.  Where there is none, the token is random.
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
    """Ordered draws without replacement from p, fewer where p has fewer tokens; ``first``: the first one is given."""
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
    """Maximal coupling (SCD, arXiv 2510.24211): keep x ~ p with min(1, q(x)/p(x)), else draw from [q − p]₊.

    -> (token, was it kept?); over x ~ p the token has the law q, and equals x as often as is possible.
    """
    if draws.accepts(min(1.0, q[x] / p[x])):
        return x, True
    return draws.token(normalise([max(0.0, qy - py) for qy, py in zip(q, p, strict=True)], q)), False


def inverse_cdf(p: Probs, u: float) -> int:
    """The first token whose cumulated probability exceeds u."""
    mass = 0.0
    for x, px in enumerate(p):
        mass += px
        if mass > u:
            return x
    return max(x for x, px in enumerate(p) if px > 0)
