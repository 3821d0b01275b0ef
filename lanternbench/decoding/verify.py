"""Verification of a draft tree: all nodes at once, on the device, no synchronisation.

One rule for every tree (DESIGN: sequential speculative sampling over siblings).  At a node, children are tried in
draft order; child j is accepted with probability min(1, q̃(x_j)/p(x_j)); after a rejection q becomes the residual and
p loses x_j.  If none is accepted the step ends with a token of the last residual; at a leaf, with a bonus token of q.

B batch, N nodes, M inner nodes, V vocabulary, D depth of the tree.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.decoding.acceptance import Exact, Lantern, Residual, Rule, at, lantern, normalised
from lanternbench.decoding.sampling import draw
from lanternbench.decoding.trees import StaticTree, Tree, inner_index


class Draft(NamedTuple):
    """What a proposal hands to verification."""

    tokens: Tensor  # [B, N], node 0 = the last committed token
    tree: Tree
    p: Tensor | None = None  # [B, M, V] distributions that the children of the inner nodes were drawn from
    static: StaticTree | None = None  # set when all rows share a tree whose shape is data

    @property
    def is_chain(self) -> bool:
        """Is it one chain in every row, so that a node's id is its depth?  A lone root is."""
        return self.tree.nodes == 1 or (self.static is not None and self.static.is_chain)


class Verdict(NamedTuple):
    path: Tensor  # [B, D + 1] node ids from the root; entries past ``accepted`` repeat the last one
    accepted: Tensor  # [B] drafted tokens accepted, 0 … D
    token: Tensor  # [B] the residual or bonus token
    tried: Tensor  # [B, N] children of each node that were examined if it was reached


def verify(draft: Draft, q: Tensor, u: Tensor, rule: Rule, residual: Residual) -> Verdict:
    """Sampled verification: q [B, N, V], uniforms u [B, N] (u[:, 0] draws the final token)."""
    if draft.p is not None and draft.static is not None:
        return _sampled(draft, draft.static, draft.p, q, u, rule, residual)
    if isinstance(rule, Exact):
        return _chosen_exactly(draft, q, u)
    if isinstance(rule, Lantern) and residual is lantern:
        return _chosen_by_groups(draft, q, u, rule)
    return _chosen(draft, q, u, rule, residual)


def verify_greedy(draft: Draft, q: Tensor, rule: Rule) -> Verdict:
    """Temperature 0: x is accepted iff it is the argmax of q̃(·|x); of several accepted paths the longest counts."""
    tree, tokens = draft.tree, draft.tokens
    best = q.argmax(-1)  # [B, N]
    parent = parents(tree)
    at_parent = parent.clamp(min=0).expand_as(tokens)
    if rule.lossless or not hasattr(rule, "near"):
        ok = tokens == best.gather(1, at_parent)
    else:
        rows = rows_at(q, at_parent)  # q at each node's parent
        mass = rule(rows, tokens, tree.depth.expand_as(tokens))
        assert mass.group is not None
        assert mass.taken is not None
        if not getattr(rule, "inclusive", False):  # the reference leaves the group's own mass in place
            rows = rows.scatter(-1, mass.group, torch.where(mass.taken, 0.0, rows.gather(-1, mass.group)))
        ok = mass.value >= rows.scatter(-1, tokens[..., None], 0.0).amax(-1)
    ok = ok & (parent >= 0)
    reached = (tree.ancestors & ~ok[:, None, :]).sum(-1) == 1  # every ancestor but the root accepted
    reached[:, 0] = True
    depth = torch.where(reached, tree.depth.expand_as(tokens), -1)
    rank = depth * (tree.nodes + 1)
    if getattr(rule, "inclusive", False) and draft.static is None:
        rank = rank - first_leaf(tree)  # the reference goes through a dynamic tree's leaves
    last = rank.argmax(1)  # the deepest, first in node order
    accepted = depth.gather(1, last[:, None])[:, 0]
    path = path_to(tree, last)
    return Verdict(path, accepted, best.gather(1, last[:, None])[:, 0], torch.zeros_like(tokens))


