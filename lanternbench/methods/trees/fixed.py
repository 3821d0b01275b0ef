"""How a tree of fixed shape is drafted: level by level, children sampled without replacement
(top-k when greedy).
"""

from typing import Any, Self

import torch
from torch import Tensor

from lanternbench.component import Prepared
from lanternbench.engine.draft import Draft, StaticTree
from lanternbench.engine.plain import TreeSpec
from lanternbench.engine.proposal import Expand, TreePolicy
from lanternbench.engine.sampling import draw_distinct
from lanternbench.engine.state import DecodeState


class FixedTree(TreePolicy):
    """Drafts a static tree level by level, with uniforms of their own for the children of each
    node.
    """

    static = Prepared[StaticTree]()
    # are children sampled, or the likeliest tokens, which count as p = 1?
    sampled = Prepared(True)

    def drafting(self, static: StaticTree, sampled: bool, device: torch.device) -> Self:
        """The policy, ready to draft ``static``."""
        tree, uniforms = (
            static.tree,
            sum(m * w for _, m, w in (level.shape for level in static.levels)),
        )
        sizes = {
            "nodes": tree.nodes,
            "max_depth": tree.max_depth,
            "width": tree.width,
            "uniforms": uniforms,
        }
        return self.ready(static=static.to(device), sampled=sampled, **sizes)

    def grow(
        self, state: DecodeState, tree_state: Any, logits: Tensor, expand: Expand, u: Tensor
    ) -> Draft:
        static, warp = self.static, state.warp
        sampled = self.sampled and not warp.greedy
        tokens, p_all, used, logits = [state.now.root.unsqueeze(1)], [], 0, logits.unsqueeze(1)
        for i, level in enumerate(static.levels):
            _, m, w = level.shape
            if i:
                expanded = tokens[-1] if level.expanded is None else tokens[-1][:, level.expanded]
                logits = expand(expanded, level.above, level.mask, i)
            if sampled:
                p_all.append(warp(logits))
                drawn = draw_distinct(p_all[-1], u.narrow(1, used, m * w).view(level.shape))
                used += m * w
            else:
                drawn = logits.topk(w).indices  # of logits: far below the first their softmax is 0
            tokens.append(
                drawn.flatten(1) if m * w == len(level.rows) else drawn[:, level.rows, level.ranks]
            )
        return Draft(torch.cat(tokens, 1), torch.cat(p_all, 1) if sampled else None, static)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        return tuple(len(level.parents) for level in self.static.levels[1:])

    def plain(self) -> TreeSpec:
        return TreeSpec("static", paths=self.static.paths)
