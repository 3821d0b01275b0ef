"""An independent, smaller model of the target's kind drafts (Leviathan et al. 2023); it reads the same prompt."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from lanternbench.engine.address import prefix_address
from lanternbench.engine.cache import open_cache
from lanternbench.engine.proposal import Drafter
from lanternbench.engine.state import DecodeState
from lanternbench.methods.proposals.drafting import CachedDrafter, CachedState, DrafterProposal
from lanternbench.models.target import Target
from lanternbench.registry import register


class ModelDrafter(CachedDrafter):
    def init(self, state: DecodeState, max_nodes: int) -> CachedState:
        prefix, net = state.prefix, self.net
        cache = open_cache(state.target, net, prefix, max_nodes, row_end=lambda ids: net.prompt_embeddings(ids))
        cache.prefill(net.cls_embedding(prefix.features), prefix_address(prefix.valid), prefix.valid)
        return CachedState(cache)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.net.tok_embeddings(tokens)

    def read(self, embedding: Tensor, states: Tensor | None) -> Tensor:
        return embedding


@register("proposal", "model")
class ModelProposal(DrafterProposal):
    """an independent small model of the target's kind"""

    drafter: ClassVar[str | None] = "model"

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        return ModelDrafter(net, net)
