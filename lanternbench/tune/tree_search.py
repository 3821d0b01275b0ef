"""Search for the fastest sizes of one kind of tree, or window: what to time, what to record, an
estimate per candidate.

``probes`` are timed for the cost model and ``recordings`` decoded for the acceptance; each result
is computed and stored separately.  ``candidates`` turns them into shapes with an expected accepted
length.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
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
from lanternbench.engine.tree import StaticTree, chain, from_paths
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, method
from lanternbench.methods.trees.adaptive import adapt
from lanternbench.models.target import Target
from lanternbench.settings import Sampling, Tune
from lanternbench.tune import accepted_lengths as drafts
from lanternbench.tune.accepted_lengths import (
    Floats,
    Record,
    best_trees,
    bounds,
    child_table,
    expected_length,
)

Options = dict[str, Any]
Probes = list[tuple[Options, Shape]]
LEVELS = 8  # of the deepest drafts considered
RANKS = 8  # children of a node of a static tree
NODES = 64  # of the largest trees
WORTH = 3.0  # maximum cost of a tree's forward, in forwards of one node
WIDTHS = (1, 2, 3, 4, 6, 10)  # children of a node of a dynamic tree
REPLAYED = 300  # steps of an adaptive tree
RANGES = ((0, 3), (0, 4), (0, 5), (0, 6), (1, 7), (0, 10))  # open intervals of its depth
WIDTH_RANGES = ((0, 2), (0, 3), (0, 4), (0, 5), (1, 9), (3, 14), (3, 40))
TOTALS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 59)
BETAS = (1.0, 0.6)


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


class TreeSearch:
    """One kind of tree, of one method on one target."""

    about: ClassVar[str]  # a phrase that names what is searched
    one_in: ClassVar[int] = 1  # which share of the prompts is recorded
    # one array of those of all captions
    combine: ClassVar[Callable[..., Floats]] = staticmethod(np.concatenate)

    def __init__(self, target: Target, config: Tune):
        self.target, self.config = target, config

    def probes(self) -> Probes:
        """Sizes to time, each with the shape of its step."""
        raise NotImplementedError

    def drafting(self, cost: StepCost) -> dict[str, Any]:
        """What drafts are recorded with, by name."""
        raise NotImplementedError

    def record(self, drafting: Any, number: int, caption: str) -> Record:
        """The drafts of one caption."""
        raise NotImplementedError

    def recordings(self, cost: StepCost, captions: list[str]) -> dict[str, Callable[[], Record]]:
        """The functions that compute the records, by record name: none where acceptance is
        simulated.
        """
        if self.config.simulate_acceptance is not None:
            return {}
        few = list(enumerate(captions[: max(1, len(captions) // self.one_in)]))
        each = self.drafting(cost).items()
        return {
            f"{name}-{i}": partial(self.record, with_, i, caption)
            for name, with_ in each
            for i, caption in few
        }

    def combined(self, records: Mapping[str, Record]) -> dict[str, Record]:
        """The records of all captions together, by the name of what they were drafted with."""
        groups: dict[str, list[Record]] = defaultdict(list)
        for name, record in records.items():
            groups[name.rpartition("-")[0]].append(record)
        return {
            name: {key: self.combine([r[key] for r in each]) for key in each[0]}
            for name, each in groups.items()
        }

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        """The default sizes first, then all others considered, from ``combined`` records, if any."""
        raise NotImplementedError

    def acceptance(self, records: Mapping[str, Record]) -> list[list[float]] | None:
        """P [depth, rank] as in ``accepted_lengths``; None where ranks are not recorded."""
        return None

    def method(self, options: Options | None = None) -> Method:
        """The method with these sizes in place of its defaults."""
        sizes, either = options or {}, {"shape", "depth"}
        fixed = {
            k: v
            for k, v in self.config.options.items()
            if k not in either or not either & sizes.keys()
        }
        return method(self.config.method, **fixed | sizes)

    def own_tree(self) -> Any:
        """The method's default tree policy, prepared."""
        method = self.method().resolve(self.target.options)
        return method.tree.prepare(self.target, method.proposal)

    def decoder(
        self, options: Options | None = None, method: Method | None = None
    ) -> SpeculativeDecoder:
        """The decoder of ``method``, by default the one with these sizes."""
        c, chosen = self.config, method or self.method(options)
        return build(self.target, chosen, c.part(Sampling), self.rates)

    @cached_property
    def rates(self) -> list[float] | None:
        """P(level i is passed) to simulate: as configured, or matching the configured tokens with
        the default sizes.
        """
        wanted = self.config.simulate_acceptance
        if wanted is None or isinstance(wanted, list):
            return wanted
        depth = build(self.target, self.method(), self.config.part(Sampling)).proposer.max_depth
        return [float(level_rates(wanted, depth)[depth])]

    def simulated(self, depth: int) -> list[float]:
        """P(accepted ≥ i) at those rates."""
        assert self.rates is not None
        return reach(self.rates, depth)[depth].tolist()

    def deepest(self, sizes: Iterable[Options]) -> int:
        """How many of these sizes, in order of depth, the method supports: Medusa drafts one level
        a head.  Raises UserError where it supports none."""
        for count, options in enumerate(sizes):
            try:
                self.decoder(options)
            except UserError:
                if not count:
                    raise
                return count
        return count + 1


