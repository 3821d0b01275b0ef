"""Proposals that draft with a drafter of the target, by any tree policy."""

from __future__ import annotations

from typing import Any, ClassVar

from lanternbench.engine.proposal import Drafter, Proposer
from lanternbench.errors import UserError
from lanternbench.methods.component import Acceptance, Proposal, Tree
from lanternbench.methods.proposals.drafting import DraftedTree, EagleDrafter, ModelDrafter
from lanternbench.methods.proposals.none import LoneRoot
from lanternbench.models.target import Target
from lanternbench.registry import register


class DrafterProposal(Proposal):
    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        raise NotImplementedError

    def build(self, target: Target, tree: Tree, rule: Acceptance) -> Proposer:
        """Raises UserError if the target has no drafter of this kind, or one that does not fit."""
        builder = tree.build(target, self)
        if builder.max_depth == 0:
            return LoneRoot(target.device)
        net = target.drafters.get(str(self.drafter))
        if net is None:
            have = ", ".join(sorted(target.drafters)) or "none"
            raise UserError(
                f"target '{target.name}' has no drafter of kind '{self.drafter}' (it has: {have}); "
                "choose another method or give one with --drafter"
            )
        if other := net.misfit(target):
            raise UserError(
                f"the drafter of kind '{self.drafter}' does not fit target '{target.name}': {other}; give a drafter "
                "made for it"
            )
        return DraftedTree(self.make(net, target, builder.max_depth), builder)


@register("proposal", "eagle")
class EagleProposal(DrafterProposal):
    """EAGLE: a few layers on the target's last states"""

    drafter: ClassVar[str | None] = "eagle"

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        return EagleDrafter(net, target.model)


@register("proposal", "eagle-3")
class Eagle3Proposal(EagleProposal):
    """EAGLE-3: the same on the target's states at three depths"""

    drafter: ClassVar[str | None] = "eagle-3"


@register("proposal", "model")
class ModelProposal(DrafterProposal):
    """an independent small model of the target's kind"""

    drafter: ClassVar[str | None] = "model"

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        return ModelDrafter(net, net)
