"""Search for the fastest sizes of one kind of tree, or window: what to time, what to record, an
estimate per candidate.

``probes`` are timed for the cost model and ``recorders`` decode for the acceptance; each result
is computed and stored separately.  ``candidates`` turns them into shapes with an expected accepted
length.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from lanternbench.costs.forward_cost import Shape, StepCost
from lanternbench.engine.decode import SpeculativeDecoder, generate
from lanternbench.engine.plain import AdaptiveBounds
from lanternbench.engine.simulation import level_rates, reach
from lanternbench.engine.tree import Paths, StaticTree, chain, from_paths
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, method
from lanternbench.methods.trees.adaptive import TreeSize, adapt
from lanternbench.methods.trees.dynamic import Bounds
from lanternbench.models.target import Target
from lanternbench.settings import Sampling, Tune
from lanternbench.tune.accepted_lengths import (
    Floats,
    Record,
    RecordingTree,
    ScoredTree,
    best_trees,
    bounds,
    chain_lengths,
    child_table,
    expected_length,
    grown_lengths,
    record_chains,
    record_growth,
    recorded_steps,
    with_tree,
)

Options = dict[str, Any]
Probes = list[tuple[Options, Shape]]
Recorder = Callable[[int, str], Record]  # the number of a caption, and the caption
# of all captions, by the name of their recorder; none if acceptance is simulated
Records = Mapping[str, Record]
LEVELS = 8  # of the deepest drafts considered
RANKS = 8  # children of a node of a static tree
NODES = 64  # of the largest trees
WORTH = 3.0  # maximum cost of a tree's forward pass, in forward passes of one node
WIDTHS = (1, 2, 3, 4, 6, 10)  # children of a node of a dynamic tree
REPLAYED = 300  # steps of an adaptive tree
RANGES = ((0, 3), (0, 4), (0, 5), (0, 6), (1, 7), (0, 10))  # open intervals of its depth
WIDTH_RANGES = ((0, 2), (0, 3), (0, 4), (0, 5), (1, 9), (3, 14), (3, 40))
TOTALS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 59)
BETAS = (1.0, 0.6)
FANS = ((2, 1), (2, 2), (4, 3), (8, 3), (16, 3))  # static trees to time: branches, levels
# dynamic trees to time: levels, children per node, nodes
GROWN = ((1, 2, 3), (3, 1, 4), (3, 2, 6), (5, 2, 8), (3, 4, 16), (5, 4, 32), (3, 10, 60))


@dataclass(frozen=True)
class Candidate:
    """A shape, its expected acceptance and its step time."""

    options: Options  # that replace the method's defaults
    shape: Shape  # of the mean step
    reach: list[float]  # P(accepted ≥ i), i = 1 …
    step_s: float

    @property
    def tau(self) -> float:
        return 1.0 + sum(self.reach)

    @property
    def tokens_per_s(self) -> float:
        return self.tau / self.step_s


@dataclass
class TreeSearch:
    """One kind of tree, of one method on one target."""

    about: ClassVar[str]  # a phrase that names what is searched
    one_in: ClassVar[int] = 1  # the share of the prompts that is recorded
    target: Target
    config: Tune

    def probes(self) -> Probes:
        """Return the sizes to time, each with the shape of its step."""
        raise NotImplementedError

    def recorders(self, cost: StepCost) -> dict[str, Recorder]:
        """Return, by name, the functions that record the drafts of one caption."""
        raise NotImplementedError

    def candidates(self, cost: StepCost, records: Records) -> list[Candidate]:
        """Return the default sizes first, then all others considered."""
        raise NotImplementedError

    def acceptance(self, records: Records) -> list[list[float]] | None:
        """Return P [depth, rank] as in ``accepted_lengths``; None if ranks are not recorded."""
        return None

    def joined(self, records: list[Record]) -> Record:
        """Return the records of all captions together."""
        return {key: np.concatenate([record[key] for record in records]) for key in records[0]}

    def method(self, sizes: Options) -> Method:
        """Return the method with these sizes in place of its defaults."""
        options = self.config.options
        if "shape" in sizes or "depth" in sizes:  # each replaces the other
            options = {k: v for k, v in options.items() if k not in ("shape", "depth")}
        return method(self.config.method, **options | sizes)

    def decoder(self, sizes: Options) -> SpeculativeDecoder:
        return self.decoder_of(self.method(sizes))

    def decoder_of(self, method: Method) -> SpeculativeDecoder:
        return build(self.target, method, self.config.part(Sampling), self.rates)

    def own_tree(self) -> Any:
        """Return the options of the method's default tree."""
        method = self.method({}).resolve(self.target.options)
        return method.tree

    @cached_property
    def rates(self) -> list[float] | None:
        """P(level i is passed) to simulate: as configured, or matching the configured tokens with
        the default sizes; None if acceptance is recorded.
        """
        wanted = self.config.simulate_acceptance
        if wanted is None or isinstance(wanted, list):
            return wanted
        default = build(self.target, self.method({}), self.config.part(Sampling))
        depth = default.proposer.size.max_depth
        return [float(level_rates(wanted, depth)[depth])]

    def simulated(self, depth: int) -> list[float] | None:
        """Return P(accepted ≥ i) at those rates; None if acceptance is recorded."""
        if self.rates is None:
            return None
        return reach(self.rates, depth)[depth].tolist()

    def deepest(self, sizes: Iterable[Options]) -> int:
        """Return how many of these sizes, in order of depth, the method supports: Medusa drafts
        one level per head.  Raises UserError if it supports none.
        """
        for count, options in enumerate(sizes):
            try:
                self.decoder(options)
            except UserError:
                if count == 0:
                    raise
                return count
        return count + 1


