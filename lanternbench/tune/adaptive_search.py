"""Bounds of adaptive trees (ADT-Tree): its rule is replayed over recorded dynamic trees, step after step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from statistics import fmean

import numpy as np

from lanternbench.costs.forward_cost import Shape, StepCost
from lanternbench.engine.plain import AdaptiveBounds
from lanternbench.methods.trees.adaptive import Adaptive, adapt
from lanternbench.tune.recorded_drafts import Floats, grown_lengths
from lanternbench.tune.tree_search import Candidate, GrowthSearch, Options, Record, largest

REPLAYED = 300  # steps
DEPTHS = ((0, 3), (0, 4), (0, 5), (0, 6), (1, 7), (0, 10))  # open intervals
CHILDREN = ((0, 2), (0, 3), (0, 4), (0, 5), (1, 9), (3, 14), (3, 40))
TOTALS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 59)
BETAS = (1.0, 0.6)


class BoundsSearch(GrowthSearch):
    """Ranges of depth and width, nodes, and the acceptance level that deepens the tree."""

    about = "adaptive trees (ranges of depth and width, nodes, β)"

    def sizes(self, depth: int, top_k: int, nodes: int) -> Options:
        """A tree that does not adapt: for probes."""
        return {"depth": depth, "draft_top_k": top_k, "total_nodes": nodes,
                "depth_range": [depth - 1, depth + 1], "width_range": [top_k - 1, top_k + 1]}  # fmt: skip

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        made, steps = self.setting.method(), self.by_width(records)
        resolved = made.resolve(self.setting.target.options)
        own: Adaptive = resolved.tree.prepare(self.setting.target, resolved.proposal)  # type: ignore[assignment]
        known: dict[tuple[int, int, int], Floats] = {}
        step_s = cache(cost.step)

        def reach(depth: int, width: int, nodes: int) -> Floats:
            """P(accepted ≥ i) in each recorded step [S, depth]."""
            key = depth, width, nodes
            if key not in known:
                if self.setting.tau:
                    known[key] = np.array([self.setting.simulated(min(depth, nodes - 1))])
                else:
                    known[key] = grown_lengths(steps, width, nodes, depth)
            return known[key]

        def of(within: AdaptiveBounds, nodes: int, options: Options) -> Candidate:
            """The mean step of a replay: its size follows from how the step before it was accepted."""
            rng = np.random.default_rng(0)
            alpha: float | None = None
            size = (own.bounds.depth, own.bounds.top_k)
            seconds, shapes, accepted = [], [], []
            for i in range(REPLAYED):
                depth, width = size = adapt(size, alpha, within)
                shape = self.shape(depth, width, nodes)
                shapes.append(shape)
                seconds.append(step_s(shape))
                each = reach(depth, width, nodes)
                passed = each[i * len(each) // REPLAYED]
                count = int((rng.random() < passed).sum())  # P(accepted ≥ i) falls with i: one uniform
                accepted.append(count)
                alpha = (count + 1) / depth
            mean = Shape(
                round(fmean(s.nodes for s in shapes)), round(fmean(s.depth for s in shapes)),
                max(shapes, key=lambda s: s.depth).levels, False,
            )  # fmt: skip
            found = [fmean(n >= i for n in accepted) for i in range(1, within.d[1])]
            return Candidate(options, mean, found, fmean(seconds))

        found = [of(own.within, own.nodes, {})]
        most = largest(cost)
        for d, k, nodes, beta in product(DEPTHS, CHILDREN, TOTALS, BETAS):
            if nodes > most or d[1] - 1 > max(self.levels, 2):
                continue
            within = AdaptiveBounds(beta, 1, max(1, (k[1] - k[0]) // 3), d, k)
            options = {"depth_range": list(d), "width_range": list(k), "total_nodes": nodes, "beta": beta,
                       "l_d": within.l_d, "l_k": within.l_k}  # fmt: skip
            found.append(of(within, nodes, options))
        return found
