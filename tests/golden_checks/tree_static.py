"""Static trees: node order, ancestors, depths, paths, and where the reference's lists put children
and siblings.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from golden_checks.common import Found, read, same, worst
from golden_checks.tree_dynamic import leaf_paths
from lanternbench.engine.sampling import Warp
from lanternbench.engine.tree import StaticTree, from_paths
from lanternbench.methods.trees.static import FixedTree, named
from lanternbench.settings import GREEDY


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "tree_static.safetensors")
    by_group: dict[str, list[Found]] = {}
    for name, paths in vectors.meta["trees"].items():
        static = from_paths(tuple(tuple(p) for p in paths))
        for f in compare(name, static, vectors.under(f"out.{name}."), vectors.meta["TOPK"]):
            by_group.setdefault(f.group, []).append(f)
    return [worst(group, found) for group, found in by_group.items()]


def compare(
    name: str, static: StaticTree, want: dict[str, Tensor], candidates: int
) -> list[Found]:
    tree = static.tree
    rows = want["retrieve_indices"].tolist()
    want_paths = {tuple(n for n in row if n >= 0) for row in rows}
    shipped = named().get(name)
    return [
        same("mask", tree.ancestors, want["tree_attn_mask"][0]),
        same("depths", tree.depth[0], want["tree_position_ids"]),
        same("paths to the leaves, as a set", len(leaf_paths(tree) ^ want_paths), 0),
        same(
            "node order: parent's row and rank", indices(static, candidates), want["tree_indices"]
        ),
        same("parents and earlier siblings on every path", family_errors(static, rows, want), 0),
        *growth(static, want, candidates),
        same("the tree of this name that is shipped", _differs(shipped, static), 0),
    ]


def indices(static: StaticTree, candidates: int) -> Tensor:
    """Each node's place in [root, rows of ``candidates`` children per expanded parent, level by
    level].
    """
    place, before = [0], 0
    for level in static.levels:
        place += [
            1 + (before + row) * candidates + rank
            for row, rank in zip(level.rows.tolist(), level.ranks.tolist(), strict=True)
        ]
        before += len(level.parents)
    return torch.tensor(place)


def family_errors(static: StaticTree, rows: list[list[int]], want: dict[str, Tensor]) -> int:
    """How many path entries name another parent row or other earlier siblings than ours."""
    row_of, siblings = {}, {}
    for depth, level in enumerate(static.levels, 1):
        node = static.tree.depth[0].tolist().index(depth)
        for row, width in enumerate(level.rows.bincount().tolist()):
            family = list(range(node, node + width))
            for rank, child in enumerate(family):
                row_of[child], siblings[child] = row, family[:rank]
            node += width
    wrong = 0
    for leaf, path in enumerate(rows):
        for depth, node in enumerate(path):
            if node > 0:
                earlier = [s for s in want["b_indices"][leaf, depth].tolist() if s >= 0]
                wrong += (
                    want["p_indices"][leaf, depth] != row_of[node] or earlier != siblings[node]
                )
    return int(wrong)


class Ranks:
    """A drafter whose r-th likeliest token is r, and which notes what it was asked to expand."""

    def __init__(self, vocab: int):
        self.logits = -torch.arange(vocab).float()
        # ranks, parents' places, who sees whom
        self.asked: list[tuple[list[int], list[int], Tensor]] = []
        self.seen = 0

    def expand(self, tokens: Tensor, parent: Any, visible: Tensor | None, depth: int) -> Tensor:
        n = tokens.shape[1]
        if depth == 0:
            return self.logits.expand(1, n, -1)
        self.seen += n
        mask = torch.ones(1, n, self.seen) if visible is None else visible.isfinite()
        self.asked.append(
            (tokens[0].tolist(), [0] * n if parent is None else parent.tolist(), mask)
        )
        return self.logits.expand(1, n, -1)


def at_root(root: Tensor, warp: Warp) -> Any:
    """As much of a decode's state as a tree policy reads; root [1]."""
    return SimpleNamespace(
        now=SimpleNamespace(root=root),
        target=SimpleNamespace(vocab=1 << 20),
        warp=warp,
        drawn_after=lambda p, depth: p,
    )


def growth(static: StaticTree, want: dict[str, Tensor], candidates: int) -> list[Found]:
    """Which nodes are expanded at each level, how many from each parent, and what the drafter lets
    them see.

    The record numbers parents among those with inner children, which is not their row where an
    earlier parent of the level has only leaves: ranks and families are compared, not that number.
    """
    drafter = Ranks(candidates)
    builder = FixedTree.of(static, True, torch.device("cpu"))
    state = at_root(torch.zeros(1, dtype=torch.long), Warp(GREEDY))
    builder.grow(state, builder.begin(state), drafter.expand, torch.zeros(1, 0))
    found = []
    for level, (ranks, parents, mask) in enumerate(drafter.asked):
        repeats = [parents.count(p) for p in sorted(set(parents))]
        found += [
            same("drafter levels", mask, want[f"drafter.{level}.attn_mask"][0]),
            same("drafter levels", ranks, want[f"drafter.{level}.tree_indices"] % candidates),
            same("drafter levels", repeats, want[f"drafter.{level}.repeat_nums"]),
        ]
    return found


def _differs(shipped: tuple | None, static: StaticTree) -> int:
    return (
        0
        if shipped is None
        else int(not torch.equal(from_paths(shipped).tree.children, static.tree.children))
    )
