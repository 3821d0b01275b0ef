"""Autoregressive decoding: nothing is drafted, every step verifies a lone root."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from lanternbench.engine.proposal import Proposer
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import Draft, chain
from lanternbench.methods.component import Acceptance, Choices, Proposal, Tree
from lanternbench.models.target import Target
from lanternbench.registry import register


class LoneRoot(Proposer):
    nodes, max_depth, width, max_step_slots = 1, 0, 0, 1

    def __init__(self, device: torch.device):
        self.static = chain(0).to(device)

    def draft(self, state: DecodeState, own: Any, u: Tensor) -> Draft:
        return Draft(state.now.root[:, None], static=self.static)


@register("proposal", "none")
class NoDraft(Proposal):
    """nothing: plain autoregressive decoding"""

    tree_names: ClassVar[tuple[str, ...] | None] = ("none",)
    tree_is_own: ClassVar[bool] = True
    in_rows: ClassVar[bool] = True

    def build(self, target: Target, tree: Tree, rule: Acceptance) -> Proposer:
        return LoneRoot(target.device)

    def refuses(self, choices: Choices) -> str | None:
        if choices.acceptance != "exact" or choices.residual != "standard":
            return "autoregressive decoding drafts nothing, so there is nothing to accept"
        return super().refuses(choices)
