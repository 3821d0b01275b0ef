"""Search for the fastest tree of one kind: the shapes to time, the drafts to record, and an estimate per candidate.

``probes`` are timed for the cost model and ``recordings`` decoded for the acceptance; each result is computed and
stored separately.  ``candidates`` turns them into shapes with an expected accepted length.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from lanternbench.costs.forward_cost import Shape, StepCost
from lanternbench.engine.decode import SpeculativeDecoder, generate
from lanternbench.engine.simulation import level_rates, reach
from lanternbench.engine.tree import Paths, StaticTree, chain, from_paths
from lanternbench.errors import UserError
from lanternbench.experiment.config import Decoding
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, method
from lanternbench.methods.trees.static import static_tree
from lanternbench.models.target import Target
from lanternbench.tune import recorded_drafts as drafts
from lanternbench.tune.best_tree import best_trees, expected_length
from lanternbench.tune.recorded_drafts import Floats, bounds, child_table

Options = dict[str, Any]
Probes = list[tuple[Options, Shape]]
Record = Mapping[str, Floats]  # the arrays of one recording
Recordings = dict[str, Callable[[], Record]]
LEVELS = 8  # of the deepest drafts considered
RANKS = 8  # children of a node of a static tree
NODES = 64  # of the largest trees
WORTH = 3.0  # maximum cost of a tree's forward, in forwards of one node
WIDTHS = (1, 2, 3, 4, 6, 10)  # children of a node of a dynamic tree


class Tune(Decoding):
    """Everything but the machine that the result of a search depends on."""

    method: str
    options: Options = Field({})
    num_prompts: int = Field(12, ge=1, le=10**9, description="Prompts that are measured.")
    recorded: int = Field(4, ge=1, le=10**9, description="Prompts whose drafts are recorded for the acceptance.")
    few: int = Field(3, ge=1, le=6, description="How many of the best expected sizes are measured.")


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

    def __init__(self, target: Target, config: Tune):
        self.target, self.config = target, config

    def probes(self) -> Probes:
        """Sizes to time, each with the shape of its step."""
        raise NotImplementedError

    def recordings(self, cost: StepCost, captions: list[str]) -> Recordings:
        """The functions that compute the records, by record name."""
        raise NotImplementedError

    def wanted(self, cost: StepCost, captions: list[str]) -> Recordings:
        """The recordings: none where acceptance is simulated."""
        return self.recordings(cost, captions) if self.config.simulate_acceptance is None else {}

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        """The default sizes first, then all others considered; ``records`` is empty where acceptance is simulated."""
        raise NotImplementedError

    def acceptance(self, records: Mapping[str, Record]) -> list[list[float]] | None:
        """P [depth, rank] as in ``best_tree``; None where ranks are not recorded."""
        return None

    def method(self, options: Options | None = None) -> Method:
        """The method with these sizes in place of its defaults."""
        sizes, either = options or {}, {"shape", "depth"}
        replaced = either if either & sizes.keys() else set()
        fixed = {k: v for k, v in self.config.options.items() if k not in replaced}
        return method(self.config.method, **fixed | sizes)

    def own_tree(self) -> Any:
        """The method's default tree policy, prepared."""
        method = self.method().resolve(self.target.options)
        return method.tree.prepare(self.target, method.proposal)

    def decoder(self, options: Options | None = None, method: Method | None = None) -> SpeculativeDecoder:
        """The decoder of ``method``, by default the one with these sizes; simulated acceptance uses ``rates``."""
        c = self.config
        decoder = build(self.target, method or self.method(options), c.temperature, guidance=c.guidance)
        if c.simulate_acceptance is None or decoder.proposer.max_depth == 0:
            return decoder
        return replace(decoder, rates=reach(self.rates, decoder.proposer.max_depth).to(self.target.device))

    @cached_property
    def rates(self) -> list[float]:
        """P(level i is passed) to simulate: as configured, or matching the configured tokens with the default sizes."""
        wanted = self.config.simulate_acceptance
        if isinstance(wanted, list):
            return wanted
        assert wanted is not None
        depth = build(self.target, self.method(), self.config.temperature).proposer.max_depth
        return [float(level_rates(wanted, depth)[depth])]

    def simulated(self, depth: int) -> list[float]:
        """P(accepted ≥ i) at those rates."""
        return reach(self.rates, depth)[depth].tolist()

    def deepest(self, sizes: Iterable[Options]) -> int:
        """How many of these sizes, in order of depth, the method supports: Medusa drafts one level a head.

        Raises UserError where it supports none.
        """
        count = 0
        for options in sizes:
            try:
                self.decoder(options)
            except UserError:
                if not count:
                    raise
                break
            count += 1
        return count