def shape_of(static: StaticTree) -> Shape:
    levels = tuple(len(level.parents) for level in static.levels[1:])
    return Shape(static.tree.nodes, static.tree.max_depth, levels, static.is_chain)


def largest(cost: StepCost) -> int:
    """The largest tree worth verifying: a forward of more nodes costs over ``WORTH`` forwards of
    one node.
    """
    one = cost.forward(1)
    return max([n for n in range(2, NODES + 1) if cost.forward(n) <= WORTH * one], default=2)


class ShapeSearch(TreeSearch):
    """Static trees, by dynamic programming over the acceptance of depths and ranks; chains by
    their own acceptance.
    """

    about = "static trees"
    combine = staticmethod(partial(np.sum, axis=0))
    ranks = RANKS

    def __init__(self, target: Target, config: Tune):
        super().__init__(target, config)
        self.levels = self.deepest({"shape": f"chain-{d}"} for d in range(1, LEVELS + 1))

    def probes(self) -> Probes:
        depths = dict.fromkeys(min(d, self.levels) for d in (1, 3, 5, 7))
        probes: Probes = [({"shape": f"chain-{d}"}, shape_of(chain(d))) for d in depths]
        for blades, longest in ((2, 1), (2, 2), (4, 3), (8, 3), (16, 3)) if self.ranks > 1 else ():
            paths = [
                (i, *(0,) * d) for i in range(blades) for d in range(min(longest, self.levels))
            ]
            probes.append(
                ({"shape": [list(p) for p in paths]}, shape_of(from_paths(tuple(paths))))
            )
        return probes

    def drafting(self, cost: StepCost) -> dict[str, Any]:
        return {"chain": chain(self.levels)}

    def record(self, drafting: Any, number: int, caption: str) -> Record:
        decoder = self.decoder()
        tree = drafts.RecordingTree().drafting(
            drafting, decoder.method.proposal.samples, self.target.device
        )
        decoder = drafts.with_tree_policy(decoder, tree)
        steps = drafts.recorded_steps(decoder, caption, str(number), self.config.seed)
        return drafts.record_chains(decoder, tree, self.ranks, steps, seed=number)

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        record = records.get("chain")

        def passed(static: StaticTree) -> list[float]:
            depth = static.tree.max_depth
            if record is None:
                return self.simulated(depth)
            if static.is_chain and depth <= self.levels:
                return drafts.chain_lengths(
                    record["reached"], float(record["steps"]), depth
                ).tolist()
            # deeper levels repeat the last
            table = child_table(record["children"], min(depth, self.levels))
            wider = max(0, static.tree.width - table.shape[1])
            table = np.pad(
                np.pad(table, ((0, depth - len(table)), (0, 0)), "edge"), ((0, 0), (0, wider))
            )
            return [
                expected_length([p for p in static.paths if len(p) == d], table)
                for d in range(1, depth + 1)
            ]

        def candidate(static: StaticTree, options: Options) -> Candidate:
            shape = shape_of(static)
            return Candidate(options, shape, passed(static), cost.step(shape))

        candidates = [candidate(self.own_tree().static, {})]
        candidates += [
            candidate(chain(d), {"shape": f"chain-{d}"}) for d in range(1, self.levels + 1)
        ]
        if record is not None and self.ranks > 1:
            for depth in range(1, self.levels + 1):
                for paths in best_trees(child_table(record["children"], depth), largest(cost) - 1):
                    static = from_paths(paths)
                    if not static.is_chain and static.tree.max_depth == depth:
                        candidates.append(
                            candidate(static, {"shape": [list(path) for path in paths]})
                        )
        return candidates

    def acceptance(self, records: Mapping[str, Record]) -> list[list[float]] | None:
        return (
            child_table(records["chain"]["children"], self.levels).tolist()
            if records and self.ranks > 1
            else None
        )


