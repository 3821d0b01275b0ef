"""Bounds of adaptive trees (ADT-Tree): their rule is replayed over recorded dynamic trees, step by step."""

from collections.abc import Mapping
from functools import cache
from itertools import product
from statistics import fmean

import numpy as np

from lanternbench.costs.forward_cost import Shape, StepCost
from lanternbench.engine.plain import AdaptiveBounds
from lanternbench.methods.trees.adaptive import adapt
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
        """Sizes of a tree that does not adapt, for probes."""
        ranges = {"depth_range": [depth - 1, depth + 1], "width_range": [top_k - 1, top_k + 1]}
        return super().sizes(depth, top_k, nodes) | ranges

    def candidates(self, cost: StepCost, records: Mapping[str, Record]) -> list[Candidate]:
        default, steps = self.own_tree(), self.by_width(records)
        step_s = cache(cost.step)
        passed = cache(lambda depth, width, nodes: self.passed(steps, width, nodes, depth))

        def candidate(within: AdaptiveBounds, nodes: int, options: Options) -> Candidate:
            """The mean step of a replay, in which the acceptance of a step determines the size of the next."""
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
            nodes, depth = (round(fmean(getattr(s, name) for s in shapes)) for name in ("nodes", "depth"))
            mean = Shape(nodes, depth, max(shapes, key=lambda s: s.depth).levels, False)
            reached = [fmean(n >= i for n in accepted) for i in range(1, within.d[1])]
            return Candidate(options, mean, reached, fmean(map(step_s, shapes)))

        candidates = [candidate(default.within, default.nodes, {})]
        most = largest(cost)
        for d, k, nodes, beta in product(DEPTHS, CHILDREN, TOTALS, BETAS):
            if nodes <= most and d[1] - 1 <= max(self.levels, 2):
                within = AdaptiveBounds(beta, 1, max(1, (k[1] - k[0]) // 3), d, k)
                options = {"depth_range": list(d), "width_range": list(k), "total_nodes": nodes, "beta": beta}
                candidates.append(candidate(within, nodes, options | {"l_d": within.l_d, "l_k": within.l_k}))
        return candidates
