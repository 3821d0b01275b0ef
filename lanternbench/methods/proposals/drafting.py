"""Base classes of proposals with a drafter, and of drafters with a cached stack that reads committed tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from lanternbench.engine.proposal import DraftedTree, Drafter, Proposer
from lanternbench.engine.state import DecodeState
from lanternbench.errors import UserError
from lanternbench.methods.component import Acceptance, Proposal, Tree
from lanternbench.methods.proposals.none import LoneRoot
from lanternbench.models.image_stack import Drafted, ImageStack
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target


class DrafterProposal(Proposal):
    """A proposal that drafts with a drafter of the target, by any tree policy."""

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


class StackState(NamedTuple):
    stack: ImageStack


class Cursor(NamedTuple):
    """After one level of drafted nodes."""

    hidden: Tensor  # [R, m, dim] their states
    drafted: Drafted


class StackDrafter(Drafter):
    """A drafter with a decoder of its own and a head, EAGLE's or an independent model's."""

    def __init__(self, net: Any, words: Any):
        """``words``: the decoder whose head is used."""
        self.net, self.words = net, words

    def network(self) -> Network:
        return network(self.net, self.words, self.net.layers)

    def append(self, state: DecodeState, own: StackState) -> tuple[Tensor, Drafted]:
        """Read the tokens of the last commit -> the state [R, 1, dim] at the last of them."""
        raise NotImplementedError

    def inputs(self, own: StackState, tokens: Tensor, parent: Tensor) -> Tensor:
        """Drafted tokens [B, m] and their parents' states [R, m, dim] -> the stack's inputs [R, m, dim]."""
        raise NotImplementedError

    def root(self, state: DecodeState, own: StackState) -> tuple[Tensor, Cursor]:
        state.clock.tick("other")
        hidden, drafted = self.append(state, own)
        return self._logits(state, hidden[:, 0]), Cursor(hidden, drafted)

    def expand(
        self, state: DecodeState, own: StackState, cursor: Cursor, tokens: Tensor, parent: Tensor | None,
        visible: Tensor | None, depth: int,
    ) -> tuple[Tensor, Cursor]:  # fmt: skip
        state.clock.tick("other")
        x = self.inputs(own, tokens, parent_states(own.stack, cursor.hidden, parent, tokens.shape[1], depth))
        hidden, drafted = own.stack.level(x, visible, depth, state.now.length, cursor.drafted)
        return self._logits(state, hidden), Cursor(hidden, drafted)

    def _logits(self, state: DecodeState, hidden: Tensor) -> Tensor:
        """hidden [R, …, dim] -> guided logits [B, …, V]."""
        logits = self.words.logits(hidden, state.guidance)
        state.clock.tick("draft")
        return logits


def parent_states(stack: ImageStack, hidden: Tensor, parent: Tensor | None, m: int, depth: int) -> Tensor:
    """The states [R, m, dim] of the parents of m nodes, out of those of the last level (see ``Expand``)."""
    if depth == 1 or parent is None:
        return hidden.expand(-1, m, -1)
    if parent.ndim == 1:
        return hidden if m == 1 == hidden.shape[1] else hidden[:, parent]
    index = stack.stack.per_row(parent)[..., None]
    return hidden.gather(1, index.expand(len(hidden), -1, hidden.shape[-1]))
