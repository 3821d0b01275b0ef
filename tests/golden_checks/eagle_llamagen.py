"""The EAGLE drafter: prefix, incremental step with its cache, and two levels of a tree."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from golden_checks.common import Found, close, read
from golden_checks.drafting import Recorded, grid_of
from lanternbench.engine.cache import additive
from lanternbench.models.transformer import rope_2d


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "eagle_llamagen.safetensors")
    hidden, ids = vectors["in.hidden1"], vectors["in.input_ids1"]
    at = Recorded(vectors, hidden, ids[0, -1], max_nodes=16)
    drafter = at.drafter
    logits = at.root()
    rows = at.state.target.model.output(at.drafter.states)
    grid = grid_of(vectors)
    table = torch.view_as_real(
        rope_2d(grid, grid, drafter.net.config.head_dim, hidden.shape[1] - 1)
    )
    found = [
        close("rotary table", table, vectors["out.freqs_cis_used"][: len(table)]),
        close(
            "prefix: hidden at the last position", at.drafter.states, vectors["out.hidden1"][:, -1]
        ),
        close("prefix: cached keys", at.cache()[0], vectors["out.kv1.key"]),
        close("prefix: cached values", at.cache()[1], vectors["out.kv1.value"]),
        close("prefix: logits", rows, vectors["out.logits1_rows"]),
        close("prefix: logits, guided", logits, vectors["out.logits1_cfg"]),
        close(
            "prefix: hidden everywhere",
            everywhere(at, vectors["in.hidden1"], ids, grid),
            vectors["out.hidden1"],
        ),
    ]
    new = vectors["in.input_ids2"][:1, ids.shape[1] :]
    at.commit(vectors["in.hidden2"], new)
    logits = at.root()
    found += [
        close(
            "step: hidden at the last position", at.drafter.states, vectors["out.hidden2"][:, -1]
        ),
        close("step: cached keys", at.cache()[0], vectors["out.kv2.key"]),
        close("step: cached values", at.cache()[1], vectors["out.kv2.value"]),
        close("step: logits, guided", logits, vectors["out.logits2_cfg"]),
    ]
    tokens, parent = vectors["in.tree_tokens1"][None], vectors["in.tree_parent"][None]
    own = torch.eye(tokens.shape[1], dtype=torch.bool)[None]
    at.expand(tokens, None, additive(own), 1)
    found.append(close("tree, level 1: hidden", at.drafter.states, vectors["out.tree_hidden1"]))
    seen = torch.cat([own[0][parent], own], -1)
    logits = at.expand(vectors["in.tree_tokens2"][None], parent, additive(seen), 2)
    return [
        *found,
        close("tree, level 2: mask", seen.float(), vectors["out.tree_mask2"][0]),
        close("tree, level 2: hidden", at.drafter.states, vectors["out.tree_hidden2"]),
        close("tree, level 2: logits, guided", logits[0], vectors["out.tree_logits2_cfg"]),
    ]


def everywhere(at: Recorded, hidden: Tensor, ids: Tensor, grid: int) -> Tensor:
    """The drafter over a whole prefix in one pass, no cache: [R, P, dim]."""
    net, model = at.drafter.net, at.state.target.model
    n = ids.shape[1]
    causal = additive(torch.ones(1, 1, n, n, dtype=torch.bool).tril())
    rope = rope_2d(grid, grid, net.config.head_dim, n - 1)
    return net(net.fuse(net.embed(ids, model), hidden), rope[None, :n, None], causal)
