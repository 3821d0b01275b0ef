"""EAGLE-2's trees, grown by our policy with our drafter at the start and after a step: tokens,
mask, depths, paths.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden_checks.common import Found, Vectors, read, same, worst
from golden_checks.drafting import Recorded
from lanternbench.engine.sampling import Warp
from lanternbench.engine.tree import Draft, Tree
from lanternbench.methods.trees.dynamic import Bounds, grow_by_confidence
from lanternbench.settings import GREEDY, Sampling


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "tree_dynamic.safetensors")
    by_group: dict[str, list[Found]] = {}
    for i, case in enumerate(vectors.meta["cases"]):
        for call, draft in enumerate(drafts(vectors, case), 1):
            want = vectors.under(f"out.c{i}.call{call}.")
            for f in compare(draft, want):
                by_group.setdefault(f.group, []).append(f)
    return [worst(group, found) for group, found in by_group.items()]


def drafts(vectors: Vectors, case: dict[str, Any]) -> list[Draft]:
    """The trees of both calls.  The reference's ``depth`` counts the levels after the first."""
    depth, top_k, total = case["depth"] + 1, case["top_k"], case["total_tokens"]
    processor = case["logits_processor"]
    warp = Warp(GREEDY) if processor is None else Warp(Sampling(**processor))
    ids1, ids2 = vectors["in.input_ids1"][0], vectors["in.input_ids2"][0]
    bounds = Bounds(depth, top_k, total)
    at = Recorded(vectors, vectors["in.hidden1"], ids1[-1], total + top_k * depth, warp)
    first = grow_by_confidence(at.state, at.drafter.expander(at.state, at.own), bounds)
    at.commit(vectors["in.hidden2"], ids2[None, len(ids1) :])
    second = grow_by_confidence(at.state, at.drafter.expander(at.state, at.own), bounds)
    return [first, second]


def compare(draft: Draft, want: dict[str, Tensor]) -> list[Found]:
    want_paths = {tuple(n for n in row if n >= 0) for row in want["retrieve_indices"].tolist()}
    return [
        same("draft tokens", draft.tokens, want["draft_tokens"]),
        same("tree mask", draft.tree.ancestors, want["tree_mask"][0]),
        same("positions", draft.tree.depth[0], want["tree_position_ids"]),
        same("paths to the leaves, as a set", len(leaf_paths(draft.tree) ^ want_paths), 0),
    ]


def leaf_paths(tree: Tree) -> set[tuple[int, ...]]:
    """The nodes from the root to each leaf."""
    ancestors, depth = tree.ancestors[0], tree.depth[0]
    leaves = torch.where((tree.children[0] < 0).all(-1) & (depth >= 0))[0]
    rows = [torch.where(ancestors[leaf])[0] for leaf in leaves]
    return {tuple(row[depth[row].argsort()].tolist()) for row in rows}