def parents(tree: Tree) -> Tensor:
    """[b, N] parent of each node, −1 for the root and for unused nodes."""
    b, n, w = tree.children.shape
    parent = torch.full((b, n + 1), -1, device=tree.children.device)
    owner = torch.arange(n, device=parent.device)[None, :, None].expand(b, n, w)
    slot = torch.where(tree.children >= 0, tree.children, n)
    return parent.scatter_(1, slot.flatten(1), owner.flatten(1))[:, :-1]


def first_leaf(tree: Tree) -> Tensor:
    """[b, N] the lowest leaf at or below each node."""
    ids = torch.arange(tree.nodes, device=tree.depth.device)
    leaf = (tree.children < 0).all(-1) & (tree.depth >= 0)
    below = tree.ancestors.mT & leaf[:, None]  # [b, N, N] leaf j at or below node i
    return torch.where(below, ids, tree.nodes).amin(-1)


def path_to(tree: Tree, last: Tensor) -> Tensor:
    """The nodes from the root to ``last`` [B], padded with ``last``: [B, D + 1]."""
    rows = tree.ancestors.expand(len(last), -1, -1)
    seen = rows.gather(1, last[:, None, None].expand(-1, 1, rows.shape[-1]))[:, 0]  # [B, N]
    depth = torch.where(seen, tree.depth.expand_as(seen), -1)
    at_depth = depth[:, None] == torch.arange(tree.max_depth + 1, device=last.device)[:, None]  # [B, D + 1, N]
    return torch.where(at_depth.any(-1), at_depth.int().argmax(-1), last[:, None])


