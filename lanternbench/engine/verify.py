"""Verification of a draft tree: all nodes at once, on the device, no synchronisation.

One rule for every tree: sequential speculative sampling over siblings.  At a node, children are tried in
draft order; child j is accepted with probability min(1, q̃(x_j)/p(x_j)); after a rejection q becomes the residual and
p loses x_j.  If none is accepted the step ends with a token of the last residual; at a leaf, with a bonus token of q.

B batch, N nodes, M inner nodes, V vocabulary, D depth of the tree.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.sampling import draw
from lanternbench.engine.tree import StaticTree, Tree, inner_index
from lanternbench.methods.acceptance import Exact, Lantern, Residual, Rule, at, lantern, normalised


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
    """What a verification found."""

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
    if not isinstance(rule, Lantern):
        ok = tokens == best.gather(1, at_parent)
    else:
        rows = rows_at(q, at_parent)  # q at each node's parent
        mass = rule(rows, tokens, tree.depth.expand_as(tokens))
        assert mass.group is not None
        assert mass.taken is not None
        if not rule.inclusive:  # the reference leaves the group's own mass in place
            rows = rows.scatter(-1, mass.group, torch.where(mass.taken, 0.0, rows.gather(-1, mass.group)))
        ok = mass.value >= rows.scatter(-1, tokens[..., None], 0.0).amax(-1)
    ok = ok & (parent >= 0)
    reached = (tree.ancestors & ~ok[:, None, :]).sum(-1) == 1  # every ancestor but the root accepted
    reached[:, 0] = True
    depth = torch.where(reached, tree.depth.expand_as(tokens), -1)
    rank = depth * (tree.nodes + 1)
    if isinstance(rule, Lantern) and rule.inclusive and draft.static is None:
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


class Families(NamedTuple):
    """What belongs to the children of every node, [B, N, W] each."""

    exists: Tensor
    tokens: Tensor  # the root's where there is none
    u: Tensor
    cell: Tensor  # the child's id; N, a spare cell of N + 1, where there is none

    @classmethod
    def of(cls, children: Tensor, draft: Draft, u: Tensor) -> Families:
        exists, ids = children >= 0, children.clamp(min=0)
        tokens, u = (x.gather(1, ids.flatten(1)).view_as(ids) for x in (draft.tokens, u))
        return cls(exists, tokens, u, torch.where(exists, ids, draft.tree.nodes))


def _walk(tree: Tree, exists: Tensor, accept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """accept [B, N, W]: which children are accepted if tried -> path [B, D + 1], accepted [B], tried [B, N]."""
    some, first = accept.any(-1), accept.int().argmax(-1)  # the first accepted child
    chosen = tree.children.expand_as(accept).gather(-1, first[..., None])[..., 0]
    onward = torch.where(some, chosen, torch.arange(tree.nodes, device=accept.device))  # or stay
    path = [torch.zeros_like(onward[:, :1])]
    for _ in range(tree.max_depth):
        path.append(onward.gather(1, path[-1]))
    nodes = torch.cat(path, 1)
    return nodes, (nodes[:, 1:] != nodes[:, :-1]).sum(1), torch.where(some, first + 1, exists.sum(-1))


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
    ok = torch.zeros(len(tokens), tree.nodes + 1, dtype=torch.bool, device=q.device)  # the last cell: no such child
    # by rank; what comes back is the state before each node's last child
    q_now, p_now, last_child = _by_rank(
        static, ok, tokens, tree, q.index_select(1, static.inner_ids), p, u, rule, residual
    )
    exists = (tree.children >= 0).expand(len(tokens), -1, -1)
    path, accepted, tried = _walk(tree, exists, ok[:, tree.children[0]])
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


def _by_rank(
    static: StaticTree, ok: Tensor, tokens: Tensor, tree: Tree, q: Tensor, p: Tensor, u: Tensor, rule: Rule,
    residual: Residual,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Try first children everywhere, then second children, …: ok [B, N + 1] and q [B, M, V] are written in place.

    Returns the state before each inner node's last child: q, p [B, M, V] and that child [B, M].
    """
    last_child = tokens[:, static.ranks[0].nodes]
    for j, (rows, nodes) in enumerate(static.ranks):
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
    tree, vocab = draft.tree, q.shape[-1]
    exists, x, u_child, _ = Families.of(tree.children.expand(len(q), -1, -1), draft, u)
    qx = torch.where(exists, q.gather(-1, x), 0.0)
    left = 1.0 - (qx.cumsum(-1) - qx)
    path, accepted, tried = _walk(tree, exists, exists & (u_child * left < qx))
    stop = path[:, -1]
    q_stop = rows_at(q, stop)
    struck = rows_at(torch.where(exists, x, vocab), stop)  # [B, W]; absent children strike a spare cell
    rest = torch.nn.functional.pad(q_stop, (0, 1)).scatter(-1, struck, 0.0)[:, :vocab]
    final = torch.where(rest.sum(-1, keepdim=True) > 0, rest, q_stop)
    return Verdict(path, accepted, draw(final, u[:, 0]), tried)