def shape_of(static: StaticTree) -> Shape:
    levels = tuple(len(level.parents) for level in static.levels[1:])
    return Shape(static.tree.nodes, static.tree.max_depth, levels, static.is_chain)


def largest(cost: StepCost) -> int:
    """The largest tree worth verifying: a forward of more nodes costs over ``WORTH`` forwards of one node."""
    one = cost.forward(1)
    return max([n for n in range(2, NODES + 1) if cost.forward(n) <= WORTH * one], default=2)


def summed(records: Mapping[str, Record], name: str) -> Floats:
    return np.sum([record[name] for record in records.values()], 0)


class ShapeSearch(TreeSearch):
    """Static trees, by dynamic programming over the acceptance of depths and ranks; chains by their own acceptance."""

    about = "static trees"
    ranks = RANKS

    def __init__(self, target: Target, config: Tune):
        super().__init__(target, config)
        self.levels = self.deepest({"shape": f"chain-{d}"} for d in range(1, LEVELS + 1))

    def probes(self) -> Probes:
        probes: Probes = []
        for d in dict.fromkeys(min(d, self.levels) for d in (1, 3, 5, 7)):
            probes.append(({"shape": f"chain-{d}"}, shape_of(chain(d))))
        for blades, longest in ((2, 1), (2, 2), (4, 3), (8, 3), (16, 3)) if self.ranks > 1 else ():
            paths = [(i, *(0,) * d) for i in range(blades) for d in range(min(longest, self.levels))]
            probes.append(({"shape": [list(p) for p in paths]}, shape_of(from_paths(tuple(paths)))))
        return probes

    def recordings(self, cost: StepCost, captions: list[str]) -> Recordings:
        return {f"chain-{i}": partial(self.record, i, caption) for i, caption in enumerate(captions)}

    def record(self, number: int, caption: str) -> Record:
        default = self.decoder()
        shape, sampled = chain(self.levels), default.method.proposal.samples
        tree = drafts.RecordingTree().drafting(shape, sampled, self.target.device)
        decoder = drafts.with_tree_policy(default, tree)
        record = drafts.ChainRecord(decoder, tree, self.ranks, seed=number)
        for result in drafts.recorded_steps(decoder, caption, str(number), self.config.seed):
            record.add(result)
        return {"reached": record.reached, "children": record.children, "steps": np.array(float(record.steps))}

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        reached, children, steps = (summed(records, name) for name in ("reached", "children", "steps"))

        def passed(paths: Paths, depth: int, is_chain: bool) -> list[float]:
            if not records:
                return self.simulated(depth)
            if is_chain and depth <= self.levels:
                return drafts.chain_lengths(reached, float(steps), depth).tolist()
            table = child_table(children, min(depth, self.levels))  # deeper levels repeat the last
            wider = max(0, 1 + max(map(max, paths)) - table.shape[1])
            table = np.pad(np.pad(table, ((0, depth - len(table)), (0, 0)), "edge"), ((0, 0), (0, wider)))
            return [expected_length([p for p in paths if len(p) == d], table) for d in range(1, depth + 1)]

        def candidate(paths: Paths, options: Options) -> Candidate:
            static = from_paths(paths)
            shape = shape_of(static)
            return Candidate(options, shape, passed(paths, shape.depth, static.is_chain), cost.step(shape))

        tree: Any = self.method().resolve(self.target.options).tree
        candidates = [candidate(_paths(static_tree(tree.shape)), {})]
        for d in range(1, self.levels + 1):
            candidates.append(candidate(tuple((0,) * i for i in range(1, d + 1)), {"shape": f"chain-{d}"}))
        for depth in range(1, self.levels + 1) if records and self.ranks > 1 else ():
            for paths in best_trees(child_table(children, depth), largest(cost) - 1):
                if any(rank for path in paths for rank in path) and max(map(len, paths)) == depth:
                    candidates.append(candidate(paths, {"shape": [list(path) for path in paths]}))
        return candidates

    def acceptance(self, records: Mapping[str, Record]) -> list[list[float]] | None:
        if not records or self.ranks == 1:
            return None
        return child_table(summed(records, "children"), self.levels).tolist()


def _paths(static: StaticTree) -> Paths:
    """The child paths of a tree's nodes below the root."""
    path: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(static.tree.nodes):
        for rank, child in enumerate(static.tree.children[0, node].tolist()):
            if child >= 0:
                path[child] = (*path[node], rank)
    return tuple(path[node] for node in range(1, static.tree.nodes))


class LengthSearch(ShapeSearch):
    """Chains only."""

    about = "chains"
    ranks = 1


