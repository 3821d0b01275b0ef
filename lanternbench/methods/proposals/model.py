"""An independent, smaller model of the target's kind drafts (Leviathan et al. 2023); it reads the same prompt."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from lanternbench.engine.proposal import Drafter
from lanternbench.engine.state import DecodeState, open_stack
from lanternbench.methods.proposals.drafting import DrafterProposal, StackDrafter, StackState
from lanternbench.models.cached_stack import additive
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.image_stack import Drafted
from lanternbench.models.target import Target
from lanternbench.registry import register


class ModelDrafter(StackDrafter):
    def init(self, state: DecodeState, room: int) -> StackState:
        prefix, n = state.prefix, state.prefix.valid.shape[1]
        row_end = state.target.row_end_input(self.net)
        stack = open_stack(state.target, self.net, prefix, room, row_end=row_end)
        mask = additive(prefix_mask(prefix.valid, n)[:, 0])
        stack.stack.prefill(self.net.cls_embedding(prefix.features), range(n), mask)
        stack.stack.hide_pads(prefix.valid)
        return StackState(stack)

    def append(self, state: DecodeState, own: StackState) -> tuple[Tensor, Drafted]:
        last = state.now.last
        x = own.stack.stack.all_rows(self.net.tok_embeddings(last.tokens))
        return own.stack.append(x, x, state.now.length, last.advance)

    def inputs(self, own: StackState, tokens: Tensor, parent: Tensor) -> Tensor:
        return own.stack.stack.all_rows(self.net.tok_embeddings(tokens))


@register("proposal", "model")
class ModelProposal(DrafterProposal):
    """an independent small model of the target's kind"""

    drafter: ClassVar[str | None] = "model"

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        return ModelDrafter(net, net)
