"""Search for the fastest tree of one kind: what to measure, what to record, and what to expect of each candidate.

A search is made for one method on one target.  ``probes`` says what to time for the cost model and ``recordings`` what
to decode for the acceptance; both are pieces that can be made one by one and kept.  ``candidates`` turns them into
shapes with an expected accepted length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from lanternbench.costs.forward_cost import Shape, StepCost
from lanternbench.engine.decode import SpeculativeDecoder, generate
from lanternbench.engine.simulation import level_rates, reach
from lanternbench.engine.tree import Paths, StaticTree, chain, from_paths
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, method
from lanternbench.methods.trees.static import FixedTree, static_tree
from lanternbench.models.target import Target
from lanternbench.tune.best_tree import best_trees, expected_length
from lanternbench.tune.recorded_drafts import (
    ChainRecord,
    Floats,
    GrowthRecord,
    RecordingTree,
    ScoredTree,
    bounds,
    chain_lengths,
    child_table,
    grown_lengths,
    recorded_steps,
    with_tree_policy,
)

Options = dict[str, Any]
Record = Mapping[str, Floats]  # what one recording found
LEVELS = 8  # of the deepest drafts that are looked at
RANKS = 8  # children of a node of a static tree
NODES = 64  # of the largest trees
WORTH = 3.0  # maximum cost of a tree's forward, in forwards of one node
WIDTHS = (1, 2, 3, 4, 6, 10)  # children of a node of a dynamic tree


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


@dataclass(frozen=True)
class Setting:
    """The method that is tuned, and how it is run.  ``tau``: the tokens a step, or rates, that are simulated."""

    target: Target
    preset: str
    given: Options
    temperature: float = 1.0
    guidance: float | None = None
    tau: float | list[float] | None = None
    seed: int = 0

    def method(self, options: Options | None = None) -> Method:
        """The method with these sizes in place of its own."""
        found, either = options or {}, {"shape", "depth"}
        replaced = either if either & found.keys() else set()
        return method(self.preset, **{k: v for k, v in self.given.items() if k not in replaced} | found)

    def decoder(self, options: Options | None = None) -> SpeculativeDecoder:
        return self.ready(self.method(options))

    def ready(self, made: Method) -> SpeculativeDecoder:
        """Simulated, levels of every draft are passed with the probabilities ``rates``."""
        decoder = build(self.target, made, self.temperature, guidance=self.guidance)
        if self.tau is None or decoder.proposer.max_depth == 0:
            return decoder
        return replace(decoder, rates=reach(self.rates, decoder.proposer.max_depth).to(self.target.device))

    @cached_property
    def rates(self) -> list[float]:
        """Of passing levels 1, 2, …, as asked for, or with which the method's own sizes have ``tau`` tokens a step."""
        assert self.tau is not None
        if isinstance(self.tau, list):
            return self.tau
        depth = build(self.target, self.method(), self.temperature).proposer.max_depth
        return [float(level_rates(self.tau, depth)[depth])]

    def simulated(self, depth: int) -> list[float]:
        """P(accepted ≥ i) at those rates."""
        return reach(self.rates, depth)[depth].tolist()


class TreeSearch:
    """One kind of tree."""

    about: ClassVar[str]  # what is searched, in words

    def __init__(self, setting: Setting):
        self.setting = setting

    def probes(self) -> list[tuple[Options, Shape]]:
        """Sizes to time, and what a step with them computes."""
        raise NotImplementedError

    def recordings(self, cost: StepCost, captions: list[str]) -> dict[str, Any]:
        """Arguments of ``record`` by name; none where acceptance is simulated."""
        raise NotImplementedError

    def record(self, what: Any) -> Record:
        raise NotImplementedError

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        """The method's own sizes first, then all that were considered."""
        raise NotImplementedError

    def acceptance(self, records: Mapping[str, Record]) -> list[list[float]] | None:
        """P [depth, rank] as ``best_tree`` has it, where ranks are known."""
        return None

    def _deepest(self, sizes: Iterable[Options]) -> int:
        """How many of these sizes, ever deeper ones, the method can have: Medusa drafts one level a head."""
        count = 0
        for options in sizes:
            try:
                self.setting.decoder(options)
            except UserError:
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