def shape_of(static: StaticTree) -> Shape:
    levels = tuple(len(level.parents) for level in static.levels[1:])
    return Shape(static.tree.nodes, static.tree.max_depth, levels, static.is_chain)


def options_of(paths: Paths) -> Options:
    return {"shape": [list(path) for path in paths]}


def largest(cost: StepCost) -> int:
    """Return the size of the largest tree worth verifying: a forward pass of more nodes costs over
    ``WORTH`` forward passes of one node.
    """
    limit = WORTH * cost.forward(1)
    sizes = [n for n in range(2, NODES + 1) if cost.forward(n) <= limit]
    return max(sizes, default=2)


class ShapeSearch(TreeSearch):
    """Static trees, by dynamic programming over the acceptance of depths and ranks; chains by
    their own acceptance.
    """

    about = "static trees"
    ranks = RANKS

    def __init__(self, target: Target, config: Tune):
        super().__init__(target, config)
        self.levels = self.deepest({"shape": f"chain-{d}"} for d in range(1, LEVELS + 1))

    def probes(self) -> Probes:
        depths = dict.fromkeys(min(depth, self.levels) for depth in (1, 3, 5, 7))
        probes: Probes = [({"shape": f"chain-{d}"}, shape_of(chain(d))) for d in depths]
        if self.ranks == 1:
            return probes
        for branches, longest in FANS:
            lengths = range(min(longest, self.levels))
            paths = tuple((rank, *(0,) * n) for rank, n in product(range(branches), lengths))
            probes.append((options_of(paths), shape_of(from_paths(paths))))
        return probes

    def recorders(self, cost: StepCost) -> dict[str, Recorder]:
        return {"chain": self.record}

    def record(self, number: int, caption: str) -> Record:
        decoder = self.decoder({})
        samples = decoder.method.proposal.samples
        tree = RecordingTree.of(chain(self.levels), samples, self.target.device)
        decoder = with_tree(decoder, tree)
        steps = recorded_steps(decoder, caption, str(number), self.config.seed)
        return record_chains(decoder, tree, self.ranks, steps, seed=number)

    def joined(self, records: list[Record]) -> Record:
        return {key: np.sum([record[key] for record in records], axis=0) for key in records[0]}

    def passed(self, static: StaticTree, records: Records) -> list[float]:
        """Return P(accepted ≥ i) of a tree."""
        depth = static.tree.max_depth
        simulated = self.simulated(depth)
        if simulated is not None:
            return simulated
        record = records["chain"]
        if static.is_chain and depth <= self.levels:
            return chain_lengths(record["reached"], float(record["steps"]), depth).tolist()
        table = child_table(record["children"], min(depth, self.levels))
        deeper = (0, depth - len(table))
        wider = (0, max(0, static.tree.width - table.shape[1]))
        table = np.pad(table, (deeper, (0, 0)), "edge")  # deeper levels repeat the last
        table = np.pad(table, ((0, 0), wider))
        passed = []
        for level in range(1, depth + 1):
            of_level = [path for path in static.paths if len(path) == level]
            passed.append(expected_length(of_level, table))
        return passed

    def candidates(self, cost: StepCost, records: Records) -> list[Candidate]:
        trees: list[tuple[Options, StaticTree]] = [({}, self.own_tree().static)]
        trees += [({"shape": f"chain-{d}"}, chain(d)) for d in range(1, self.levels + 1)]
        for static in self.branching(cost, records):
            trees.append((options_of(static.paths), static))
        candidates = []
        for options, static in trees:
            shape = shape_of(static)
            passed = self.passed(static, records)
            candidates.append(Candidate(options, shape, passed, cost.step(shape)))
        return candidates

    def branching(self, cost: StepCost, records: Records) -> Iterable[StaticTree]:
        """Yield the best trees of every depth and size that are no chains."""
        if not records or self.ranks == 1:
            return
        for depth in range(1, self.levels + 1):
            table = child_table(records["chain"]["children"], depth)
            for paths in best_trees(table, largest(cost) - 1):
                static = from_paths(paths)
                if not static.is_chain and static.tree.max_depth == depth:
                    yield static

    def acceptance(self, records: Records) -> list[list[float]] | None:
        if not records or self.ranks == 1:
            return None
        return child_table(records["chain"]["children"], self.levels).tolist()


