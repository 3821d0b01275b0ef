"""Draft trees as tensors."""

from __future__ import annotations

import pytest
import torch

from lanternbench.engine import tree as trees
from lanternbench.engine.verify import parents
from lanternbench.errors import UserError
from lanternbench.methods.acceptance.neighbours import nearest
from lanternbench.methods.trees.adaptive import AdaptiveGrowth, Bounds, Neighbourhood, adapt


@pytest.mark.parametrize("name", [*trees.named(), "chain-1", "chain-7"])
def test_a_static_tree_is_consistent(name):
    static = trees.static_tree(name)
    tree = static.tree
    parent = parents(tree)[0]
    assert parent[0] == -1
    for node in range(1, tree.nodes):
        assert parent[node] < node  # parents come first
        assert tree.depth[0, node] == tree.depth[0, parent[node]] + 1
        expected = tree.ancestors[0, parent[node]].clone()
        expected[node] = True
        assert torch.equal(tree.ancestors[0, node], expected)
    assert sum(len(rank.nodes) for rank in static.ranks) == tree.nodes - 1
    assert [i for level in static.levels for i in level.parents] == list(static.inner)


def test_a_tree_from_parents_is_the_static_one():
    static = trees.static_tree("mc_sim_7b_63").tree
    parent = parents(static).clamp(min=0)
    built = trees.from_parents(parent, static.depth, static.max_depth, static.width)
    for a, b in zip(built[:3], static[:3], strict=True):
        assert torch.equal(a, b)


def test_unused_nodes_are_nobodys_children():
    parent, depth = torch.tensor([[0, 0, 1, 0]]), torch.tensor([[0, 1, -1, 1]])
    tree = trees.from_parents(parent, depth, 2, 2)
    assert tree.children[0, 0].tolist() == [1, 3]
    assert 2 not in tree.children


@pytest.mark.parametrize("spec", ["oak", "chain-0", "chain-x", [], [[0], [2]], [[0, 0]], [[-1]]])
def test_what_is_no_tree_is_refused(spec):
    with pytest.raises(UserError):
        trees.static_tree(spec)


def test_adt_deepens_after_success_and_widens_after_failure_within_its_bounds():
    bounds = Bounds(1.0, 1, 3, (0, 10), (3, 14))
    assert adapt((5, 8), 1.0, bounds) == (6, 5)
    assert adapt((5, 8), 0.9, bounds) == (4, 11)
    assert adapt((10, 3), 2.0, bounds) == (10, 3)
    assert adapt((0, 14), 0.0, bounds) == (0, 14)


def test_adt_starts_from_the_tree_that_its_initialisation_names():
    def around(init):
        made = Neighbourhood(4, init, (1, 1), seed=0)
        made.trees += [(i, 10 * i) for i in range(2, 9)]  # tokens 1 … 7 on a grid 4 wide; next is token 8
        return made

    assert around("horizontal").start() == (8, 80)
    assert around("vertical").start() == (5, 50)
    assert around("random").start() in around("random").trees
    near = [(1, 5), (2**-0.5 * 1, 6), (5**-0.5, 7), (0.5, 1), (5**-0.5, 2), (8**-0.5, 3)]  # (weight, d) in radius 2
    expected = sum(w * d for w, d in near) / sum(w for w, _ in near)
    assert around("token-flock").start()[0] == pytest.approx(expected)


def test_adt_says_the_size_of_each_prompt_s_tree():
    growth = AdaptiveGrowth(Bounds(), "horizontal", 30, (3, 5))
    growth.now = [(0, 5), (1, 4), (2, 4), (9, 5)]
    assert growth.sizes() == [(0, 1), (1, 5), (2, 21), (9, 30)]


def test_adt_at_depth_zero_recovers():
    growth = AdaptiveGrowth(Bounds(), "horizontal", 12, (0, 3))
    assert adapt((0, 14), growth.bounds.beta, growth.bounds)[0] == 1


def test_nearest_neighbours_begin_with_the_token_itself_even_where_codes_coincide():
    codes = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.9, 0.1]])
    for proximity in ("l2", "cosine", "random"):
        table = nearest(codes, 3, proximity)
        assert table[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert all(len(set(row)) == 3 for row in table.tolist())
    assert nearest(codes, 3)[1].tolist() == [1, 0, 2]
    assert nearest(codes, 99).shape == (5, 5)
    assert not torch.equal(nearest(codes, 5, "random", 0), nearest(codes, 5, "random", 1))