class GrowthSearch(TreeSearch):
    """Dynamic trees: nodes, levels and children a node, from recorded large trees."""

    about = "dynamic trees (nodes, levels, children a node)"

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

    def recordings(self, cost: StepCost, captions: list[str]) -> Recordings:
        nodes = largest(cost)
        widths = [k for k in WIDTHS if k == 1 or k * k <= 2 * nodes]  # of wider trees most nodes would be dropped
        few = captions[: max(1, len(captions) // 2)]
        return {
            f"width-{k}-{i}": partial(self.record, k, nodes, i, caption)
            for k in widths
            for i, caption in enumerate(few)
        }

    def record(self, width: int, nodes: int, number: int, caption: str) -> Record:
        tree = drafts.ScoredTree().growing(bounds(self.levels, width, nodes))
        decoder = drafts.with_tree_policy(self.decoder(), tree)
        record = drafts.GrowthRecord(decoder, tree, seed=number)
        for result in drafts.recorded_steps(decoder, caption, str(number), self.config.seed):
            record.add(result)
        return {"seen": np.stack(record.accepted), "level": np.stack(record.level)}

    def by_width(self, records: Mapping[str, Record]) -> dict[int, tuple[Floats, Floats]]:
        """All recorded steps (accepted, level) of each width: see ``lengths``."""
        grouped: dict[int, list[Record]] = {}
        for name, record in records.items():
            grouped.setdefault(int(name.split("-")[1]), []).append(record)
        return {
            k: (np.concatenate([r["seen"] for r in each]), np.concatenate([r["level"] for r in each]))
            for k, each in grouped.items()
        }

    def passed(self, steps: Mapping[int, tuple[Floats, Floats]], top_k: int, nodes: int, depth: int) -> Floats:
        """P(accepted ≥ i) in each recorded step [S, depth], or the simulated one [1, depth]."""
        if not steps:
            return np.array([self.simulated(min(depth, nodes - 1))])
        return drafts.grown_lengths(steps, top_k, nodes, depth)

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        default, steps = self.own_tree().bounds, self.by_width(records)

        def candidate(depth: int, top_k: int, nodes: int, options: Options) -> Candidate:
            shape = self.shape(depth, top_k, nodes)
            passed = self.passed(steps, top_k, nodes, depth).mean(0).tolist()
            return Candidate(options, shape, passed, cost.step(shape))

        candidates = [candidate(default.depth, default.top_k, default.total, {})]
        for k in steps or (1, default.top_k):
            for depth in range(1, self.levels + 1):
                most = min(largest(cost), bounds(depth, k, NODES).total)
                for nodes in range(depth + 1, most + 1):
                    if not any(nodes - 1 <= other < k for other in steps):  # the same tree at a lower cost
                        candidates.append(candidate(depth, k, nodes, self.sizes(depth, k, nodes)))
        return candidates


class OptionSearch(TreeSearch):
    """Sizes that a component lists in ``tuned``: one option at a time differs from the defaults."""

    about = "the sizes of windows"

    def __init__(self, target: Target, config: Tune):
        super().__init__(target, config)
        method = self.method()
        parts = (method.proposal, *(() if method.proposal.tree_is_own else (method.tree,)))
        tuned = {name: values for part in parts for name, values in part.tuned.items()}
        self.defaults: Options = {name: getattr(part, name) for part in parts for name in part.tuned}
        self.decoder(self.defaults)  # raises UserError for what is missing
        self.sizes_to_try: Probes = []
        others = [{name: value} for name, values in tuned.items() for value in values if value != self.defaults[name]]
        for options in (self.defaults | other for other in ({}, *others)):
            with suppress(UserError):  # incompatible sizes
                p = self.decoder(options).proposer
                self.sizes_to_try.append((options, Shape(p.nodes, p.max_depth, (), p.nodes == p.max_depth + 1)))

    def probes(self) -> Probes:
        return self.sizes_to_try

    def recordings(self, cost: StepCost, captions: list[str]) -> Recordings:
        return {
            f"{number}-{i}": partial(self.record, options, i, caption)
            for number, (options, _) in enumerate(self.sizes_to_try)
            for i, caption in enumerate(captions)
        }

    def record(self, options: Options, number: int, caption: str) -> Record:
        decode = generate(self.decoder(options), [caption], [str(number)], self.config.seed)[0]
        return {"accepted": np.array(decode.accept_lengths[:-1] or decode.accept_lengths, np.float64)}

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        candidates = []
        for number, (options, shape) in enumerate(self.sizes_to_try):
            each = [record["accepted"] for name, record in records.items() if name.split("-")[0] == str(number)]
            if each:
                accepted = np.concatenate(each) - 1
                passed = [float((accepted >= i).mean()) for i in range(1, shape.depth + 1)]
            else:
                passed = self.simulated(shape.depth)
            candidates.append(Candidate({} if options == self.defaults else options, shape, passed, cost.step(shape)))
        return candidates
