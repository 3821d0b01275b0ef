"""The exact output distribution of a drafted method: one verification for every tree.

At a node its children are tried in draft order; the first accepted child is the next node; all rejected, the step ends
with a token of the residual; at a leaf it ends with a bonus token of q.  What is drawn at nodes that are never reached
plays no part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from lanternbench.engine.plain import PlainRule, Probs, TreeSpec
from lanternbench.lossless.plain.branches import Draws
from lanternbench.lossless.plain.draft_trees import Path, Tree, adt_step, child_counts, dynamic_tree, top_children
from lanternbench.lossless.plain.rules import Residual, first_accepted
from lanternbench.lossless.plain.world import Prefix, World, normalise, one_hot


@dataclass(frozen=True)
class Memory:
    """What ADT-Tree carries from step to step: its earlier trees and α."""

    history: tuple[Tree, ...] = ()
    alpha: float | None = None


State = tuple[Prefix, Memory]


@dataclass(frozen=True)
class MethodSpec:
    """A drafted method.  ``sampled``: are a static tree's children drawn without replacement, or the likeliest tokens?

    ``block``: block verification of a sampled chain: (q_1 … q_{L+1}, p_1 … p_L, x_1 … x_L) -> (probability, accepted
    length, weights of the token after it), in place of the rule and the residual.  ``marginals``: the drafter knows the
    committed tokens alone, so that its distribution at a depth is the same after any drafts.
    """

    tree: TreeSpec
    rule: PlainRule
    residual: Residual
    sampled: bool = True
    block: Callable[..., list[tuple[float, int, Probs]]] | None = None
    marginals: bool = False

    def start(self, world: World) -> dict[State, float]:
        memory = Memory((self.tree.first,) if self.tree.kind == "adaptive" else ())
        return {((x,), memory): w for x, w in enumerate(world.q(())) if w > 0}

    def image(self, world: World, state: State) -> Prefix | None:
        return state[0] if len(state[0]) == world.length else None

    def step(self, world: World, state: State) -> Callable[[Draws], State]:
        prefix, memory = state
        drafting = world.drafting_after(len(prefix)) if self.marginals else world
        spec, counts = self.tree, child_counts(self.tree.paths)

        @cache  # of several runs
        def dynamic(depth: int, width: int) -> dict[Path, list[int]]:
            return dynamic_tree(drafting, prefix, depth, width, spec.total)

        def run(draws: Draws) -> State:
            after = memory
            if self.block is not None:
                tokens = self.verified_block(draws, drafting, prefix)
            elif spec.kind == "static":
                tokens = self.verified(draws, drafting, prefix, {}, counts)
            else:
                size = (spec.depth, spec.top_k)
                if spec.kind == "adaptive":
                    size = adapted(draws, spec, memory, world.grid_width)
                tokens = self.verified(draws, drafting, prefix, dynamic(*size), {})
                if spec.kind == "adaptive":
                    counted = len(tokens) if spec.bonus else len(tokens) - 1
                    after = Memory(memory.history + (size,) * len(tokens), counted / size[0])
            longer = (prefix + tokens)[: world.length]
            return longer, after if len(longer) < world.length else Memory()

        return run

    def verified(
        self, draws: Draws, world: World, prefix: Prefix, chosen: dict[Path, list[int]], counts: dict[Path, int]
    ) -> Prefix:
        """The tokens that one step commits.

        ``chosen``: a dynamic tree's children by path of tokens, ``counts``: a static one's by ranks.
        """
        at: Path = ()
        ranks: Path = ()
        while True:
            context, count = prefix + at, counts.get(ranks, 0)
            tokens = chosen.get(at, [])
            if count and not self.sampled:
                tokens = top_children(world.p(context), count)
            children: list[tuple[int | None, Probs | None]] = [(x, one_hot(x, world.vocab)) for x in tokens]
            children = children or [(None, None)] * count
            p = world.p(context) if count and self.sampled else []
            inside = len(context) < world.length  # a test of a token beyond the image decides nothing
            q, depth = world.q(context), len(at) + 1
            x, rank, left = first_accepted(draws, self.rule, self.residual, q, p, children, depth, inside)
            if x is None:
                return (*at, draws.token(left))
            at, ranks = (*at, x), (*ranks, rank)

    def verified_block(self, draws: Draws, world: World, prefix: Prefix) -> Prefix:
        """Block verification of a chain drawn from p."""
        assert self.block is not None
        xs: Prefix = ()
        for _ in range(self.tree.deepest):
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
