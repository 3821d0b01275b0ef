"""Tree policies: how a drafter's distributions become a draft tree.

``static``: the shape is data, children are sampled without replacement (top-k when greedy).
``dynamic`` (EAGLE-2): expand the top-k nodes by path confidence, then keep the best N over all levels.
``adaptive`` (ADT-Tree): dynamic, with depth and width of their own for every tree.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from lanternbench.engine.sampling import Warp, draw_distinct
from lanternbench.engine.tree import StaticTree, from_parents
from lanternbench.engine.verify import Draft
from lanternbench.methods.proposals.drafters import Drafter
from lanternbench.models.cached_stack import additive


class StaticGrowth:
    """Draws a static tree level by level.  ``sampled`` False takes the top tokens and counts as p = 1 (Medusa)."""

    fixed = True

    def __init__(self, static: StaticTree, sampled: bool, device: torch.device):
        self.static, self.sampled = static.to(device), sampled
        self.nodes, self.depth = static.tree.nodes, static.tree.max_depth
        ancestors = static.tree.ancestors[0]
        inner = list(static.inner)
        # per level: which of the last level's children are expanded, their parents' places, mask
        self.plan: list[tuple[Tensor, Tensor, Tensor | None]] = []
        before: list[int] = [0]
        for last, level in zip(static.levels, static.levels[1:], strict=False):
            nodes = list(level.parents)
            parents = [next(a for a in before if bool(ancestors[n, a])) for n in nodes]
            seen = inner[1 : inner.index(nodes[-1]) + 1]
            mask = None if static.is_chain else additive(ancestors[nodes][:, seen])[None].to(device)
            places = torch.tensor([n - last.first for n in nodes], device=device)
            self.plan.append((places, torch.tensor([before.index(a) for a in parents], device=device), mask))
            before = nodes

    def grow(self, drafter: Drafter, logits: Tensor, root: Tensor, warp: Warp, u: Tensor) -> Draft:
        """logits [B, V] after the root [B], u [B, ≥ N − 1] -> a tree."""
        static = self.static
        tokens, p_all, used = [root[:, None]], [], 0
        p = warp(logits)[:, None]
        for i, level in enumerate(static.levels):
            if i:
                places, parents, mask = self.plan[i - 1]
                expanded = tokens[-1] if static.is_chain else tokens[-1][:, places]
                p = warp(drafter.expand(expanded, parents, mask, i))
            p_all.append(p)
            m, w = len(level.parents), max(level.widths)
            if self.sampled and not warp.greedy:
                drawn = draw_distinct(p, u[:, used : used + m * w].view(-1, m, w))
                used += m * w
            else:
                drawn = p.topk(w).indices
            tokens.append(drawn.flatten(1) if m * w == len(level.rows) else drawn[:, level.rows, level.ranks])
        kept = torch.cat(p_all, 1) if self.sampled and not warp.greedy else None
        return Draft(torch.cat(tokens, 1), static.tree, kept, static)

    @property
    def uniforms(self) -> int:
        return sum(len(level.parents) * max(level.widths) for level in self.static.levels)


class DynamicGrowth:
    """EAGLE-2 (Li et al. 2024, section 4): at most ``depth`` levels below the root, ``total`` nodes with the root."""

    uniforms, fixed = 0, True

    def __init__(self, depth: int, top_k: int, total: int, device: torch.device):
        self.depth, self.top_k, self.nodes, self.device = depth, top_k, total, device

    def grow(self, drafter: Drafter, logits: Tensor, root: Tensor, warp: Warp, u: Tensor) -> Draft:
        return grow_by_confidence(drafter, logits, root, warp, self.depth, self.top_k, self.nodes)


def grow_by_confidence(
    drafter: Drafter,
    logits: Tensor,
    root: Tensor,
    warp: Warp,
    depth: int,
    top_k: int,
    total: int,
    widths: Tensor | None = None,
    depths: Tensor | None = None,
) -> Draft:
    """Expand by Σ log p, rerank, keep the best ``total`` − 1 nodes under the root.

    ``widths`` [B], ``depths`` [B]: each row's own bounds below ``top_k`` and ``depth`` (adaptive trees).
    """
    b, k = len(root), min(top_k, logits.shape[-1])
    rank = torch.arange(k, device=root.device)
    narrow = None if widths is None else rank >= widths[:, None]  # [B, k] ranks that a row does not use
    value, token = likeliest(warp(logits), k)  # [B, k]
    if narrow is not None:
        value = value.masked_fill(narrow, -torch.inf)
    if depths is not None:
        value = value.masked_fill((depths < 1)[:, None], -torch.inf)
    tokens, scores, parents = [token], [value], [torch.zeros_like(token)]
    place, came_from = (rank + 1).expand(b, k), None  # 0 is the root
    itself = _itself(k, root.device).expand(b, k, k)
    visible = itself  # additive, over all nodes so far
    for level in range(1, depth):
        p = warp(drafter.expand(token, came_from, visible, level))
        value_next, token_next = likeliest(p, k)  # [B, k, k]
        score = value[..., None] + value_next
        if narrow is not None:
            score = score.masked_fill(narrow[:, None], -torch.inf)
        if depths is not None:
            score = score.masked_fill((depths <= level)[:, None, None], -torch.inf)
        offset = 1 + sum(t.shape[1] for t in tokens)
        tokens.append(token_next.flatten(1))
        scores.append(score.flatten(1))
        parents.append(place[..., None].expand(-1, -1, k).flatten(1))
        value, chosen = score.flatten(1).topk(k)
        if narrow is not None:
            value = value.masked_fill(narrow, -torch.inf)
        came_from = chosen // k
        token, place = token_next.flatten(1).gather(1, chosen), offset + chosen
        seen = visible.gather(1, came_from[..., None].expand(-1, -1, visible.shape[-1]))
        visible = torch.cat([seen, itself], -1)
    pool = (torch.cat(tokens, 1), torch.cat(scores, 1), torch.cat(parents, 1))
    return _keep_best(*pool, root, min(total - 1, pool[0].shape[1]), depth, k)


def likeliest(p: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of p [..., V], their log p first: [..., k] each."""
    value, token = p.topk(k)
    return value.log(), token