class LengthSearch(ShapeSearch):
    """Chains only."""

    about = "chains"
    ranks = 1


class GrowthSearch(TreeSearch):
    """Dynamic trees: nodes, levels and children a node, from recorded large trees."""

    about = "dynamic trees (nodes, levels, children a node)"
    one_in = 2

    def __init__(self, target: Target, config: Tune):
        super().__init__(target, config)
        self.levels = self.deepest(self.sizes(d, 1, d + 1) for d in range(1, LEVELS + 1))

    def sizes(self, depth: int, top_k: int, nodes: int) -> Options:
        return {"depth": depth, "draft_top_k": top_k, "total_nodes": nodes}

    def probes(self) -> Probes:
        trees = ((1, 2, 3), (3, 1, 4), (3, 2, 6), (5, 2, 8), (3, 4, 16), (5, 4, 32), (3, 10, 60))
        sizes = [(min(depth, self.levels), k, nodes) for depth, k, nodes in trees]
        return [(self.sizes(*size), self.shape(*size)) for size in sizes]

    def shape(self, depth: int, top_k: int, nodes: int) -> Shape:
        return Shape(bounds(depth, top_k, nodes).total, depth, (top_k,) * (depth - 1), False)

    def drafting(self, cost: StepCost) -> dict[str, Any]:
        """Trees by width; of wider ones than these most nodes would be dropped."""
        nodes = largest(cost)
        return {
            f"width-{k}": bounds(self.levels, k, nodes)
            for k in WIDTHS
            if k == 1 or k * k <= 2 * nodes
        }

    def record(self, drafting: Any, number: int, caption: str) -> Record:
        tree = drafts.ScoredTree().growing(drafting)
        decoder = drafts.with_tree_policy(self.decoder(), tree)
        steps = drafts.recorded_steps(decoder, caption, str(number), self.config.seed)
        return drafts.record_growth(decoder, tree, steps, seed=number)

    def passed(self, records: Mapping[str, Record], top_k: int, nodes: int, depth: int) -> Floats:
        """P(accepted ≥ i) in each recorded step [S, depth], or the simulated one [1, depth]."""
        if not records:
            return np.array([self.simulated(min(depth, nodes - 1))])
        widths = {
            int(name.removeprefix("width-")): (r["seen"], r["level"])
            for name, r in records.items()
        }
        return drafts.grown_lengths(widths, top_k, nodes, depth)

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        default, widths = (
            self.own_tree().bounds,
            [int(name.removeprefix("width-")) for name in records],
        )

        def candidate(depth: int, top_k: int, nodes: int, options: Options) -> Candidate:
            shape = self.shape(depth, top_k, nodes)
            passed = self.passed(records, top_k, nodes, depth).mean(0).tolist()
            return Candidate(options, shape, passed, cost.step(shape))

        candidates = [candidate(default.depth, default.top_k, default.total, {})]
        for k, depth in product(widths or (1, default.top_k), range(1, self.levels + 1)):
            for nodes in range(depth + 1, min(largest(cost), bounds(depth, k, NODES).total) + 1):
                # the same tree at a lower cost
                if not any(nodes - 1 <= other < k for other in widths):
                    candidates.append(candidate(depth, k, nodes, self.sizes(depth, k, nodes)))
        return candidates


