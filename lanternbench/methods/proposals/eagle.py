"""EAGLE-1 to 3 (Li et al. 2024, 2025): a few layers over the target's states and the next tokens' embeddings."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from lanternbench.engine.address import prefix_address
from lanternbench.engine.cache import open_cache
from lanternbench.engine.proposal import Drafter
from lanternbench.engine.state import DecodeState
from lanternbench.methods.proposals.drafting import CachedDrafter, CachedState, DrafterProposal
from lanternbench.models.target import Target
from lanternbench.registry import register


class EagleDrafter(CachedDrafter):
    """Its entry for position t reads the target's states there and token t + 1: its cache lags one slot behind."""

    def __init__(self, net: Any, lm: Any):
        super().__init__(net, lm)
        self.aux_layers = net.aux_layers(lm)

    def init(self, state: DecodeState, max_nodes: int) -> CachedState:
        prefix, hidden, net = state.prefix, state.prefix_states, self.net
        assert hidden is not None
        embed_ids, borrowed = partial(net.embed_prompt, model=self.lm), (net.config, self.lm.rope)
        cache = open_cache(state.target, net, prefix, max_nodes, row_end=embed_ids, borrowed=borrowed, lag=1)
        if hidden.shape[1] > 1:  # entry t: the state of position t, with what stands for token t + 1 and its position
            x = net.fuse(net.embed_prompt(prefix.ahead_ids, self.lm), net.read(hidden[:, :-1]))
            cache.prefill(x, prefix_address(prefix.seen, 1), prefix.seen)
        return CachedState(cache)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.net.embed(tokens, self.lm)

    def read(self, embedding: Tensor, states: Tensor | None) -> Tensor:
        assert states is not None
        return self.net.fuse(embedding, states)

    def target_states(self, states: Tensor | None) -> Tensor | None:
        return self.net.read(states)


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
