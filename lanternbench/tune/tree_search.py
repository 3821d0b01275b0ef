"""Search for the fastest tree of one kind: what to measure, what to record, and what to expect of each candidate.

``probes`` says what to time for the cost model and ``recordings`` what to decode for the acceptance; both are pieces
that can be made one by one and kept.  ``candidates`` turns them into shapes with an expected accepted length.
"""

from __future__ import annotations

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
Record = Mapping[str, Floats]  # what one recording found
Recordings = dict[str, Callable[[], Record]]
LEVELS = 8  # of the deepest drafts that are looked at
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
    """A shape, and what is expected of it."""

    options: Options  # of the method, in place of its own
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

    about: ClassVar[str]  # what is searched, in words

    def __init__(self, target: Target, config: Tune):
        self.target, self.config = target, config

    def probes(self) -> Probes:
        """Sizes to time, and what a step with them computes."""
        raise NotImplementedError

    def recordings(self, cost: StepCost, captions: list[str]) -> Recordings:
        """What makes each record, by its name."""
        raise NotImplementedError

    def wanted(self, cost: StepCost, captions: list[str]) -> Recordings:
        """The recordings: none where acceptance is simulated."""
        return self.recordings(cost, captions) if self.config.simulate_acceptance is None else {}

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        """The method's own sizes first, then all that were considered; no ``records`` where acceptance is simulated."""
        raise NotImplementedError

    def acceptance(self, records: Mapping[str, Record]) -> list[list[float]] | None:
        """P [depth, rank] as ``best_tree`` has it, where ranks are known."""
        return None

    def method(self, options: Options | None = None) -> Method:
        """The method with these sizes in place of its own."""
        sizes, either = options or {}, {"shape", "depth"}
        replaced = either if either & sizes.keys() else set()
        given = {k: v for k, v in self.config.options.items() if k not in replaced}
        return method(self.config.method, **given | sizes)

    def own_tree(self) -> Any:
        """The method's own tree policy, prepared."""
        made = self.method().resolve(self.target.options)
        return made.tree.prepare(self.target, made.proposal)

    def decoder(self, options: Options | None = None, made: Method | None = None) -> SpeculativeDecoder:
        """The method with these sizes, or ``made``; simulated, levels of every draft are passed with ``rates``."""
        c = self.config
        decoder = build(self.target, made or self.method(options), c.temperature, guidance=c.guidance)
        if c.simulate_acceptance is None or decoder.proposer.max_depth == 0:
            return decoder
        return replace(decoder, rates=reach(self.rates, decoder.proposer.max_depth).to(self.target.device))

    @cached_property
    def rates(self) -> list[float]:
        """Of passing levels 1, 2, …, as asked for, or with which the method's own sizes have the tokens asked for."""
        asked = self.config.simulate_acceptance
        if isinstance(asked, list):
            return asked
        assert asked is not None
        depth = build(self.target, self.method(), self.config.temperature).proposer.max_depth
        return [float(level_rates(asked, depth)[depth])]

    def simulated(self, depth: int) -> list[float]:
        """P(accepted ≥ i) at those rates."""
        return reach(self.rates, depth)[depth].tolist()

    def deepest(self, sizes: Iterable[Options]) -> int:
        """How many of these sizes, ever deeper ones, the method can have: Medusa drafts one level a head.

        Raises UserError where it can have none.
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
    """The most nodes that are worth verifying: a forward of more costs ``WORTH`` of one node's."""
    one = cost.forward(1)
    return max([n for n in range(2, NODES + 1) if cost.forward(n) <= WORTH * one], default=2)


def summed(records: Mapping[str, Record], name: str) -> Floats:
    return np.sum([record[name] for record in records.values()], 0)


