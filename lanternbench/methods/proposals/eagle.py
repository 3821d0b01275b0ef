"""EAGLE-1 to 3 (Li et al. 2024, 2025): a few layers over the target's states and the next tokens' embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from lanternbench.engine.proposal import Drafter
from lanternbench.engine.state import DecodeState, open_stack
from lanternbench.methods.proposals.drafting import DrafterProposal, StackDrafter, StackState
from lanternbench.models.cached_stack import additive
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.image_stack import Drafted
from lanternbench.models.target import Target
from lanternbench.registry import register


class EagleDrafter(StackDrafter):
    """Its entry for position t reads the target's states there and token t + 1: its cache lags one slot behind."""

    def __init__(self, net: Any, words: Any):
        super().__init__(net, words)
        self.aux_layers = net.aux_layers(words)

    def init(self, state: DecodeState, room: int) -> StackState:
        prefix, hidden = state.prefix, state.prefix_states
        assert hidden is not None
        borrowed = (self.net.config, self.words.rope)
        row_end = self._row_end(state.target)
        stack = open_stack(state.target, self.net, prefix, room, row_end=row_end, borrowed=borrowed, lag=1)
        n = hidden.shape[1]
        if n > 1:  # entry t: the state of position t, with what stands for token t + 1 and its position
            x = self.net.fuse(self.net.embed_prompt(prefix.ahead_ids, self.words), self.net.read(hidden[:, :-1]))
            mask = additive(prefix_mask(prefix.seen, n - 1)[:, 0])
            stack.stack.prefill(x, range(1, n), mask)
            stack.stack.hide_pads(prefix.seen)
        return StackState(stack)

    def _row_end(self, target: Target) -> Callable[[Tensor], Tensor] | None:
        if not target.layout.width:
            return None
        embedding = self.net.embed_prompt(torch.tensor(target.row_end, device=target.device), self.words)  # [dim]
        return lambda hidden: self.net.fuse(embedding.expand_as(hidden), hidden)

    def append(self, state: DecodeState, own: StackState) -> tuple[Tensor, Drafted]:
        last = state.now.last
        x = self.inputs(own, last.tokens, self.net.read(last.hidden))
        before = None if last.own is None else self.net.read(last.own)
        return own.stack.append(x, before, state.now.length, last.advance)

    def inputs(self, own: StackState, tokens: Tensor, parent: Tensor) -> Tensor:
        return self.net.fuse(own.stack.stack.all_rows(self.net.embed(tokens, self.words)), parent)


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
