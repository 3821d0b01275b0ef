"""Medusa (Cai et al. 2024): head d predicts the d-th token after the next from the target's last state."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from lanternbench.engine.proposal import Drafter
from lanternbench.engine.state import DecodeState
from lanternbench.errors import UserError
from lanternbench.methods.proposals.drafting import DrafterProposal
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target
from lanternbench.registry import register


class HeadLogits(NamedTuple):
    logits: Tensor  # [B, heads, V]


class MedusaDrafter(Drafter):
    per_level = False

    def __init__(self, net: Any, model: Any):
        self.net, self.model = net, model

    def root(self, state: DecodeState, drafter_state: Any) -> tuple[Tensor, HeadLogits]:
        state.clock.tick("other")
        last = state.now.last
        hidden = last.hidden[:, -1]
        if state.batch > 1 or last.advance.host is None:  # entries past ``advance`` are void
            hidden = state.cache.states_at(last.hidden, (last.advance.device - 1).clamp(min=0)[:, None])[:, 0]
        logits = self.model.logits(self.net(hidden), state.guidance)
        state.clock.tick("draft")
        return logits[:, 0], HeadLogits(logits)

    def expand(
        self, state: DecodeState, drafter_state: Any, cursor: HeadLogits, tokens: Tensor, parent: Tensor | None,
        visible: Tensor | None, depth: int,
    ) -> tuple[Tensor, HeadLogits]:  # fmt: skip
        return cursor.logits[:, depth : depth + 1].expand(-1, tokens.shape[1], -1), cursor

    def network(self) -> Network:
        return network(self.net, self.model, (), self.net.heads)


@register("proposal", "medusa")
class MedusaProposal(DrafterProposal):
    """Medusa: heads on the target's last state"""

    drafter_kind: ClassVar[str | None] = "medusa"
    samples: ClassVar[bool] = False
    no_joint_sample: ClassVar[str | None] = "Medusa's tokens are chosen, not sampled, so block verification has no p"
    static_trees: ClassVar[dict[str, str]] = {"chain": "medusa", "static": "medusa"}

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        if max_depth > net.heads:
            raise UserError(f"the tree is {max_depth} levels deep but the drafter has {net.heads} Medusa heads")
        return MedusaDrafter(net, target.model)
