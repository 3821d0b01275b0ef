"""SJD-PAC's tree (arXiv 2603.18599): K siblings a column down to depth D, then a chain, redrawn by coupling.

Column c is the position c after the last committed token, which is column 0.  Columns 1 … D − 1 hold K siblings, drawn
without replacement from one law; every node of column c − 1 has the same ones.  From column D on the chain of first
siblings goes on alone.  An accepted path therefore needs one law a column, and is verified as any static tree is:
sibling by sibling, by recursive residuals, the first accepted one leading on.

B batch, M columns, K siblings, V vocabulary.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.sampling import draw_distinct
from lanternbench.engine.verify import rows_at
from lanternbench.methods.jacobi_family.coupling import maximal


def sibling_paths(k: int, depth: int, columns: int) -> list[list[int]]:
    """Child paths (sibling ranks from the root) of the tree with columns 0 … columns − 1."""
    tree = [list(ranks) for d in range(1, min(depth, columns)) for ranks in product(range(k), repeat=d)]
    return tree + [[0] * d for d in range(min(depth, columns), columns)]


class Stages(NamedTuple):
    """What each sibling is judged by, and last what a token is drawn from when all are rejected."""

    target: Tensor  # [..., K + 1, V]
    draft: Tensor  # [..., K + 1, V]


def recursive_residuals(target: Tensor, law: Tensor, siblings: Tensor) -> Stages:
    """target, law [..., V] at one node, its children's tokens [..., K] in draft order.

    After each rejection the target becomes [target − draft]₊, normalised, and the draft law loses the token.  Where
    nothing is left the target stays.
    """
    targets, drafts = [target], [law]
    for x in siblings.unbind(-1):
        rest = (targets[-1] - drafts[-1]).clamp(min=0)
        total = rest.sum(-1, keepdim=True)
        targets.append(torch.where(total > 0, rest / total, targets[-1]))
        left = drafts[-1].scatter(-1, x[..., None], 0.0)
        drafts.append(left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny))
    return Stages(torch.stack(targets, -2), torch.stack(drafts, -2))


def sibling_tests(stages: Stages, siblings: Tensor, u: Tensor) -> Tensor:
    """Which siblings would be accepted if tried: u·draft(x) < target(x).  siblings, u [..., K] -> bool [..., K]."""
    target, draft = (s[..., :-1, :].gather(-1, siblings[..., None])[..., 0] for s in stages)
    return (u * draft < target) & (draft > 0)


def context_nodes(children: Tensor, chain: Tensor, depth: int, path: Tensor, accepted: Tensor) -> Tensor:
    """The node after which the target's distribution is the new law of column c + 1, for every c: [B, M].

    children [N, K] node ids, chain [M] the nodes of first siblings, path [B, ≥ accepted + 1] the accepted nodes from
    the root.  Inside the tree the accepted path goes on with first siblings; beyond it only the chain has nodes.
    """
    nodes = [path[:, 0]]
    for c in range(1, len(chain)):
        if c >= depth:
            nodes.append(chain[c].expand_as(accepted))
        else:
            onward = children[nodes[-1], 0]
            nodes.append(torch.where(c <= accepted, path[:, min(c, path.shape[1] - 1)], onward))
    return torch.stack(nodes, 1)


class Columns(NamedTuple):
    """The drafts of the next step."""

    tokens: Tensor  # [B, M − 1, K] siblings of columns 1 … M − 1, first siblings first
    law: Tensor  # [B, M − 1, V] that they were drawn from, without replacement
    kept: Tensor  # [B] columns that carry over; the others are filled with fresh drafts


class RedrawUniforms(NamedTuple):
    """The uniforms of ``redraw_columns``, by old column."""

    keep: Tensor  # [B, M]
    draw: Tensor  # [B, M]
    siblings: Tensor  # [B, M, K − 1]


def redraw_columns(first: Tensor, law: Tensor, q: Tensor, accepted: Tensor, u: RedrawUniforms) -> Columns:
    """The columns after the token that ended the step, redrawn from what this forward says of them.

    first [B, M − 1] and law [B, M − 1, V]: first siblings of columns 1 … M − 1 and their law.  q [B, M, V]: the target
    after ``context_nodes``.  The first sibling is coupled to the old one (maximal coupling), so its law is q; the
    others are drawn without replacement from q without it.  The position after the last column is drawn from q afresh.
    """
    last = q[:, -1:]
    old = torch.cat([first, torch.zeros_like(first[:, :1])], 1)
    # a law that excludes the old token keeps nothing and draws from all of q
    coupled = maximal(old, torch.cat([law, torch.zeros_like(last)], 1), q, u.keep, u.draw)
    others = q.scatter(-1, coupled.tokens[..., None], 0.0)
    tokens = coupled.tokens[..., None]
    if u.siblings.shape[-1]:
        tokens = torch.cat([tokens, draw_distinct(others, u.siblings)], -1)
    window = first.shape[1]
    source = (accepted[:, None] + 1 + torch.arange(window, device=q.device)).clamp(max=window)
    return Columns(rows_at(tokens, source), rows_at(q, source), window - accepted)
