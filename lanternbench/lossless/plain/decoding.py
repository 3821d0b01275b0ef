"""The exact output distribution of a drafted method: recursion over everything that can be drawn.

One verification for every tree.  At a node its children are tried in draft order, each against what the earlier
rejections left of q and p; the first accepted child is the next node; all rejected, the step ends with a token of the
residual; at a leaf it ends with a bonus token of q.  What is drawn at nodes that are never reached plays no part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from lanternbench.lossless.plain.draft_trees import (
    ANOLE,
    AdaptiveBounds,
    Path,
    Tree,
    adt_step,
    chain,
    child_counts,
    dynamic_tree,
    top_children,
)
from lanternbench.lossless.plain.rules import EXACT, Rule, acceptance, block, residual, stage_loss, without
from lanternbench.lossless.plain.world import Prefix, World


@dataclass(frozen=True)
class MethodSpec:
    """A drafted method.  ``tree``: ``none`` (AR), ``chain``, ``static``, ``dynamic`` or ``adaptive``.

    ``depth``: of a chain, of a dynamic tree.  ``paths``: a static tree's child paths.  ``sampled``: are a static tree's
    children drawn without replacement, or its likeliest tokens?  ``block``: block verification, on sampled chains.
    """

    tree: str = "chain"
    rule: Rule = EXACT
    residual: str = "standard"
    depth: int = 2
    paths: tuple[tuple[int, ...], ...] = ()
    sampled: bool = True
    top_k: int = 2
    total: int = 4
    block: bool = False
    bounds: AdaptiveBounds = ANOLE
    init: str = "horizontal"
    radius: int = 2
    first: Tree = (2, 2)  # the tree said to have produced token 0, which none did
    bonus: bool = True  # does α count the bonus token?

    @property
    def deepest(self) -> int:
        """L, the deepest draft position."""
        return {
            "none": 0,
            "chain": self.depth,
            "static": max((len(p) for p in self.paths), default=0),
            "dynamic": self.depth,
            "adaptive": self.bounds.d[1] - 1,
        }[self.tree]


@dataclass
class Outcomes:
    """What a step can commit, with probabilities, and the expected Σ TV(q_j, K_j) of its tests."""

    committed: dict[Prefix, float] = field(default_factory=lambda: defaultdict(float))
    loss: float = 0.0


def in_all(by_steps: list[dict[Prefix, float]]) -> dict[Prefix, float]:
    """P(image), however many steps it took."""
    images: dict[Prefix, float] = defaultdict(float)
    for made in by_steps:
        for image, probability in made.items():
            images[image] += probability
    return dict(images)


def decode_by_steps(world: World, spec: MethodSpec) -> tuple[list[dict[Prefix, float]], float]:
    """P(image after 1, 2, … steps), the first token before them; and the expected fidelity loss."""
    spec = replace(spec, rule=replace(spec.rule, length=max(1, spec.deepest)))
    memory = _Start(spec)
    states: dict[tuple[Prefix, _Start], float] = {((x,), memory): w for x, w in enumerate(world.q(())) if w > 0}
    by_steps: list[dict[Prefix, float]] = []
    total_loss = 0.0
    while states:
        images: dict[Prefix, float] = defaultdict(float)
        after: dict[tuple[Prefix, _Start], float] = defaultdict(float)
        for (prefix, memory), weight in states.items():
            for chance, tree, start in memory.trees(world, len(prefix)):
                outcomes = step(world, spec, prefix, tree)
                total_loss += weight * chance * outcomes.loss
                for tokens, probability in outcomes.committed.items():
                    longer, mass = (prefix + tokens)[: world.length], weight * chance * probability
                    if len(longer) == world.length:
                        images[longer] += mass
                    else:
                        after[longer, start.committed(len(tokens))] += mass
        by_steps.append(images)
        states = after
    return by_steps, total_loss


@dataclass(frozen=True)
class _Start:
    """What a method carries from step to step beside the prefix: nothing, or ADT-Tree's earlier trees and its α."""

    spec: MethodSpec
    history: tuple[Tree, ...] = ()
    alpha: float | None = None
    now: Tree | None = None

    def trees(self, world: World, length: int) -> Iterator[tuple[float, Tree | None, _Start]]:
        """(probability, (d̂, k̂), memory with it) of the tree that is drafted next."""
        spec, bounds = self.spec, self.spec.bounds
        if spec.tree != "adaptive":
            yield 1.0, None, self
            return
        history = self.history or (spec.first,)
        n_d, n_k = (high - low - 1 if spec.init == "random" else 1 for low, high in (bounds.d, bounds.k))
        for i, j in product(range(n_d), range(n_k)):
            u = ((i + 0.5) / n_d, (j + 0.5) / n_k)
            tree = adt_step(list(history), self.alpha, bounds, spec.init, world.grid_width, spec.radius, u)
            yield 1 / (n_d * n_k), tree, replace(self, history=history, now=tree)

    def committed(self, tokens: int) -> _Start:
        """After its tree committed so many tokens, the bonus token included."""
        if self.now is None:
            return self
        counted = tokens if self.spec.bonus else tokens - 1
        return replace(self, history=self.history + (self.now,) * tokens, alpha=counted / self.now[0], now=None)


