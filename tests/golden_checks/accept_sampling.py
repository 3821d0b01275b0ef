"""Acceptance and residuals with recorded uniforms: how far a walk gets, what it uses, what is
sampled at its end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rules import EXACT, lantern
from torch import Tensor

from golden_checks.common import Found, Vectors, close, read, same, worst
from lanternbench.engine import chosen, verify
from lanternbench.engine.sampling import Warp
from lanternbench.engine.tree import Draft, VerifyResult
from lanternbench.engine.verify import RatioTest, Residual, Uniforms
from lanternbench.methods.acceptance.lantern import nearest
from lanternbench.methods.residuals import lantern_reference, standard
from lanternbench.methods.trees.static import static_tree
from lanternbench.settings import Sampling


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "accept_sampling.safetensors")
    by_group: dict[str, list[Found]] = {}
    for case in vectors.meta["cases"]:
        for f in compare(vectors, case):
            by_group.setdefault(f"{case['kind']}: {f.group}", []).append(
                f._replace(group=case["name"])
            )
    found = []
    for group, all_of in by_group.items():
        failed = [f.group for f in all_of if not f.passed]
        found.append(worst(f"{group}{' FAILED ' + ' '.join(failed) if failed else ''}", all_of))
    return found


def compare(vectors: Vectors, case: dict[str, Any]) -> list[Found]:
    given, want = vectors.under(f"in.{case['name']}."), vectors.under(f"out.{case['name']}.")
    draft, q = recorded_draft(case, given)
    rule = rule_of(case, vectors["in.codebook"])
    residual = lantern_reference if case["lantern"] else standard
    result, final = walk(draft, q, given["uniforms"], rule, residual)
    row = given["retrieve_indices"][int(want["best_candidate"])].long()
    accepted = int(want["accept_length"])
    used = int(result.tried[0, result.path[0, : int(result.accepted[0]) + 1]].sum())
    return [
        same("accepted", result.accepted[0], accepted),
        same("path", result.path[0, : accepted + 1], row[: accepted + 1]),
        same("uniforms used", used, want["uniforms_used"]),
        close("distribution of the last token", final, want["sample_p"]),
    ]


def recorded_draft(case: dict[str, Any], given: dict[str, Tensor]) -> tuple[Draft, Tensor]:
    """The tree with its tokens, and q [1, N, V]."""
    static = static_tree(case["tree"])
    at = given["retrieve_indices"].long()  # [leaves, depth] nodes
    tokens = torch.zeros(1, static.tree.nodes, dtype=torch.long)
    tokens[0, at[at >= 0]] = given["candidates"].long()[at >= 0]
    q = Warp(Sampling(**case["logits_processor"]))(given["node_logits"])[None]
    if case["kind"] == "dynamic":  # children were chosen: p is 1 at each
        return Draft(tokens, grown=static.tree), q
    levels = sorted((k for k in given if k.startswith("op.")), key=lambda k: int(k[3:]))
    p = torch.cat([given[k] for k in levels])  # a row per expanded node, level by level
    return Draft(tokens, p[None, : len(static.inner_ids)], static), q


def rule_of(case: dict[str, Any], codebook: Tensor) -> RatioTest:
    """The reference's k leaves out the token itself; its δ above 1 is LANTERN++'s λ."""
    if not case["lantern"]:
        return EXACT
    bound = "multiplicative" if case["lantern_delta"] > 1 else "tvd"
    table = nearest(codebook, case["lantern_k"] + 2)
    return lantern(table[:, : case["lantern_k"] + 1], bound, case["lantern_delta"], table)


def walk(
    draft: Draft, q: Tensor, uniforms: Tensor, rule: RatioTest, residual: Residual
) -> tuple[VerifyResult, Tensor]:
    """Verify with the uniforms in the order in which a sequential walk consumes them.

    Verification takes a uniform per node, so they are dealt to the children of the node that the
    walk has reached, once per depth.  Returns the result and the distribution [V] that its last
    token is drawn from.
    """
    u = torch.zeros(1, draft.tree.nodes, dtype=torch.float64)
    drawn: list[Tensor] = []

    def recording(weights: Tensor, level: Tensor) -> Tensor:
        drawn.append(weights)
        return weights.argmax(-1)

    def recording_each(weights: Tensor, levels: Tensor) -> Tensor:
        return recording(weights, levels)[:, None]

    node, used = 0, 0
    with (
        patch.object(verify, "draw_each", recording_each),
        patch.object(chosen, "draw", recording),
    ):
        while True:
            children = [c for c in draft.tree.children[0, node].tolist() if c >= 0]
            u[0, children] = uniforms[used : used + len(children)]
            result = rule.verify(draft, q.clone(), Uniforms(u, u[:, :0]), residual, greedy=False)
            depth = int(draft.tree.depth[0, node])
            used += int(result.tried[0, node])
            if int(result.accepted[0]) <= depth:
                return result, drawn[-1][0] / drawn[-1][0].sum()
            node = int(result.path[0, depth + 1])
