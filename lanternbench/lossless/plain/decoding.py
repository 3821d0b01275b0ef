"""The exact output distribution of a drafted method: one verification for every tree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from lanternbench.engine.plain import Probs, TreeSpec
from lanternbench.lossless.plain.branches import Draws
from lanternbench.lossless.plain.draft_trees import Path, Tree, adt_step, dynamic_tree, top_children
from lanternbench.lossless.plain.rules import PlainMethod
from lanternbench.lossless.plain.world import Prefix, World, normalise


class Memory(NamedTuple):
    """What ADT-Tree carries from step to step: its earlier trees and α."""

    history: tuple[Tree, ...] = ()
    alpha: float | None = None


State = tuple[Prefix, Memory]


@dataclass(frozen=True)
class MethodSpec(PlainMethod):
    """A drafted method.  ``sampled``: are a static tree's children drawn without replacement, or the likeliest tokens?

    ``block``: block verification of a sampled chain: (q_1 … q_{L+1}, p_1 … p_L, x_1 … x_L) -> (probability, accepted
    length, weights of the token after it), in place of the rule and the residual.  ``marginals``: the drafter knows the
    committed tokens alone, so that its distribution at a depth is the same after any drafts.
    """

    spec: TreeSpec
    sampled: bool = True
    block: Callable[..., list[tuple[float, int, Probs]]] | None = None
    marginals: bool = False

    @property
    def memory(self) -> Memory:
        return Memory((self.spec.first,) if self.spec.kind == "adaptive" else ())

    def step(self, world: World, state: State) -> Callable[[Draws], State]:
        prefix, memory = state
        drafting = world.drafting_after(len(prefix)) if self.marginals else world
        spec = self.spec
        dynamic = cache(lambda depth, width: dynamic_tree(drafting, prefix, depth, width, spec.total))

        def static(at: Path, ranks: Path) -> tuple[Probs | None, Sequence[int | None]]:
            count = sum(path[:-1] == ranks for path in spec.paths)
            p = drafting.p(prefix + at) if count else []
            return (p, [None] * count) if self.sampled else (None, top_children(p, count))

        def run(draws: Draws) -> State:
            after = memory
            if self.block is not None:
                tokens = self.verified_block(draws, drafting, prefix)
            elif spec.kind == "static":
                tokens = self.verified(draws, drafting, prefix, static)
            else:
                size = (spec.depth, spec.top_k)
                if spec.kind == "adaptive":
                    size = adapted(draws, spec, memory, world.grid_width)
                children = dynamic(*size)
                tokens = self.verified(draws, drafting, prefix, lambda at, _: (None, children.get(at, [])))
                if spec.kind == "adaptive":
                    counted = len(tokens) if spec.bonus else len(tokens) - 1
                    after = Memory(memory.history + (size,) * len(tokens), counted / size[0])
            return (prefix + tokens)[: world.length], after

        return run

    def verified_block(self, draws: Draws, world: World, prefix: Prefix) -> Prefix:
        """Block verification of a chain drawn from p."""
        assert self.block is not None
        xs: Prefix = ()
        for _ in range(self.spec.deepest):
            xs += (draws.token(world.p(prefix + xs)),)
        ps = [world.p(prefix + xs[:i]) for i in range(len(xs))]
        qs = [world.q(prefix + xs[:i]) for i in range(len(xs) + 1)]
        ends = self.block(qs, ps, xs)
        _, accepted, weights = ends[draws.token([chance for chance, _, _ in ends])]
        return (*xs[:accepted], draws.token(normalise(weights, qs[accepted])))


def adapted(draws: Draws, spec: TreeSpec, memory: Memory, grid_width: int) -> Tree:
    """ADT-Tree's (d̂, k̂) of the tree that is drafted next."""
    u = [0.5, 0.5]
    if spec.init == "random":
        for i, (low, high) in enumerate((spec.bounds.d, spec.bounds.k)):
            n = high - low - 1
            u[i] = (draws.token([1 / n] * n) + 0.5) / n
    return adt_step(list(memory.history), memory.alpha, spec.bounds, spec.init, grid_width, spec.radius, (u[0], u[1]))