def step(world: World, spec: MethodSpec, prefix: Prefix, tree: Tree | None = None) -> Outcomes:
    """One step after ``prefix``; ``tree``: ADT-Tree's (d̂, k̂)."""
    if spec.block:
        return block_step(world, prefix, spec.depth)
    if spec.tree in ("dynamic", "adaptive"):
        depth, width = tree or (spec.depth, spec.top_k)
        verification = Verification(world, spec, prefix, dynamic_tree(world, prefix, depth, width, spec.total), {})
    else:
        paths = {"none": [], "chain": chain(spec.depth), "static": [list(p) for p in spec.paths]}[spec.tree]
        verification = Verification(world, spec, prefix, {}, child_counts(paths))
    verification.visit((), (), 1.0)
    return verification.outcomes


@dataclass
class Verification:
    """One step's tree; ``chosen``: a dynamic one's children by path of tokens, ``counts``: a static one's by ranks."""

    world: World
    spec: MethodSpec
    prefix: Prefix
    chosen: dict[Path, list[int]]
    counts: dict[Path, int]
    outcomes: Outcomes = field(default_factory=Outcomes)

    def visit(self, at: Path, ranks: Path, weight: float) -> None:
        """The node that the accepted tokens ``at`` lead to, ``ranks`` their places among their siblings."""
        q, count = self.world.q(self.prefix + at), self.counts.get(ranks, 0)
        if at in self.chosen:
            self.try_chosen(at, ranks, q, self.chosen[at], weight)
        elif count and not self.spec.sampled:
            self.try_chosen(at, ranks, q, top_children(self.world.p(self.prefix + at), count), weight)
        elif count:
            self.try_sampled(at, ranks, q, self.world.p(self.prefix + at), 0, weight)
        else:
            self.end(at, q, weight)  # a leaf: the bonus token

    def try_chosen(self, at: Path, ranks: Path, q: list[float], tokens: list[int], weight: float) -> None:
        """Children that were chosen count as p = 1 each."""
        rule, rest, depth = self.spec.rule, self.spec.residual, len(at) + 1
        for j, x in enumerate(tokens):
            self.add_loss(at, q, None, x, weight)
            f = acceptance(rule, q, None, x, depth)
            if f > 0 and weight > 0:
                self.visit((*at, x), (*ranks, j), weight * f)
            q, weight = residual(rest, q, None, x, rule, depth), weight * (1 - f)
        self.end(at, q, weight)

    def try_sampled(self, at: Path, ranks: Path, q: list[float], p: list[float], j: int, weight: float) -> None:
        """Child j is drawn from p, which the earlier ones have left; a p that is exhausted has no more children."""
        rule, rest, depth = self.spec.rule, self.spec.residual, len(at) + 1
        if j == self.counts[ranks] or not any(p):
            self.end(at, q, weight)
            return
        self.add_loss(at, q, p, 0, weight)
        for x, px in enumerate(p):
            f = acceptance(rule, q, p, x, depth)
            if f > 0:
                self.visit((*at, x), (*ranks, j), weight * px * f)
            if px > 0 and f < 1:
                left = residual(rest, q, p, x, rule, depth)
                self.try_sampled(at, ranks, left, without(p, x), j + 1, weight * px * (1 - f))

    def add_loss(self, at: Path, q: list[float], p: list[float] | None, x: int, weight: float) -> None:
        """A test of a token beyond the image decides nothing."""
        if len(self.prefix + at) < self.world.length:
            rule, depth = self.spec.rule, len(at) + 1
            self.outcomes.loss += weight * stage_loss(self.spec.residual, q, p, x, rule, depth)

    def end(self, at: Path, law: list[float], weight: float) -> None:
        for x, probability in enumerate(law):
            if weight * probability > 0:
                self.outcomes.committed[(*at, x)] += weight * probability


def block_step(world: World, prefix: Prefix, length: int) -> Outcomes:
    """Block verification of a chain drawn from p."""
    step = Verification(world, MethodSpec(), prefix, {}, {})
    for xs in product(range(world.vocab), repeat=length):
        ps = [world.p(prefix + xs[:i]) for i in range(length)]
        weight = 1.0
        for p, x in zip(ps, xs, strict=True):
            weight *= p[x]
        if weight > 0:
            qs = [world.q(prefix + xs[:i]) for i in range(length + 1)]
            for probability, accepted, law in block(qs, ps, xs):
                step.end(xs[:accepted], law, weight * probability)
    return step.outcomes