@cache
def _itself(k: int, device: torch.device) -> Tensor:
    """[k, k] additive: each node sees itself."""
    return additive(torch.eye(k, dtype=torch.bool, device=device))


@cache
def _levels(width: int, depth: int, device: torch.device) -> Tensor:
    """The depths [C] of a pool: ``width`` children of the root, then their ``width``² on every level."""
    sizes = torch.tensor([width] + [width * width] * (depth - 1))
    return torch.arange(1, depth + 1).repeat_interleave(sizes).to(device)


def _keep_best(
    tokens: Tensor, scores: Tensor, parents: Tensor, root: Tensor, keep: int, depth: int, width: int
) -> Draft:
    """The best ``keep`` of the pool [B, C] as a tree; parents are pool places plus 1, 0 the root."""
    b = len(root)
    best = scores.topk(keep).indices.sort(-1).values  # [B, keep], parents before children
    used = scores.gather(1, best) > -torch.inf
    node_of = torch.zeros(b, tokens.shape[1] + 1, dtype=torch.long, device=root.device)  # 0: the root, or left out
    node_of.scatter_(1, best + 1, torch.arange(1, keep + 1, device=root.device).expand(b, -1))
    level = _levels(width, depth, root.device)[best]
    parent = node_of.gather(1, parents.gather(1, best))
    used = used & ((parent > 0) | (level == 1))
    parent = torch.nn.functional.pad(parent, (1, 0))
    for _ in range(depth - 2):  # a tie may leave a child whose grandparent was cut
        used = used & torch.nn.functional.pad(used, (1, 0), value=True).gather(1, parent)[:, 1:]
    level = torch.nn.functional.pad(torch.where(used, level, -1), (1, 0))
    tree = from_parents(parent, level, min(depth, keep), width)  # no path has more nodes than there are
    return Draft(torch.cat([root[:, None], tokens.gather(1, best)], 1), tree)
