"""Draft trees as tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lanternbench.engine import tree as trees
from lanternbench.engine.carry import PerPrompt
from lanternbench.errors import UserError
from lanternbench.methods.acceptance.neighbours import nearest
from lanternbench.methods.method import method
from lanternbench.methods.trees.adaptive import AdaptiveBuilder, History, Plan, Range, adapt, start
from lanternbench.methods.trees.dynamic import Bounds
from lanternbench.methods.trees.static import named, static_tree
from lanternbench.models.cached_stack import Lengths


@pytest.mark.parametrize("name", [*named(), "chain-1", "chain-7"])
def test_a_static_tree_is_consistent(name):
    static = static_tree(name)
    tree = static.tree
    parent = trees.parents(tree)[0]
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
    static = static_tree("mc_sim_7b_63").tree
    parent = trees.parents(static).clamp(min=0)
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
        static_tree(spec)


def test_adt_deepens_after_success_and_widens_after_failure_within_its_bounds():
    bounds = Range(1.0, 1, 3, (0, 10), (3, 14))
    assert adapt((5, 8), 1.0, bounds) == (6, 5)
    assert adapt((5, 8), 0.9, bounds) == (4, 11)
    assert adapt((10, 3), 2.0, bounds) == (10, 3)
    assert adapt((0, 14), 0.0, bounds) == (0, 14)


def test_adt_starts_from_the_tree_that_its_initialisation_names():
    made = History(((1, 1), *((i, 10 * i) for i in range(2, 9))), 1.0, seed=0)  # tokens 0 … 7, 4 a row; next is 8
    assert start(made, 4, "horizontal") == (8, 80)
    assert start(made, 4, "vertical") == (5, 50)
    drawn = {start(made._replace(seed=seed), 4, "random") for seed in range(200)}
    assert drawn == set(made.trees)  # any of the 8 is missed with probability 2e-11
    assert start(made, 4, "random") == start(made, 4, "random")
    near = [(1, 5), (2**-0.5 * 1, 6), (5**-0.5, 7), (0.5, 1), (5**-0.5, 2), (8**-0.5, 3)]  # (weight, d) in radius 2
    expected = sum(w * d for w, d in near) / sum(w for w, _ in near)
    assert start(made, 4, "token-flock")[0] == pytest.approx(expected)


def test_adt_says_the_size_of_each_prompt_s_tree():
    builder = AdaptiveBuilder(Range(), "horizontal", Bounds(3, 5, 30))
    now = PerPrompt([(0, 5), (1, 4), (2, 4), (9, 5)])
    none = torch.zeros(4, dtype=torch.long)
    assert builder.sizes(Plan(PerPrompt(), now, none, none)) == ((0, 1), (1, 5), (2, 21), (9, 30))


def test_adt_at_depth_zero_recovers():
    builder = AdaptiveBuilder(Range(), "horizontal", Bounds(0, 3, 12))
    state: Any = SimpleNamespace(
        seeds=[0],
        device=torch.device("cpu"),
        target=SimpleNamespace(grid=(4, 4)),
        now=SimpleNamespace(last=SimpleNamespace(advance=Lengths(torch.tensor([1]), (1,)))),
    )
    none = torch.zeros(1, dtype=torch.long)
    plan = Plan(PerPrompt([History(((0, 14),), 1.0, 0)]), PerPrompt([(0, 14)]), none, none)
    assert builder.update(state, plan, None).now[0][0] == 1


def test_nearest_neighbours_begin_with_the_token_itself_even_where_codes_coincide():
    codes = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.9, 0.1]])
    for proximity in ("l2", "cosine", "random"):
        table = nearest(codes, 3, proximity)
        assert table[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert all(len(set(row)) == 3 for row in table.tolist())
    assert nearest(codes, 3)[1].tolist() == [1, 0, 2]
    assert nearest(codes, 99).shape == (5, 5)
    assert not torch.equal(nearest(codes, 5, "random", 0), nearest(codes, 5, "random", 1))


def test_papers_sizes_of_grown_trees_are_there_by_name_whatever_the_target_has():
    target = SimpleNamespace(options={"depth": 2, "draft_top_k": 4, "total_nodes": 5, "depth_range": (0, 3), "l_k": 1})
    sizes = ("eagle-2", None), ("eagle-2", "eagle-2-llamagen"), ("lantern", "eagle-2-llamagen")
    own, *papers = (method(name, shape=shape).tree.build(target, None).bounds[:3] for name, shape in sizes)
    assert own == (2, 4, 5)
    assert papers == [(5, 10, 59)] * 2
    anole, llamagen, mine = (
        method("adt-tree", **options).tree.build(target, None)
        for options in ({"shape": "adt-tree-anole"}, {"shape": "adt-tree-llamagen"}, {"depth_range": [1, 2]})
    )
    assert anole.within == Range(1.0, 1, 3, (0, 10), (3, 14))
    assert llamagen.within == Range(1.0, 1, 10, (0, 10), (3, 40))
    assert (mine.within.d, mine.within.l_k, mine.nodes) == ((1, 2), 1, 5)
    assert method("eagle-2", shape="eagle-2-llamagen").label == "eagle-2 shape=eagle-2-llamagen"
    with pytest.raises(UserError, match=r"of such trees there are eagle-2-llamagen"):
        method("eagle-2", shape="mc_sim_7b_63")
