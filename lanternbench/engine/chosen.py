"""Verification of children that were chosen (p counts as 1), of a lone root, and at temperature 0.

B batch, N nodes, V vocabulary, W widest family, D depth of the tree.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.relaxed import Residual, TokenTest
from lanternbench.engine.sampling import draw, draw_each, normalised, rows_at
from lanternbench.engine.tree import Draft, Tree, VerifyResult, parents, path_to, walk


class Siblings(NamedTuple):
    """The children of one rank, [B, N] each, or of all ranks, [B, N, W] each."""

    exists: Tensor
    tokens: Tensor  # the root's where there is no child
    u: Tensor

    @classmethod
    def of(cls, draft: Draft, u: Tensor) -> "Siblings":
        """Return all children; u [B, N]."""
        children = draft.tree.children.expand(len(u), -1, -1)
        exists = children >= 0
        ids = children.clamp(min=0)
        flat_ids = ids.flatten(1)
        tokens = draft.tokens.gather(1, flat_ids).view_as(ids)
        uniforms = u.gather(1, flat_ids).view_as(ids)
        return cls(exists, tokens, uniforms)

    def by_rank(self) -> Iterator["Siblings"]:
        """Yield the first children, the second children, …"""
        parts = [part.unbind(-1) for part in self]
        return map(Siblings, *parts)


def closed_form(draft: Draft, q: Tensor, u: Tensor) -> VerifyResult:
    """Verify by the exact rule with its standard residual.

    Child j is accepted with probability q(x_j) / (1 − Σ_{i<j} q(x_i)).
    """
    tree = draft.tree
    children = Siblings.of(draft, u)
    exists = children.exists
    q_child = q.gather(-1, children.tokens)
    q_child = torch.where(exists, q_child, 0.0)
    q_elders = q_child.cumsum(-1) - q_child
    left = 1.0 - q_elders
    passed = exists & (children.u * left < q_child)
    path, accepted, tried = walk(tree, exists, passed)
    stop = path[:, -1]
    weights = without_children(rows_at(q, stop), children, stop)
    token = draw(weights, u[:, 0])
    return VerifyResult(path, accepted, token, tried)


def without_children(q: Tensor, children: Siblings, stop: Tensor) -> Tensor:
    """Return q [B, V] without the children of the nodes ``stop`` [B], or q if nothing remains."""
    vocab = q.shape[-1]
    # [B, W]; absent children strike a spare cell
    cells = torch.where(children.exists, children.tokens, vocab)
    struck = rows_at(cells, stop)
    with_spare = F.pad(q, (0, 1))
    weights = with_spare.scatter(-1, struck, 0.0)[:, :vocab]
    remains = weights.sum(-1, keepdim=True) > 0
    return torch.where(remains, weights, q)


def rank_by_rank(
    test: TokenTest,
    draft: Draft,
    q: Tensor,
    u: Tensor,
    residual: Residual,
) -> VerifyResult:
    """Verify by any rule and residual: first children everywhere, then second children, …"""
    tree = draft.tree
    families = Siblings.of(draft, u)
    depth = tree.depth.expand(len(q), -1) + 1
    depth = depth.clamp(0, tree.max_depth)
    q_left = q
    passed = []
    for siblings in families.by_rank():
        exists = siblings.exists
        relaxed = test.relax(q_left, siblings.tokens, depth)
        passed.append(exists & (siblings.u < relaxed.value))
        weights = residual.weights(q_left, None, siblings.tokens, depth, test)
        after = normalised(weights, q_left)
        q_left = torch.where(exists[..., None], after, q_left)
    path, accepted, tried = walk(tree, families.exists, torch.stack(passed, -1))
    stop = path[:, -1]
    token = draw(rows_at(q_left, stop), u[:, 0])
    return VerifyResult(path, accepted, token, tried)


def lone_root(draft: Draft, q: Tensor, u: Tensor, greedy: bool) -> VerifyResult:
    """Return the target's own token, because nothing was drafted."""
    zero = torch.zeros_like(draft.tokens)
    q_root = q[:, 0]
    token = q_root.argmax(-1) if greedy else draw_each(q_root, u.narrow(1, 0, 1)).squeeze(1)
    return VerifyResult(zero, zero.squeeze(1), token, zero)


def verify_greedy(test: TokenTest, draft: Draft, q: Tensor) -> VerifyResult:
    """Verify at temperature 0; of several accepted paths the longest counts."""
    tree = draft.tree
    best = q.argmax(-1)  # [B, N]
    parent = parents(tree)
    known_parent = parent.clamp(min=0).expand_as(best)
    passed = test.accept_greedily(q, best, known_parent, draft) & (parent >= 0)
    path, accepted, last = longest_path(tree, passed, test.order_greedily(draft))
    token = best.gather(1, last[:, None])
    return VerifyResult(path, accepted, token[:, 0], torch.zeros_like(best))


def longest_path(
    tree: Tree, passed: Tensor, order: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the longest path from the root, its length, and its last node.

    All nodes of the path but the root have ``passed`` [B, N].  order [b, N]: of equally long paths
    the one with the lowest value counts; None: the one whose last node has the lowest number.
    """
    failed_ancestors = tree.ancestors & ~passed[:, None, :]
    reached = failed_ancestors.sum(-1) == 1  # the root alone
    depth = torch.where(reached, tree.depth.expand_as(passed), -1)
    priority = depth * (passed.shape[1] + 1)
    if order is not None:
        priority = priority - order
    last = priority.argmax(1)
    length = depth.gather(1, last[:, None])
    return path_to(tree, last), length[:, 0], last
