"""Verification of children that were chosen, so that p is 1 there, of a lone root, and of any tree
at temperature 0.

B batch, N nodes, V vocabulary, W widest family, D depth of the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.draft import Draft, Tree, VerifyResult, walk
from lanternbench.engine.sampling import draw, normalised, rows_at
from lanternbench.engine.tree import parents, path_to

if TYPE_CHECKING:
    from lanternbench.engine.verify import AcceptanceRule, Residual


class Families(NamedTuple):
    """The children of every node, [B, N, W] each."""

    exists: Tensor
    tokens: Tensor  # the root's where there is none
    u: Tensor
    cell: Tensor  # the child's id; N, a spare cell of N + 1, where there is none

    @classmethod
    def of(cls, children: Tensor, draft: Draft, u: Tensor) -> Families:
        exists, ids = children >= 0, children.clamp(min=0)
        tokens, u = (x.gather(1, ids.flatten(1)).view_as(ids) for x in (draft.tokens, u))
        return cls(exists, tokens, u, torch.where(exists, ids, draft.tree.nodes))


def closed_form(
    rule: AcceptanceRule, draft: Draft, q: Tensor, u: Tensor, residual: Residual
) -> VerifyResult:
    """Of chosen children: a_j = q(x_j) / (1 − Σ_{i<j} q(x_i))."""
    tree, vocab = draft.tree, q.shape[-1]
    exists, x, u_child, _ = Families.of(tree.children.expand(len(q), -1, -1), draft, u)
    qx = torch.where(exists, q.gather(-1, x), 0.0)
    left = 1.0 - (qx.cumsum(-1) - qx)
    path, accepted, tried = walk(tree, exists, exists & (u_child * left < qx))
    stop = path[:, -1]
    q_stop = rows_at(q, stop)
    # [B, W]; absent children strike a spare cell
    struck = rows_at(torch.where(exists, x, vocab), stop)
    weights = F.pad(q_stop, (0, 1)).scatter(-1, struck, 0.0)[:, :vocab]
    final = torch.where(weights.sum(-1, keepdim=True) > 0, weights, q_stop)
    return VerifyResult(path, accepted, draw(final, u[:, 0]), tried)


def rank_by_rank(
    rule: AcceptanceRule, draft: Draft, q: Tensor, u: Tensor, residual: Residual
) -> VerifyResult:
    """The general form of ``verify_chosen``."""
    tree = draft.tree
    family = Families.of(tree.children.expand(len(q), -1, -1), draft, u)
    depth = (tree.depth.expand(len(q), -1) + 1).clamp(0, tree.max_depth)
    q_now, accept = q, []
    for exists, x, u_child, _ in zip(*(part.unbind(-1) for part in family), strict=True):
        accept.append(exists & (u_child < rule.relax(q_now, x, depth).value))
        weights = normalised(residual(q_now, None, x, depth, rule), q_now)
        q_now = torch.where(exists[..., None], weights, q_now)
    path, accepted, tried = walk(tree, family.exists, torch.stack(accept, -1))
    return VerifyResult(path, accepted, draw(rows_at(q_now, path[:, -1]), u[:, 0]), tried)


def lone_root(draft: Draft, q: Tensor, u: Tensor, greedy: bool) -> VerifyResult:
    """Nothing was drafted: the next token is the target's."""
    zero = torch.zeros_like(draft.tokens)
    return VerifyResult(
        zero, zero[:, 0], q[:, 0].argmax(-1) if greedy else draw(q[:, 0], u[:, 0]), zero
    )


def is_argmax(
    rule: AcceptanceRule, q: Tensor, best: Tensor, parent: Tensor, draft: Draft
) -> Tensor:
    """``accept_greedily`` of a rule that orders tokens as q does."""
    return draft.tokens == best.gather(1, parent)


def verify_greedy(rule: AcceptanceRule, draft: Draft, q: Tensor) -> VerifyResult:
    """Temperature 0; of several accepted paths the longest counts."""
    tree, best = draft.tree, q.argmax(-1)  # [B, N]
    parent = parents(tree)
    ok = rule.accept_greedily(q, best, parent.clamp(min=0).expand_as(best), draft) & (parent >= 0)
    path, accepted, last = longest_path(tree, ok, rule.order_greedily(draft))
    return VerifyResult(
        path, accepted, best.gather(1, last[:, None])[:, 0], torch.zeros_like(best)
    )


def longest_path(
    tree: Tree, ok: Tensor, order: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The longest path from the root whose other nodes are all ``ok`` [B, N]: path, accepted, last
    node [B].

    order [b, N]: of equally long ones the lowest value counts; None: the last node's number.
    """
    # every ancestor but the root accepted
    reached = (tree.ancestors & ~ok[:, None, :]).sum(-1) == 1
    depth = torch.where(reached, tree.depth.expand_as(ok), -1)
    rank = depth * (ok.shape[1] + 1)
    last = (rank if order is None else rank - order).argmax(1)
    return path_to(tree, last), depth.gather(1, last[:, None])[:, 0], last