class LengthSearch(ShapeSearch):
    """Chains only."""

    about = "chains"
    ranks = 1


class GrowthSearch(TreeSearch):
    """Dynamic trees: nodes, levels and children per node, from recorded large trees."""

    about = "dynamic trees (nodes, levels, children a node)"
    one_in = 2

    def __init__(self, target: Target, config: Tune):
        super().__init__(target, config)
        self.levels = self.deepest(self.sizes(Bounds(d, 1, d + 1)) for d in range(1, LEVELS + 1))

    def sizes(self, tree: Bounds) -> Options:
        return {"depth": tree.depth, "draft_top_k": tree.top_k, "total_nodes": tree.total}

    def probes(self) -> Probes:
        trees = [Bounds(min(depth, self.levels), top_k, nodes) for depth, top_k, nodes in GROWN]
        return [(self.sizes(tree), self.shape(tree)) for tree in trees]

    def shape(self, tree: Bounds) -> Shape:
        levels = (tree.top_k,) * (tree.depth - 1)
        return Shape(bounds(*tree).total, tree.depth, levels, False)

    def recorders(self, cost: StepCost) -> dict[str, Recorder]:
        nodes = largest(cost)
        # most nodes of wider trees would be dropped
        widths = [k for k in WIDTHS if k == 1 or k * k <= 2 * nodes]
        return {f"width-{k}": partial(self.record, bounds(self.levels, k, nodes)) for k in widths}

    def record(self, size: Bounds, number: int, caption: str) -> Record:
        tree = ScoredTree.of(size)
        decoder = with_tree(self.decoder({}), tree)
        steps = recorded_steps(decoder, caption, str(number), self.config.seed)
        return record_growth(decoder, tree, steps, seed=number)

    def passed(self, records: Records, tree: Bounds) -> Floats:
        """Return P(accepted ≥ i) in each recorded step [S, depth], or the simulated one
        [1, depth].
        """
        simulated = self.simulated(min(tree.depth, tree.total - 1))
        if simulated is not None:
            return np.array([simulated])
        return grown_lengths(by_width(records), tree)

    def candidates(self, cost: StepCost, records: Records) -> list[Candidate]:
        default = self.own_tree().bounds
        widths = list(by_width(records))
        trees: list[tuple[Options, Bounds]] = [({}, default)]
        for k, depth in product(widths or (1, default.top_k), range(1, self.levels + 1)):
            most = min(largest(cost), bounds(depth, k, NODES).total)
            for nodes in range(depth + 1, most + 1):
                is_same_but_dearer = any(nodes - 1 <= width < k for width in widths)
                if not is_same_but_dearer:
                    tree = Bounds(depth, k, nodes)
                    trees.append((self.sizes(tree), tree))
        candidates = []
        for options, tree in trees:
            shape = self.shape(tree)
            passed = self.passed(records, tree).mean(0).tolist()
            candidates.append(Candidate(options, shape, passed, cost.step(shape)))
        return candidates


def by_width(records: Records) -> dict[int, Record]:
    return {int(name.removeprefix("width-")): record for name, record in records.items()}