class BoundsSearch(GrowthSearch):
    """Adaptive trees (ADT-Tree): ranges of depth and width, nodes, and the acceptance level that
    deepens the tree.

    Their rule is replayed over recorded dynamic trees, step by step.
    """

    about = "adaptive trees (ranges of depth and width, nodes, β)"

    def sizes(self, depth: int, top_k: int, nodes: int) -> Options:
        """Sizes of a tree that does not adapt, for probes."""
        ranges = {"depth_range": [depth - 1, depth + 1], "width_range": [top_k - 1, top_k + 1]}
        return super().sizes(depth, top_k, nodes) | ranges

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        default, step_s = self.own_tree(), cache(cost.step)
        passed = cache(lambda depth, width, nodes: self.passed(records, width, nodes, depth))

        def candidate(within: AdaptiveBounds, nodes: int, options: Options) -> Candidate:
            """The mean step of a replay, in which the acceptance of a step determines the size of
            the next.
            """
            rng = np.random.default_rng(0)
            alpha: float | None = None
            size = (default.bounds.depth, default.bounds.top_k)
            shapes, accepted = [], []
            for i in range(REPLAYED):
                depth, width = size = adapt(size, alpha, within)
                shapes.append(self.shape(depth, width, nodes))
                curves = passed(depth, width, nodes)
                # P(accepted ≥ i) falls with i: one uniform
                accepted.append(int((rng.random() < curves[i * len(curves) // REPLAYED]).sum()))
                alpha = (accepted[-1] + 1) / depth
            nodes, depth = (
                round(fmean(getattr(s, name) for s in shapes)) for name in ("nodes", "depth")
            )
            mean = Shape(nodes, depth, max(shapes, key=lambda s: s.depth).levels, False)
            reached = [fmean(n >= i for n in accepted) for i in range(1, within.d[1])]
            return Candidate(options, mean, reached, fmean(map(step_s, shapes)))

        candidates, most = [candidate(default.within, default.nodes, {})], largest(cost)
        for d, k, nodes, beta in product(RANGES, WIDTH_RANGES, TOTALS, BETAS):
            if nodes <= most and d[1] - 1 <= max(self.levels, 2):
                within = AdaptiveBounds(beta, 1, max(1, (k[1] - k[0]) // 3), d, k)
                options = {
                    "depth_range": list(d),
                    "width_range": list(k),
                    "total_nodes": nodes,
                    "beta": beta,
                }
                candidates.append(
                    candidate(within, nodes, options | {"l_d": within.l_d, "l_k": within.l_k})
                )
        return candidates


class OptionSearch(TreeSearch):
    """Sizes that a component lists in ``tuned``: one option at a time differs from the defaults."""

    about = "the sizes of windows"

    def __init__(self, target: Target, config: Tune):
        super().__init__(target, config)
        method = self.method()
        parts = (method.proposal, *(() if method.proposal.tree_is_own else (method.tree,)))
        tuned = {name: values for part in parts for name, values in part.tuned.items()}
        self.defaults: Options = {
            name: getattr(part, name) for part in parts for name in part.tuned
        }
        self.decoder(self.defaults)  # raises UserError for what is missing
        self.sizes_to_try: Probes = []
        others = [
            {name: value}
            for name, values in tuned.items()
            for value in values
            if value != self.defaults[name]
        ]
        for options in (self.defaults | other for other in ({}, *others)):
            with suppress(UserError):  # incompatible sizes
                p = self.decoder(options).proposer
                self.sizes_to_try.append(
                    (options, Shape(p.nodes, p.max_depth, (), p.nodes == p.max_depth + 1))
                )

    def probes(self) -> Probes:
        return self.sizes_to_try

    def drafting(self, cost: StepCost) -> dict[str, Any]:
        return {str(number): options for number, (options, _) in enumerate(self.sizes_to_try)}

    def record(self, drafting: Any, number: int, caption: str) -> Record:
        decode = generate(self.decoder(drafting), [caption], [str(number)], self.config.seed)[0]
        return {
            "accepted": np.array(decode.accept_lengths[:-1] or decode.accept_lengths, np.float64)
        }

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        candidates = []
        for number, (options, shape) in enumerate(self.sizes_to_try):
            accepted, levels = (
                records.get(str(number), {}).get("accepted"),
                range(1, shape.depth + 1),
            )
            passed = (
                self.simulated(shape.depth)
                if accepted is None
                else [float((accepted > i).mean()) for i in levels]
            )
            candidates.append(
                Candidate(
                    {} if options == self.defaults else options, shape, passed, cost.step(shape)
                )
            )
        return candidates