def _chosen(draft: Draft, q: Tensor, u: Tensor, rule: Rule, residual: Residual) -> Verdict:
    """Top-k children under a relaxed rule: rank by rank, every node at once."""
    tree = draft.tree
    family = Families.of(tree.children.expand(len(q), -1, -1), draft, u)
    depth = (tree.depth.expand(len(q), -1) + 1).clamp(0, tree.max_depth)
    q_now, accept = q, []
    for exists, x, u_child, _ in zip(*(part.unbind(-1) for part in family), strict=True):
        accept.append(exists & (u_child < rule(q_now, x, depth).value))
        rest = normalised(residual(q_now, None, x, depth, rule), q_now)
        q_now = torch.where(exists[..., None], rest, q_now)
    path, accepted, tried = _walk(tree, family.exists, torch.stack(accept, -1))
    return Verdict(path, accepted, draw(rows_at(q_now, path[:, -1]), u[:, 0]), tried)


def _chosen_by_groups(draft: Draft, q: Tensor, u: Tensor, rule: Lantern) -> Verdict:
    """``_chosen`` under LANTERN's rule and residual, at a cost in k and not in V.

    A chosen child that is rejected takes its group out of q (eq. 7 with p = 1 at x).  So q is never rewritten: members
    are set to 0 in place, and the mass and the number of tokens that are left say how to scale it.  Nodes are sorted by
    their number of children, as no more than (N − 1) / j of them can have a j-th.
    """
    tree, (b, n, _) = draft.tree, q.shape
    children = tree.children.expand(b, -1, -1)
    named = children >= 0
    order = named.sum(-1).argsort(-1, descending=True)  # [B, N] node ids
    family, q_left = Families.of(rows_at(children, order), draft, u), rows_at(q, order)
    mass, support = q_left.sum(-1, dtype=torch.float64), q_left.sign().sum(-1)
    ok = torch.zeros(b, n + 1, dtype=torch.bool, device=q.device)
    for j, parts in enumerate(zip(*(part.unbind(-1) for part in family), strict=True)):
        most = (n - 1) // (j + 1)
        exists, x, u_child, cell, rows, total, some = (part[:, :most] for part in (*parts, q_left, mass, support))
        group = rule.near[x]  # [B, most, k]
        left = rows.gather(-1, group)
        taken = rule.taken(left / total[..., None].to(q.dtype))
        gone = torch.where(taken, left, 0.0)
        moved, members = gone.sum(-1, dtype=torch.float64), gone.sign().sum(-1)
        ok.scatter_(1, cell, exists & (u_child * total < moved))
        drop = exists & (some > members)  # where nothing would remain, q stays as it was
        rows.scatter_(-1, group, torch.where(taken & drop[..., None], 0.0, left))
        total -= moved * drop
        some -= members * drop
    accept = ok.gather(1, torch.where(named, children, n).flatten(1)).view_as(named)
    path, accepted, tried = _walk(tree, named, accept)
    stop = (order == path[:, -1:]).int().argmax(-1)
    return Verdict(path, accepted, draw(rows_at(q_left, stop), u[:, 0]), tried)
