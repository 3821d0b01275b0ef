"""Autoregressive decoding: nothing is drafted, every step verifies a lone root."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor

from lanternbench.component import Choices, Prepared
from lanternbench.engine.plain import TreeSpec
from lanternbench.engine.proposal import Proposal, TreePolicy
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import Draft, StaticTree, chain
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.models.target import Target
from lanternbench.registry import register


@register("proposal", "none")
class NoDraft(Proposal):
    """nothing: plain autoregressive decoding"""

    tree_names: ClassVar[tuple[str, ...] | None] = ("none",)
    tree_is_own: ClassVar[bool] = True
    in_rows: ClassVar[bool] = True

    static = Prepared[StaticTree]()

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> Self:
        return self.ready(static=chain(0).to(target.device))

    def refuses(self, choices: Choices) -> str | None:
        if choices.acceptance != "exact" or choices.residual != "standard":
            return "autoregressive decoding drafts nothing, so there is nothing to accept"
        return super().refuses(choices)

    def draft(self, state: DecodeState, proposer_state: Any, u: Tensor) -> Draft:
        return Draft(state.now.root[:, None], static=self.static)

    def plain(self, tree: TreePolicy) -> TreeSpec:
        return TreeSpec()