class ShapeSearch(TreeSearch):
    """Static trees, by dynamic programming over the acceptance of depths and ranks; chains are judged as they are."""

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
        plain = self.decoder()
        shape, sampled = chain(self.levels), plain.method.proposal.samples
        tree = drafts.RecordingTree().drafting(shape, sampled, self.target.device)
        decoder = drafts.with_tree_policy(plain, tree)
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
            table = child_table(children, min(depth, self.levels))  # what is deeper: as the last level
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
    """Chains alone."""

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
        widths = [k for k in WIDTHS if k == 1 or k * k <= 2 * nodes]  # of wider ones most nodes would be left out
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
        return {"seen": np.stack(record.seen), "level": np.stack(record.level)}

    def by_width(self, records: Mapping[str, Record]) -> dict[int, tuple[Floats, Floats]]:
        """All recorded steps of each width: see ``lengths``."""
        same: dict[int, list[Record]] = {}
        for name, record in records.items():
            same.setdefault(int(name.split("-")[1]), []).append(record)
        return {
            k: (np.concatenate([r["seen"] for r in each]), np.concatenate([r["level"] for r in each]))
            for k, each in same.items()
        }

    def passed(self, steps: Mapping[int, tuple[Floats, Floats]], top_k: int, nodes: int, depth: int) -> Floats:
        """P(accepted ≥ i) in each recorded step [S, depth], or the one that is simulated."""
        if not steps:
            return np.array([self.simulated(min(depth, nodes - 1))])
        return drafts.grown_lengths(steps, top_k, nodes, depth)

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        own, steps = self.own_tree().bounds, self.by_width(records)

        def candidate(depth: int, top_k: int, nodes: int, options: Options) -> Candidate:
            shape = self.shape(depth, top_k, nodes)
            passed = self.passed(steps, top_k, nodes, depth).mean(0).tolist()
            return Candidate(options, shape, passed, cost.step(shape))

        candidates = [candidate(own.depth, own.top_k, own.total, {})]
        for k in steps or (1, own.top_k):
            for depth in range(1, self.levels + 1):
                most = min(largest(cost), bounds(depth, k, NODES).total)
                for nodes in range(depth + 1, most + 1):
                    if not any(nodes - 1 <= other < k for other in steps):  # which makes the same tree for less
                        candidates.append(candidate(depth, k, nodes, self.sizes(depth, k, nodes)))
        return candidates


class OptionSearch(TreeSearch):
    """Sizes that a component names itself (``tuned``): each is tried by a short decode, one option after the other."""

    about = "the sizes of windows"

    def __init__(self, target: Target, config: Tune):
        super().__init__(target, config)
        made = self.method()
        parts = (made.proposal, *(() if made.proposal.tree_is_own else (made.tree,)))
        tuned = {name: values for part in parts for name, values in part.tuned.items()}
        self.own: Options = {name: getattr(part, name) for part in parts for name in part.tuned}
        self.decoder(self.own)  # says what is missing
        self.tries: Probes = []
        others = [{name: value} for name, values in tuned.items() for value in values if value != self.own[name]]
        for options in (self.own | other for other in ({}, *others)):
            with suppress(UserError):  # sizes that do not go together
                p = self.decoder(options).proposer
                self.tries.append((options, Shape(p.nodes, p.max_depth, (), p.nodes == p.max_depth + 1)))

    def probes(self) -> Probes:
        return self.tries

    def recordings(self, cost: StepCost, captions: list[str]) -> Recordings:
        return {
            f"{number}-{i}": partial(self.record, options, i, caption)
            for number, (options, _) in enumerate(self.tries)
            for i, caption in enumerate(captions)
        }

    def record(self, options: Options, number: int, caption: str) -> Record:
        made = generate(self.decoder(options), [caption], [str(number)], self.config.seed)[0]
        return {"accepted": np.array(made.accept_lengths[:-1] or made.accept_lengths, np.float64)}

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        candidates = []
        for number, (options, shape) in enumerate(self.tries):
            each = [record["accepted"] for name, record in records.items() if name.split("-")[0] == str(number)]
            if each:
                accepted = np.concatenate(each) - 1
                passed = [float((accepted >= i).mean()) for i in range(1, shape.depth + 1)]
            else:
                passed = self.simulated(shape.depth)
            candidates.append(Candidate({} if options == self.own else options, shape, passed, cost.step(shape)))
        return candidates
