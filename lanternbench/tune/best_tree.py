"""The static tree with the greatest expected accepted length: dynamic programming (Sequoia, arXiv 2402.12374).

A table P[d − 1, k] [D, K] holds the probability that, at a node of depth d − 1 on the accepted path, the child of rank
k (from 0) is accepted after its earlier siblings were rejected.  Sequoia assumes that this depends on the rank alone;
in this table it may depend on the depth too.  A node is accepted with the product of P along its path, so the expected
accepted length of a tree is a sum over its nodes, and the best tree of n nodes splits into the best trees below its
root's children.  Lengths count drafted tokens: a step commits one more.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanternbench.engine.tree import Paths

Table = NDArray[np.float64]  # [D, K]


def expected_length(paths: Iterable[tuple[int, ...]], table: Table) -> float:
    """Expected accepted drafted tokens of a tree in child paths: Σ over nodes of Π P along the path."""
    return float(sum(np.prod([table[d, rank] for d, rank in enumerate(path)]) for path in paths))


class _Split(NamedTuple):
    value: float
    nodes: int = 0  # in the subtree of the first of the ranks, its root included; 0: no further child


def best_trees(table: Table, nodes: int) -> list[Paths]:
    """The best trees of 1 … ``nodes`` nodes below the root, of at most D levels and K children a node, as child paths.

    Fewer than ``nodes`` where no larger tree fits.
    """
    depths, ranks = table.shape

    @cache
    def below(depth: int, rank: int, n: int) -> _Split:
        """n nodes among the children ``rank``, ``rank`` + 1, … of a node at ``depth``, and their subtrees."""
        if n == 0:
            return _Split(0.0)
        if depth == depths or rank == ranks:
            return _Split(-np.inf)
        p, best = float(table[depth, rank]), _Split(-np.inf)
        for m in range(1, n + 1):
            value = p * (1 + below(depth + 1, 0, m - 1).value) + below(depth, rank + 1, n - m).value
            if value > best.value:
                best = _Split(value, m)
        return best

    def paths(depth: int, rank: int, n: int, above: tuple[int, ...]) -> Paths:
        if n == 0:
            return ()
        m = below(depth, rank, n).nodes
        child = (*above, rank)
        return (child, *paths(depth + 1, 0, m - 1, child), *paths(depth, rank + 1, n - m, above))

    sizes = [n for n in range(1, nodes + 1) if below(0, 0, n).value >= 0]
    return [tuple(sorted(paths(0, 0, n, ()), key=lambda path: (len(path), path))) for n in sizes]
