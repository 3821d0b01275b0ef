"""Drafting a tree of fixed shape: level by level, children sampled without replacement, or the
likeliest tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lanternbench.engine.proposal import DraftSize, Expand, TreeGrower
from lanternbench.engine.sampling import draw_distinct, likeliest
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import Draft, StaticTree


@dataclass(frozen=True, eq=False)
class FixedTree(TreeGrower[None]):
    """Drafts a static tree level by level, with uniforms of their own for the children of each
    node.
    """

    size: DraftSize
    static: StaticTree
    # whether children are sampled; else the likeliest tokens are chosen, which count as p = 1
    samples: bool

    @classmethod
    def of(cls, static: StaticTree, samples: bool, device: torch.device) -> Self:
        tree = static.tree
        uniforms = 0
        for level in static.levels:
            _, parents, children = level.shape
            uniforms += parents * children
        size = DraftSize(tree.nodes, tree.max_depth, tree.width, uniforms)
        return cls(size, static.to(device), samples)

    def grow(self, state: DecodeState, own: None, expand: Expand, u: Tensor) -> Draft:
        sampled = self.samples and not state.warp.greedy
        tokens = [state.now.root.unsqueeze(1)]
        distributions: list[Tensor] = []
        used = 0
        for depth, level in enumerate(self.static.levels):
            parents = tokens[-1]
            if level.expanded is not None:
                parents = parents[:, level.expanded]
            logits = expand(parents, level.above, level.mask, depth)
            _, n_parents, n_children = level.shape
            drawn = n_parents * n_children
            if sampled:
                p = state.warp(logits)
                distributions.append(p)
                children = draw_distinct(p, u.narrow(1, used, drawn).view(level.shape))
                used += drawn
            else:  # by logits: far below the first their softmax is 0
                if state.warp.shares_noise:
                    logits = state.drawn_after(state.warp(logits), depth)
                children = likeliest(logits, n_children).ids
            if drawn == len(level.rows):
                tokens.append(children.flatten(1))
            else:
                tokens.append(children[:, level.rows, level.ranks])
        p_all = torch.cat(distributions, 1) if sampled else None
        return Draft(torch.cat(tokens, 1), p_all, self.static)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        return tuple(len(level.parents) for level in self.static.levels[1:])
