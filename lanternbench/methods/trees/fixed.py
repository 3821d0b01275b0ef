"""Drafting a tree of fixed shape: level by level, children sampled without replacement, or the
likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    draws: tuple[int, ...]  # on each level

    @classmethod
    def of(cls, static: StaticTree, samples: bool, device: torch.device) -> Self:
        tree = static.tree
        shapes = [level.shape for level in static.levels]
        draws = tuple(parents * children for _, parents, children in shapes)
        size = DraftSize(tree.nodes, tree.max_depth, tree.width, sum(draws))
        return cls(size, static.to(device), samples, draws)

    def grow(self, state: DecodeState, own: None, expand: Expand, u: Tensor) -> Draft:
        sampled = self.samples and not state.warp.greedy
        tokens = [state.now.root.unsqueeze(1)]
        distributions: list[Tensor] = []
        uniforms: Sequence[Tensor] = ()
        if sampled:
            uniforms = u.split_with_sizes(self.draws, 1)
        for depth, level in enumerate(self.static.levels):
            parents = tokens[-1]
            if level.expanded is not None:
                parents = parents[:, level.expanded]
            logits = expand(parents, level.above, level.mask, depth)
            if sampled:
                p = state.warp(logits)
                distributions.append(p)
                children = draw_distinct(p, uniforms[depth].view(level.shape))
            else:  # by logits: far below the first their softmax is 0
                if state.warp.shares_noise:
                    logits = state.drawn_after(state.warp(logits), depth)
                children = likeliest(logits, level.shape[-1]).indices.contiguous()
            drawn = self.draws[depth]
            if drawn == level.rows.numel():
                tokens.append(children.view(-1, drawn))
            else:
                tokens.append(children[:, level.rows, level.ranks])
        p_all = torch.cat(distributions, 1) if sampled else None
        return Draft(torch.cat(tokens, 1), p_all, self.static)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        return tuple(len(level.parents) for level in self.static.levels[1:])