class ShapeSearch(TreeSearch):
    """Static trees, by dynamic programming over the acceptance of depths and ranks; chains are judged as they are."""

    about = "static trees"
    ranks = RANKS

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self.levels = self._deepest({"shape": f"chain-{d}"} for d in range(1, LEVELS + 1))
        if not self.levels:
            self.setting.decoder({"shape": "chain-1"})  # says why
        self.own = self._static(setting.method())

    def _static(self, made: Method) -> StaticTree:
        tree: Any = made.resolve(self.setting.target.options).tree
        return static_tree(tree.shape)

    def probes(self) -> list[tuple[Options, Shape]]:
        found: list[tuple[Options, Shape]] = []
        for d in dict.fromkeys(min(d, self.levels) for d in (1, 3, 5, 7)):
            found.append(({"shape": f"chain-{d}"}, shape_of(chain(d))))
        if self.ranks > 1:
            for blades, reach in ((2, 1), (2, 2), (4, 3), (8, 3), (16, 3)):
                reach = min(reach, self.levels)
                paths = [(i, *(0,) * d) for i in range(blades) for d in range(reach)]
                found.append(({"shape": [list(p) for p in paths]}, shape_of(from_paths(tuple(paths)))))
        return found

    def recordings(self, cost: StepCost, captions: list[str]) -> dict[str, Any]:
        return {} if self.setting.tau else {f"chain-{i}": (i, caption) for i, caption in enumerate(captions)}

    def record(self, what: Any) -> Record:
        number, caption = what
        plain = self.setting.decoder()
        shape, sampled = chain(self.levels), plain.method.proposal.samples
        tree = RecordingTree.of(FixedTree().drafting(shape, sampled, self.setting.target.device))
        decoder = with_tree_policy(plain, tree)
        found = ChainRecord(decoder, tree, self.ranks, seed=number)
        for result in recorded_steps(decoder, caption, str(number), self.setting.seed):
            found.add(result)
        return {"reached": found.reached, "children": found.children, "steps": np.array(float(found.steps))}

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        if self.setting.tau:
            own = Candidate({}, shape_of(self.own), self.setting.simulated(self.own.tree.max_depth), 1.0)
            found = [own] + [
                Candidate({"shape": f"chain-{d}"}, shape_of(chain(d)), self.setting.simulated(d), 1.0)
                for d in range(1, self.levels + 1)
            ]
            return [replace(c, step_s=cost.step(c.shape)) for c in found]
        reached, children = (np.sum([r[name] for r in records.values()], 0) for name in ("reached", "children"))
        steps = float(sum(r["steps"] for r in records.values()))

        def of(paths: Paths, options: Options) -> Candidate:
            static = from_paths(paths)
            depth = static.tree.max_depth
            if static.is_chain and depth <= self.levels:
                reach = chain_lengths(reached, steps, depth)
            else:
                table = child_table(children, min(depth, self.levels))
                while len(table) < depth:  # deeper than was recorded: as the last level
                    table = np.concatenate([table, table[-1:]])
                wide = max(max(p) for p in paths) + 1
                table = np.pad(table, ((0, 0), (0, max(0, wide - table.shape[1]))))
                by_depth = [[p for p in paths if len(p) == d] for d in range(1, depth + 1)]
                reach = np.array([expected_length(tuple(level), table) for level in by_depth])
            shape = shape_of(static)
            return Candidate(options, shape, reach.tolist(), cost.step(shape))

        found = [of(_paths(self.own), {})]
        for d in range(1, self.levels + 1):
            found.append(of(tuple((0,) * i for i in range(1, d + 1)), {"shape": f"chain-{d}"}))
        if self.ranks > 1:
            for depth in range(1, self.levels + 1):
                for paths in best_trees(child_table(children, depth), largest(cost) - 1):
                    if any(rank for path in paths for rank in path) and max(map(len, paths)) == depth:
                        found.append(of(paths, {"shape": [list(path) for path in paths]}))
        return found

    def acceptance(self, records: Mapping[str, Record]) -> list[list[float]] | None:
        if not records or self.ranks == 1:
            return None
        return child_table(np.sum([r["children"] for r in records.values()], 0), self.levels).tolist()


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

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self.levels = self._deepest(self.sizes(d, 1, d + 1) for d in range(1, LEVELS + 1))
        if not self.levels:
            self.setting.decoder(self.sizes(1, 1, 2))

    def sizes(self, depth: int, top_k: int, nodes: int) -> Options:
        return {"depth": depth, "draft_top_k": top_k, "total_nodes": nodes}

    def probes(self) -> list[tuple[Options, Shape]]:
        found = []
        for depth, k, nodes in ((1, 2, 3), (3, 1, 4), (3, 2, 6), (5, 2, 8), (3, 4, 16), (5, 4, 32), (3, 10, 60)):
            size = min(depth, self.levels), k, nodes
            found.append((self.sizes(*size), self.shape(*size)))
        return found

    def shape(self, depth: int, top_k: int, nodes: int) -> Shape:
        return Shape(bounds(depth, top_k, nodes).total, depth, (top_k,) * (depth - 1), False)

    def recordings(self, cost: StepCost, captions: list[str]) -> dict[str, Any]:
        if self.setting.tau:
            return {}
        nodes = largest(cost)
        widths = [k for k in WIDTHS if k == 1 or k * k <= 2 * nodes]  # of wider ones most nodes would be left out
        few = captions[: max(1, len(captions) // 2)]
        return {f"width-{k}-{i}": (k, nodes, i, caption) for k in widths for i, caption in enumerate(few)}

    def record(self, what: Any) -> Record:
        width, nodes, number, caption = what
        tree = ScoredTree().growing(bounds(self.levels, width, nodes))
        decoder = with_tree_policy(self.setting.decoder(), tree)
        found = GrowthRecord(decoder, tree, seed=number)
        for result in recorded_steps(decoder, caption, str(number), self.setting.seed):
            found.add(result)
        return {"seen": np.stack(found.seen), "level": np.stack(found.level)}

    def by_width(self, records: Mapping[str, Record]) -> dict[int, tuple[Floats, Floats]]:
        """All recorded steps of each width: see ``lengths``."""
        found: dict[int, list[Record]] = {}
        for name, record in records.items():
            found.setdefault(int(name.split("-")[1]), []).append(record)
        return {
            k: (np.concatenate([r["seen"] for r in each]), np.concatenate([r["level"] for r in each]))
            for k, each in found.items()
        }

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        made = self.setting.method()
        target = self.setting.target
        own = made.resolve(target.options).tree.prepare(target, made.proposal).bounds  # type: ignore[attr-defined]
        steps = self.by_width(records)

        def of(depth: int, top_k: int, nodes: int, options: Options) -> Candidate:
            shape = self.shape(depth, top_k, nodes)
            if self.setting.tau:
                reach = self.setting.simulated(min(depth, nodes - 1))
            else:
                reach = grown_lengths(steps, top_k, nodes, depth).mean(0).tolist()
            return Candidate(options, shape, reach, cost.step(shape))

        found = [of(own.depth, own.top_k, own.total, {})]
        for k in steps or (1, own.top_k):
            for depth in range(1, self.levels + 1):
                most = min(largest(cost), bounds(depth, k, NODES).total)
                for nodes in range(depth + 1, most + 1):
                    if not any(nodes - 1 <= other < k for other in steps):  # which makes the same tree for less
                        found.append(of(depth, k, nodes, self.sizes(depth, k, nodes)))
        return found


class OptionSearch(TreeSearch):
    """Sizes that a component names itself (``tuned``): each is tried by a short decode, one option after the other."""

    about = "the sizes of windows"

    def __init__(self, setting: Setting):
        super().__init__(setting)
        made = setting.method()
        self.own: Options = {}
        self.tuned: dict[str, tuple[Any, ...]] = {}
        for part in (made.proposal, *(() if made.proposal.tree_is_own else (made.tree,))):
            for name, values in part.tuned.items():
                self.own[name], self.tuned[name] = getattr(part, name), values
        setting.decoder(self.own)  # says what is missing
        self.tries = [(options, shape) for options in self._every() if (shape := self._shape(options)) is not None]

    def _every(self) -> Iterable[Options]:
        """The method's own sizes, and every value of every option, the others as they are."""
        yield self.own
        for name, values in self.tuned.items():
            yield from (self.own | {name: value} for value in values if value != self.own[name])

    def _shape(self, options: Options) -> Shape | None:
        try:
            proposer = self.setting.decoder(options).proposer
        except UserError:  # sizes that do not go together
            return None
        return Shape(proposer.nodes, proposer.max_depth, (), proposer.nodes == proposer.max_depth + 1)

    def probes(self) -> list[tuple[Options, Shape]]:
        return self.tries

    def recordings(self, cost: StepCost, captions: list[str]) -> dict[str, Any]:
        if self.setting.tau:
            return {}
        return {
            f"{number}-{i}": (options, i, caption)
            for number, (options, _) in enumerate(self.tries)
            for i, caption in enumerate(captions)
        }

    def record(self, what: Any) -> Record:
        options, number, caption = what
        made = generate(self.setting.decoder(options), [caption], [str(number)], self.setting.seed)[0]
        return {"accepted": np.array(made.accept_lengths[:-1] or made.accept_lengths, np.float64)}

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        found = []
        for number, (options, shape) in enumerate(self.tries):
            if self.setting.tau:
                reach = self.setting.simulated(shape.depth)
            else:
                own = [record["accepted"] for name, record in records.items() if name.split("-")[0] == str(number)]
                accepted = np.concatenate(own) - 1
                reach = [float((accepted >= i).mean()) for i in range(1, shape.depth + 1)]
            found.append(Candidate({} if options == self.own else options, shape, reach, cost.step(shape)))
        return found