def _walk(tree: Tree, ok: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ok [B, N] accepted if tried -> path [B, D + 1], accepted [B], tried [B, N]."""
    exists = tree.children >= 0  # [b, N, W]
    flags = ok.gather(1, tree.children.clamp(min=0).flatten(1).expand(len(ok), -1)).view(len(ok), *exists.shape[1:])
    flags = flags & exists
    first = flags.int().argmax(-1)  # the first accepted child
    some = flags.any(-1)
    chosen = tree.children.expand_as(flags).gather(-1, first[..., None])[..., 0]
    follow = torch.where(some, chosen, -1)  # [B, N]
    tried = torch.where(some, first + 1, exists.sum(-1))
    node = torch.zeros(len(ok), 1, dtype=torch.long, device=ok.device)
    path, accepted = [node], torch.zeros_like(node)
    for _ in range(tree.max_depth):
        after = follow.gather(1, node)
        accepted = accepted + (after >= 0)
        node = torch.where(after >= 0, after, node)
        path.append(node)
    return torch.cat(path, 1), accepted[:, 0], tried


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """x [B, M, V], index [B] or [B, n] -> [B, V] or [B, n, V]: whole rows, which a gather would copy item by item."""
    b, m, v = x.shape
    if b > 1:
        index = index + torch.arange(0, b * m, m, device=x.device).view(-1, *[1] * (index.ndim - 1))
    return x.flatten(0, 1).index_select(0, index.flatten()).view(*index.shape, v)


def _sampled(
    draft: Draft, static: StaticTree, p: Tensor, q: Tensor, u: Tensor, rule: Rule, residual: Residual
) -> Verdict:
    """Children sampled without replacement from p, in a static tree."""
    if static.is_chain:
        return _sampled_chain(draft, static, p, q, u, rule, residual)
    tokens, tree, inner = draft.tokens, draft.tree, static.inner
    ok = torch.zeros_like(tokens, dtype=torch.bool)
    # by rank; what comes back is the state before each node's last child
    q_now, p_now, last_child = _by_rank(static, ok, tokens, tree, q[:, list(inner)], p, u, rule, residual)
    path, accepted, tried = _walk(tree, ok)
    stop = path[:, -1]
    index = inner_index(inner, tree.nodes, q.device)[stop]  # −1 at a leaf
    leaf, index = index < 0, index.clamp(min=0)
    depth = (tree.depth.expand_as(tokens).gather(1, stop[:, None])[:, 0] + 1).clamp(max=tree.max_depth)
    x = last_child.gather(1, index[:, None])[:, 0]
    rest = _after_rejection(rows_at(q_now, index), rows_at(p_now, index), x, depth, rule, residual)
    final = torch.where(leaf[:, None], rows_at(q, stop), rest)
    return Verdict(path, accepted, draw(final, u[:, 0]), tried)


def _sampled_chain(
    draft: Draft, static: StaticTree, p: Tensor, q: Tensor, u: Tensor, rule: Rule, residual: Residual
) -> Verdict:
    """A tree of width 1: accept from the left until the first rejection."""
    tokens, depth = draft.tokens, draft.tree.depth
    x, length = tokens[:, 1:], tokens.shape[1] - 1
    ok = _accept(rule, q[:, :-1], p, x, depth[:, 1:], u[:, 1:])
    accepted = ok.cumprod(1).sum(1)  # [B] 0 … L
    rejected = accepted.clamp(max=length - 1)  # the place of the first rejection, if there is one
    q_stop = rows_at(q, accepted)
    x_stop = x.gather(1, rejected[:, None])[:, 0]
    rest = _after_rejection(q_stop, rows_at(p, rejected), x_stop, rejected + 1, rule, residual)
    final = torch.where((accepted == length)[:, None], q_stop, rest)
    path = torch.minimum(depth, accepted[:, None])  # in a chain a node's id is its depth
    return Verdict(path, accepted, draw(final, u[:, 0]), static.sizes.expand_as(tokens))


def _after_rejection(q: Tensor, p: Tensor, x: Tensor, depth: Tensor, rule: Rule, residual: Residual) -> Tensor:
    """What the token that ends a step is drawn from, [B, V] of any scale, if the last child x [B] was rejected."""
    rest = residual(q, p, x, depth, rule)
    whole = (at(p, x) == 0) | (rest.sum(-1) == 0)  # a child that p cannot draw changes nothing; or nothing is left
    return torch.where(whole[:, None], q, rest)


def _accept(rule: Rule, q: Tensor, p: Tensor, x: Tensor, depth: Tensor, u: Tensor) -> Tensor:
    """u < min(1, q̃(x)/p(x)), written without the division; p(x) = 0 never accepts."""
    px = at(p, x)
    return (u * px < rule(q, x, depth.expand_as(x)).value) & (px > 0)


def _by_rank(static, ok, tokens, tree, q, p, u, rule, residual):
    """Try first children everywhere, then second children, …; returns the state before each node's last child."""
    families = static.families
    last_child = tokens[:, [family[0] for family in families]]
    for j in range(tree.width):
        rows = [m for m, family in enumerate(families) if len(family) > j]
        nodes = [families[m][j] for m in rows]
        depth = tree.depth[:, nodes].expand(len(tokens), -1)
        x = tokens[:, nodes]
        q_j, p_j = q[:, rows], p[:, rows]
        if j:
            before = last_child[:, rows]
            drawn = (at(p_j, before) > 0)[..., None]
            q_j = torch.where(drawn, normalised(residual(q_j, p_j, before, depth, rule), q_j), q_j)
            p_left = p_j.scatter(-1, before[..., None], 0.0)
            p_j = normalised(p_left, torch.zeros_like(p_left))
            q[:, rows], last_child[:, rows] = q_j, x
            p = p.clone() if j == 1 else p
            p[:, rows] = p_j
        ok[:, nodes] = _accept(rule, q_j, p_j, x, depth, u[:, nodes])
    return q, p, last_child


def _chosen_exactly(draft: Draft, q: Tensor, u: Tensor) -> Verdict:
    """Top-k children under the exact rule: a_j = q(x_j) / (1 − Σ_{i<j} q(x_i)), in closed form."""
    tokens, tree = draft.tokens, draft.tree
    b, n, w = len(tokens), tree.nodes, tree.width
    children = tree.children.expand(b, -1, -1)
    exists = children >= 0
    x = tokens.gather(1, children.clamp(min=0).flatten(1)).view(b, n, w)
    qx = torch.where(exists, q.gather(-1, x), 0.0)
    left = 1.0 - (qx.cumsum(-1) - qx)
    u_child = u.gather(1, children.clamp(min=0).flatten(1)).view(b, n, w)
    ok_child = exists & (u_child * left < qx)
    ok = torch.zeros(b, n + 1, dtype=torch.bool, device=q.device)
    ok.scatter_(1, torch.where(exists, children, n).flatten(1), ok_child.flatten(1))
    path, accepted, tried = _walk(tree, ok[:, :-1])
    stop = path[:, -1]
    q_stop = rows_at(q, stop)
    rejected, named = rows_at(x, stop), rows_at(exists, stop)  # [B, W]
    struck = torch.where(named, rejected, q.shape[-1])  # absent children strike a spare cell
    rest = torch.nn.functional.pad(q_stop, (0, 1)).scatter(-1, struck, 0.0)[:, :-1]
    return Verdict(path, accepted, draw(normalised(rest, q_stop), u[:, 0]), tried)


def _chosen(draft: Draft, q: Tensor, u: Tensor, rule: Rule, residual: Residual) -> Verdict:
    """Top-k children under a relaxed rule: rank by rank, every node at once."""
    tokens, tree = draft.tokens, draft.tree
    children = tree.children.expand(len(tokens), -1, -1)
    exists = children >= 0
    q_now = q
    ok = torch.zeros(len(tokens), tree.nodes + 1, dtype=torch.bool, device=q.device)
    for j in range(tree.width):
        child = children[..., j].clamp(min=0)
        x, here = tokens.gather(1, child), exists[..., j]
        depth = (tree.depth.expand_as(x) + 1).clamp(0, tree.max_depth)
        accept = u.gather(1, child) < rule(q_now, x, depth).value
        ok.scatter_(1, torch.where(here, child, tree.nodes), accept & here)
        rest = normalised(residual(q_now, None, x, depth, rule), q_now)
        q_now = torch.where(here[..., None], rest, q_now)
    path, accepted, tried = _walk(tree, ok[:, :-1])
    return Verdict(path, accepted, draw(rows_at(q_now, path[:, -1]), u[:, 0]), tried)


def _chosen_by_groups(draft: Draft, q: Tensor, u: Tensor, rule: Lantern) -> Verdict:
    """``_chosen`` under LANTERN's rule and residual, at a cost in k and not in V.

    A chosen child that is rejected takes its group out of q (eq. 7 with p = 1 at x).  So q is never rewritten: members
    are set to 0 in place, and the mass and the number of tokens that are left say how to scale it.  Nodes are sorted by
    their number of children, as no more than (N − 1) / j of them can have a j-th.
    """
    tokens, tree = draft.tokens, draft.tree
    b, n, _ = q.shape
    children = tree.children.expand(b, -1, -1)
    order = (children >= 0).sum(-1).argsort(-1, descending=True)  # [B, N] node ids
    children, q_left = rows_at(children, order), rows_at(q, order)
    mass, support = q_left.sum(-1, dtype=torch.float64), q_left.sign().sum(-1)
    ok = torch.zeros(b, n + 1, dtype=torch.bool, device=q.device)
    for j in range(tree.width):
        most = (n - 1) // (j + 1)
        child, rows = children[:, :most, j], q_left[:, :most]
        here, child = child >= 0, child.clamp(min=0)
        group = rule.near[tokens.gather(1, child)]  # [B, most, k]
        left = rows.gather(-1, group)
        taken = rule.taken(left / mass[:, :most, None].to(q.dtype))
        gone = torch.where(taken, left, 0.0)
        moved = gone.sum(-1, dtype=torch.float64)
        accept = (u.gather(1, child) * mass[:, :most] < moved) & here
        ok.scatter_(1, torch.where(here, child, n), accept)
        remain = support[:, :most] - gone.sign().sum(-1)
        drop = here & (remain > 0)  # where nothing would remain, q stays as it was
        rows.scatter_(-1, group, torch.where(taken & drop[..., None], 0.0, left))
        mass[:, :most] -= torch.where(drop, moved, 0.0)
        support[:, :most] = torch.where(drop, remain, support[:, :most])
    path, accepted, tried = _walk(tree, ok[:, :-1])
    stop = (order == path[:, -1:]).int().argmax(-1)
    return Verdict(path, accepted, draw(rows_at(q_left, stop), u[:, 0]), tried)
