"""The exact output distribution of a drafted method: recursion over everything that can be drawn.

One verification for every tree.  At a node its children are tried in draft order, each against what the earlier
rejections left of q and p; the first accepted child is the next node; all rejected, the step ends with a token of the
residual; at a leaf it ends with a bonus token of q.  What is drawn at nodes that are never reached plays no part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from lanternbench.engine.plain import PlainRule, Probs, TreeSpec
from lanternbench.lossless.plain.draft_trees import Path, Tree, adt_step, child_counts, dynamic_tree, top_children
from lanternbench.lossless.plain.rules import Residual, after_rejection, stage_loss, without
from lanternbench.lossless.plain.world import Prefix, World, normalise, one_hot


@dataclass(frozen=True)
class MethodSpec:
    """A drafted method.  ``sampled``: are a static tree's children drawn without replacement, or the likeliest tokens?

    ``block``: block verification of a sampled chain: (q_1 … q_{L+1}, p_1 … p_L, x_1 … x_L) -> (probability, accepted
    length, weights of the token after it), in place of the rule and the residual.
    """

    tree: TreeSpec
    rule: PlainRule
    residual: Residual
    sampled: bool = True
    block: Callable[..., list[tuple[float, int, Probs]]] | None = None


@dataclass
class Outcomes:
    """What a step can commit, with probabilities, and the expected Σ TV(q_j, K_j) of its tests."""

    committed: dict[Prefix, float] = field(default_factory=lambda: defaultdict(float))
    loss: float = 0.0


def in_all(by_steps: list[dict[Prefix, float]]) -> dict[Prefix, float]:
    """P(image), however many steps it took."""
    images: dict[Prefix, float] = defaultdict(float)
    for part in by_steps:
        for image, probability in part.items():
            images[image] += probability
    return dict(images)


def decode_by_steps(world: World, spec: MethodSpec) -> tuple[list[dict[Prefix, float]], float]:
    """P(image after 1, 2, … steps), the first token before them; and the expected fidelity loss."""
    memory = _Start(spec.tree)
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

    spec: TreeSpec
    history: tuple[Tree, ...] = ()
    alpha: float | None = None
    now: Tree | None = None

    def trees(self, world: World, length: int) -> Iterator[tuple[float, Tree | None, _Start]]:
        """(probability, (d̂, k̂), memory with it) of the tree that is drafted next."""
        spec, bounds = self.spec, self.spec.bounds
        if spec.kind != "adaptive":
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
    shape = spec.tree
    if spec.block is not None:
        return block_step(world, prefix, spec)
    if shape.kind == "static":
        verification = Verification(world, spec, prefix, {}, child_counts(shape.paths))
    else:
        depth, width = tree or (shape.depth, shape.top_k)
        verification = Verification(world, spec, prefix, dynamic_tree(world, prefix, depth, width, shape.total), {})
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
            p = one_hot(x, len(q))
            self.add_loss(at, q, p, weight)
            f = rule.plain_prob(q, p, x, depth)
            if f > 0 and weight > 0:
                self.visit((*at, x), (*ranks, j), weight * f)
            q, weight = after_rejection(rest, q, p, x, rule, depth), weight * (1 - f)
        self.end(at, q, weight)

    def try_sampled(self, at: Path, ranks: Path, q: list[float], p: list[float], j: int, weight: float) -> None:
        """Child j is drawn from p, which the earlier ones have left; a p that is exhausted has no more children."""
        rule, rest, depth = self.spec.rule, self.spec.residual, len(at) + 1
        if j == self.counts[ranks] or not any(p):
            self.end(at, q, weight)
            return
        self.add_loss(at, q, p, weight)
        for x, px in enumerate(p):
            f = rule.plain_prob(q, p, x, depth)
            if f > 0:
                self.visit((*at, x), (*ranks, j), weight * px * f)
            if px > 0 and f < 1:
                left = after_rejection(rest, q, p, x, rule, depth)
                self.try_sampled(at, ranks, left, without(p, x), j + 1, weight * px * (1 - f))

    def add_loss(self, at: Path, q: list[float], p: list[float], weight: float) -> None:
        """A test of a token beyond the image decides nothing."""
        if len(self.prefix + at) < self.world.length:
            rule, depth = self.spec.rule, len(at) + 1
            self.outcomes.loss += weight * stage_loss(self.spec.residual, q, p, rule, depth)

    def end(self, at: Path, law: list[float], weight: float) -> None:
        for x, probability in enumerate(law):
            if weight * probability > 0:
                self.outcomes.committed[(*at, x)] += weight * probability


def block_step(world: World, prefix: Prefix, spec: MethodSpec) -> Outcomes:
    """Block verification of a chain drawn from p."""
    assert spec.block is not None
    step, length = Verification(world, spec, prefix, {}, {}), spec.tree.deepest
    for xs in product(range(world.vocab), repeat=length):
        ps = [world.p(prefix + xs[:i]) for i in range(length)]
        weight = math.prod(p[x] for p, x in zip(ps, xs, strict=True))
        if weight > 0:
            qs = [world.q(prefix + xs[:i]) for i in range(length + 1)]
            for probability, accepted, weights in spec.block(qs, ps, xs):
                step.end(xs[:accepted], normalise(weights, qs[accepted]), weight * probability)
    return step.outcomes
