"""The best static tree is really the best, and what it is expected to give is what it gives."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lanternbench.engine.tree import from_paths
from lanternbench.tune.accepted_lengths import best_trees, expected_length

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3))
TABLES = SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=st.floats(0, 1)))


def is_tree(paths: tuple[tuple[int, ...], ...]) -> bool:
    """Has every node its parent and its left sibling?"""
    have = {(), *paths}
    return all(p[:-1] in have and (p[-1] == 0 or (*p[:-1], p[-1] - 1) in have) for p in paths)


def all_trees(depths: int, ranks: int, nodes: int) -> list[tuple[tuple[int, ...], ...]]:
    every = [path for d in range(1, depths + 1) for path in product(range(ranks), repeat=d)]
    return [chosen for chosen in combinations(every, nodes) if is_tree(chosen)]


@settings(max_examples=60, deadline=None)
@given(TABLES, st.integers(1, 4))
def test_no_tree_of_as_many_nodes_is_expected_to_be_longer(table, nodes):
    found = {len(paths): paths for paths in best_trees(table, nodes)}
    for n in range(1, nodes + 1):
        every = all_trees(*table.shape, n)
        assert (n in found) == bool(every)
        if every:
            from_paths(found[n])  # which refuses what is no tree
            longest = max(expected_length(paths, table) for paths in every)
            assert expected_length(found[n], table) == pytest.approx(longest)


def test_a_large_tree_is_found_in_no_time_and_grows_with_its_nodes():
    table = np.outer(0.95 ** np.arange(8), 0.6 * 0.5 ** np.arange(8))
    trees = best_trees(table, 64)
    lengths = [expected_length(paths, table) for paths in trees]
    assert [len(paths) for paths in trees] == list(range(1, 65))
    assert (np.diff(lengths) > 0).all()
    assert (np.diff(lengths, 2) < 1e-12).all()  # every further node gives less


@given(arrays(np.float64, st.integers(1, 6), elements=st.floats(0, 1)))
def test_of_a_chain_the_length_is_the_sum_of_products(first):
    paths = tuple((0,) * d for d in range(1, len(first) + 1))
    length = expected_length(paths, first[:, None])
    assert length == pytest.approx(np.cumprod(first).sum())
    if len(first) > 1 and np.ptp(first) == 0 and first[0] < 1:
        a, n = first[0], len(first)
        assert length == pytest.approx(a * (1 - a**n) / (1 - a))


def test_expected_length_is_what_walks_through_the_tree_give():
    """20,000 walks: the standard error of the mean is below 0.01, and an error of 0.05 is five of
    them.
    """
    rng = np.random.default_rng(0)
    table = np.array([[0.5, 0.2, 0.1], [0.4, 0.3, 0.1], [0.3, 0.2, 0.2]])
    (paths,) = (paths for paths in best_trees(table, 9) if len(paths) == 9)
    have, total, walks = set(paths), 0, 20_000
    for _ in range(walks):
        node: tuple[int, ...] = ()
        while len(node) < len(table):
            # the rank accepted, if any
            drawn = int(np.searchsorted(table[len(node)].cumsum(), rng.random()))
            if (*node, drawn) not in have:
                break
            node = (*node, drawn)
        total += len(node)
    assert total / walks == pytest.approx(expected_length(paths, table), abs=0.05)