class BoundsSearch(GrowthSearch):
    """Adaptive trees (ADT-Tree): ranges of depth and width, nodes, and the acceptance level that
    deepens the tree.

    Their rule is replayed over recorded dynamic trees, step by step.
    """

    about = "adaptive trees (ranges of depth and width, nodes, β)"

    def sizes(self, tree: Bounds) -> Options:
        """Return the sizes of a tree that does not adapt, for probes."""
        ranges = {
            "depth_range": [tree.depth - 1, tree.depth + 1],
            "width_range": [tree.top_k - 1, tree.top_k + 1],
        }
        return super().sizes(tree) | ranges

    def candidates(self, cost: StepCost, records: Records) -> list[Candidate]:
        default = self.own_tree()
        initial = (default.bounds.depth, default.bounds.top_k)
        step_s = cache(cost.step)
        passed = cache(partial(self.passed, records))
        candidates: list[Candidate] = []

        def add(options: Options, within: AdaptiveBounds, nodes: int) -> None:
            sizes, accepted = replayed(initial, within, lambda size: passed(Bounds(*size, nodes)))
            shapes = [self.shape(Bounds(*size, nodes)) for size in sizes]
            reached = [float(np.mean(accepted >= i)) for i in range(1, within.d[1])]
            seconds = fmean(step_s(shape) for shape in shapes)
            candidates.append(Candidate(options, mean_shape(shapes), reached, seconds))

        add({}, default.within, default.bounds.total)
        most = largest(cost)
        for d, k, nodes, beta in product(RANGES, WIDTH_RANGES, TOTALS, BETAS):
            if nodes > most or d[1] - 1 > max(self.levels, 2):
                continue
            step = max(1, (k[1] - k[0]) // 3)
            within = AdaptiveBounds(beta, 1, step, d, k)
            options = {
                "depth_range": list(d),
                "width_range": list(k),
                "total_nodes": nodes,
                "beta": beta,
                "l_d": within.l_d,
                "l_k": within.l_k,
            }
            add(options, within, nodes)
        return candidates


def mean_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the mean of the nodes and depths of trees, with the levels of the deepest."""
    nodes = fmean(shape.nodes for shape in shapes)
    depth = fmean(shape.depth for shape in shapes)
    deepest = max(shapes, key=lambda shape: shape.depth)
    return Shape(round(nodes), round(depth), deepest.levels, False)


def replayed(
    size: TreeSize, within: AdaptiveBounds, passed: Callable[[TreeSize], Floats]
) -> tuple[list[TreeSize], Floats]:
    """Return the sizes of ``REPLAYED`` steps and the tokens that they accept: the acceptance of a
    step determines the size of the next.

    ``passed``: P(accepted ≥ i) in each recorded step, by size.
    """
    rng = np.random.default_rng(0)
    alpha: float | None = None
    sizes, accepted = [], []
    for i in range(REPLAYED):
        size = adapt(size, alpha, within)
        curves = passed(size)
        curve = curves[i * len(curves) // REPLAYED]
        length = int((rng.random() < curve).sum())  # P(accepted ≥ i) falls with i: one uniform
        alpha = (length + 1) / size[0]
        sizes.append(size)
        accepted.append(length)
    return sizes, np.array(accepted)


class OptionSearch(TreeSearch):
    """Sizes that a component lists in ``tuned``: one option at a time differs from the defaults."""

    about = "the sizes of windows"

    def __init__(self, target: Target, config: Tune):
        super().__init__(target, config)
        self.defaults: Options = {}
        changes: list[Options] = [{}]
        for part in self.method({}).parts:
            for name, values in part.tuned.items():
                self.defaults[name] = getattr(part, name)
                changes += [{name: value} for value in values if value != self.defaults[name]]
        self.decoder(self.defaults)  # raises UserError for what is missing
        self.sizes_to_try: Probes = []
        for change in changes:
            with suppress(UserError):  # incompatible sizes
                options = self.defaults | change
                size = self.decoder(options).proposer.size
                is_chain = size.nodes == size.max_depth + 1
                shape = Shape(size.nodes, size.max_depth, (), is_chain)
                self.sizes_to_try.append((options, shape))

    def probes(self) -> Probes:
        return self.sizes_to_try

    def recorders(self, cost: StepCost) -> dict[str, Recorder]:
        return {str(i): partial(self.record, sizes) for i, (sizes, _) in enumerate(self.probes())}

    def record(self, sizes: Options, number: int, caption: str) -> Record:
        decode = generate(self.decoder(sizes), [caption], [str(number)], self.config.seed)[0]
        whole = decode.accept_lengths[:-1] or decode.accept_lengths  # the image ends in the last
        return {"accepted": np.array(whole, np.float64)}

    def candidates(self, cost: StepCost, records: Records) -> list[Candidate]:
        candidates = []
        for number, (sizes, shape) in enumerate(self.probes()):
            passed = self.simulated(shape.depth)
            if passed is None:
                accepted = records[str(number)]["accepted"]
                passed = [float(np.mean(accepted > i)) for i in range(1, shape.depth + 1)]
            changed = {} if sizes == self.defaults else sizes
            candidates.append(Candidate(changed, shape, passed, cost.step(shape)))
        return candidates
