"""Draft trees as tensors."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lanternbench.engine import tree as trees
from lanternbench.engine.cache import Lengths
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.plain import AdaptiveBounds
from lanternbench.engine.sampling import Warp
from lanternbench.errors import UserError
from lanternbench.lossless.plain.drafts import adjacent_tree, adt_adapt
from lanternbench.methods.acceptance.lantern import nearest
from lanternbench.methods.method import method
from lanternbench.methods.trees.adaptive import (
    Adaptive,
    AdaptiveTree,
    Plan,
    adapt,
    random_uniforms,
)
from lanternbench.methods.trees.dynamic import Bounds, PromptBounds, grow_by_confidence
from lanternbench.methods.trees.fixed import FixedTree
from lanternbench.methods.trees.static import named, static_tree
from lanternbench.settings import GREEDY, Sampling


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
    siblings = static.siblings
    assert sorted(siblings.nodes.tolist()) == list(range(1, tree.nodes))
    for rank in siblings.later:
        assert torch.equal(parent[rank.elders], parent[rank.elders + 1])  # they have a next one
    assert [i for level in static.levels for i in level.parents] == static.inner_ids.tolist()


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


def test_adt_deepens_after_success_and_widens_after_failure_strictly_within_its_bounds():
    bounds = AdaptiveBounds(1.0, 1, 3, (0, 10), (3, 14))
    assert adapt((5, 8), 1.0, bounds) == (6, 5)
    assert adapt((5, 8), 0.9, bounds) == (4, 11)
    assert adapt((9, 4), 2.0, bounds) == (9, 4)
    assert adapt((3, 13), 0.0, bounds) == (2, 13)
    # no tree of no level; of one level it may be wider
    assert adapt((1, 13), 0.0, bounds) == (1, 16)
    assert adapt((5, 8), None, bounds) == (5, 8)


def adaptive_state(grid: tuple[int, int], seeds: list[int]) -> Any:
    """What an adaptive tree reads of a decode: ``last.advance`` is to be set."""
    now = SimpleNamespace(last=SimpleNamespace(advance=None))
    return SimpleNamespace(
        seeds=seeds, device=torch.device("cpu"), target=SimpleNamespace(grids=(grid,)), now=now
    )


@pytest.mark.parametrize("init", ["horizontal", "vertical", "random", "token-flock"])
@pytest.mark.parametrize(
    "within",
    [
        AdaptiveBounds(),
        AdaptiveBounds(0.6, 1, 10, (0, 10), (3, 40)),
        AdaptiveBounds(0.5, 2, 1, (1, 7), (1, 9)),
    ],
)
@pytest.mark.parametrize("bonus", [True, False])
def test_adt_takes_the_paper_s_depth_and_width_at_every_token_of_a_recorded_decode(
    init, within, bonus
):
    """A sequence of acceptances drives the engine's bookkeeping and the plain definition side by
    side.
    """
    side, tokens = 12, random.Random(f"{init} {within}")
    options = Adaptive(init=init, bonus=bonus).resolve({})
    builder = AdaptiveTree.of(options, within, Bounds(3, 5, 30))
    state = adaptive_state((side, side), [5, 6])
    own = builder.begin(state)
    histories, alphas = [[(3, 5)], [(3, 5)]], [None, None]
    seen = set()
    while max(map(len, histories)) < side * side:
        for prompt in range(2):
            start = adjacent_tree(tuple(histories[prompt]), init, side)
            if init == "random":
                u = random_uniforms(state.seeds[prompt], len(histories[prompt]))
                start = tuple(
                    low + 1 + int(share * (high - low - 1))
                    for share, (low, high) in zip(u, (within.d, within.k), strict=True)
                )
            assert own.tree_sizes[prompt] == adt_adapt(start, alphas[prompt], within)
        seen |= set(own.tree_sizes)
        committed = tuple(tokens.randint(1, d + 1) for d, _ in own.tree_sizes)
        for prompt, (count, size) in enumerate(zip(committed, own.tree_sizes, strict=True)):
            histories[prompt] += [size] * count
            alphas[prompt] = (count if bonus else count - 1) / size[0]
        state.now.last.advance = Lengths(torch.tensor(committed), committed)
        own = builder.plan(state, own)
    assert len(seen) > 5


@pytest.mark.parametrize(
    ("bounds", "each"),
    [
        (Bounds(3, 3, 6), None),
        (Bounds(5, 4, 6), PromptBounds(torch.tensor([3]), torch.tensor([3]))),
    ],
)
@pytest.mark.parametrize(
    "logits", [[0.5, 0.3, 0.2, 0.0, 0.0], [0.3, 0.2, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]]
)
def test_a_dynamic_tree_keeps_the_parents_of_children_that_are_sure(bounds, each, logits):
    """Where a child has probability 1 its path is as likely as its parent's; the parent comes
    first all the same.
    """
    state: Any = SimpleNamespace(
        now=SimpleNamespace(root=torch.tensor([4])),
        target=SimpleNamespace(vocab=5),
        warp=lambda p: p,
        drawn_after=lambda p, _: p,
    )
    root = torch.tensor([logits], dtype=torch.float64)

    def expand(tokens, parent, visible, depth):
        return torch.nn.functional.one_hot(tokens, 5).double() if depth else root[:, None]

    draft = grow_by_confidence(state, expand, bounds, each)
    depth, best = draft.tree.depth[0].tolist(), int(root.argmax())
    if 1.0 in logits:
        assert [d for d in depth if d >= 0] == [0, 1, 2, 3]
        return
    second = logits.index(0.3)
    nodes = sorted((d, t) for d, t in zip(depth, draft.tokens[0].tolist(), strict=True) if d > 0)
    assert nodes == sorted([(1, best), (2, best), (3, best), (1, second), (2, second)])


@pytest.mark.parametrize(
    "warp", [Warp(GREEDY), Warp(Sampling(temperature=1.0))], ids=["greedy", "sampling"]
)
def test_a_static_tree_ranks_children_whose_probabilities_are_0_in_float32(warp):
    """Logits more than 105 below the first: their softmax is 0 in float32, and says nothing of
    their order.
    """
    logits, static = (
        torch.tensor([[-300.0, 0.0, -350.0, -200.0, -250.0]]),
        static_tree([[0], [1], [2], [0, 0], [0, 1]]),
    )
    builder = FixedTree.of(static, False, torch.device("cpu"))
    state: Any = SimpleNamespace(now=SimpleNamespace(root=torch.tensor([4])), warp=warp)
    draft = builder.grow(state, None, lambda *given: logits[:, None], torch.zeros(1, 0))
    assert draft.tokens[0].tolist() == [4, 1, 3, 4, 1, 3]


def test_adt_says_the_size_of_each_prompt_s_tree():
    builder = AdaptiveTree.of(Adaptive().resolve({}), AdaptiveBounds(), Bounds(3, 5, 30))
    now = PerPrompt([(1, 60), (1, 4), (2, 4), (9, 5)])
    none = torch.zeros(4, dtype=torch.long)
    plan = Plan(PerPrompt(), now, PromptBounds(none, none))
    assert builder.sizes(plan) == ((1, 30), (1, 5), (2, 21), (9, 30))
    assert builder.bucket(plan)[1] == builder.size.width == 29  # no more children than nodes


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
    defaults = {"depth": 2, "draft_top_k": 4, "total_nodes": 5, "depth_range": (0, 3), "l_k": 1}

    def prepared(name, **options):
        return method(name, **options).resolve(defaults).tree

    sizes = ("eagle-2", None), ("eagle-2", "eagle-2-llamagen"), ("lantern", "eagle-2-llamagen")
    own, *papers = (prepared(name, shape=shape).bounds[:3] for name, shape in sizes)
    assert own == (2, 4, 5)
    assert papers == [(5, 10, 59)] * 2
    anole, llamagen, mine = (
        prepared("adt-tree", **options)
        for options in (
            {"shape": "adt-tree-anole"},
            {"shape": "adt-tree-llamagen"},
            {"depth_range": [1, 3]},
        )
    )
    assert anole.within == AdaptiveBounds(1.0, 1, 3, (0, 10), (3, 14))
    assert llamagen.within == AdaptiveBounds(1.0, 1, 10, (0, 10), (3, 40))
    assert (mine.within.d, mine.within.l_k, mine.bounds.total) == ((1, 3), 1, 5)
    assert method("eagle-2", shape="eagle-2-llamagen").label == "eagle-2 shape=eagle-2-llamagen"
    with pytest.raises(UserError, match=r"of such trees there are eagle-2-llamagen"):
        method("eagle-2", shape="mc_sim_7b_63")
