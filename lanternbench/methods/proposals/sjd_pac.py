"""SJD-PAC (arXiv 2603.18599): a Jacobi window that begins as a tree of siblings."""

from __future__ import annotations

from typing import ClassVar, Self

from lanternbench.engine.proposal import Proposer
from lanternbench.errors import UserError
from lanternbench.methods.component import Acceptance, Choices, Proposal, Tree, option
from lanternbench.methods.proposals.longest_path import PublicColumns
from lanternbench.methods.proposals.sibling_columns import SiblingColumns
from lanternbench.models.target import Target
from lanternbench.registry import register


@register("proposal", "sjd-pac")
class SjdPac(Proposal):
    """the target itself: a window that begins as a tree of siblings"""

    tree_names: ClassVar[tuple[str, ...] | None] = ("static",)
    tree_is_own: ClassVar[bool] = True
    reference_lossless: ClassVar[bool] = False
    tuned: ClassVar[dict[str, tuple[int, ...]]] = {
        "window": (2, 3, 4, 6, 8, 12, 16, 24), "siblings": (1, 2, 3, 4), "depth": (1, 2, 3, 4)
    }  # fmt: skip

    siblings: int = option(3, "drafts of one position", symbol="K", small=2, ge=1, le=64)
    depth: int = option(3, "depth from which on the tree is a chain", symbol="D", small=3, also=2, ge=1, le=8)
    window: int = option(16, "drafted positions per step", symbol="L", small=2, ge=1, le=256)

    def small(self) -> Self:
        """The public window is no shorter than its tree."""
        made = super().small()
        return made if self.variant == "paper" else made.model_copy(update={"depth": made.window})

    def build(self, target: Target, tree: Tree, rule: Acceptance) -> Proposer:
        sizes = (self.siblings, self.depth, self.window)
        if self.variant == "paper":
            return SiblingColumns(target, *sizes)
        if self.window < self.depth:
            raise UserError(f"the public code's window is longer than its tree: give --window {self.depth} or more")
        return PublicColumns(target, *sizes)

    def refuses(self, choices: Choices) -> str | None:
        if self.variant == "reference" and choices.acceptance != "exact":
            return "the public code of SJD-PAC accepts as the rule 'exact' does; leave --acceptance or --variant out"
        return super().refuses(choices)
