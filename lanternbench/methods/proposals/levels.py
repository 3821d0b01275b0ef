"""Drafters whose one forward gives a distribution for every depth of the next tree: Medusa's
heads, DFlash's block.

Medusa (Cai et al. 2024): head d predicts the d-th token after the next from the target's last
state.  DFlash (arXiv 2602.06036): slot k of the block [anchor, mask, …] predicts the k-th token
after the anchor, the last committed token. All nodes of a level share one distribution, which
depends on the committed tokens alone.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Choices
from lanternbench.engine.address import Address, run_address
from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.draft import additive
from lanternbench.engine.opening import open_cache
from lanternbench.engine.proposal import Drafter, Expand
from lanternbench.engine.state import DecodeState
from lanternbench.errors import UserError
from lanternbench.methods.proposals.drafting import DrafterProposal
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target
from lanternbench.registry import register


class LevelsDrafter(Drafter):
    """Gives the logits of all levels at once."""

    per_level = False

    def __init__(self, net: Any, lm: Any):
        """``lm``: the target's decoder, whose head is used."""
        self.net, self.lm = net, lm

    def root(self, state: DecodeState, drafter_state: Any) -> tuple[Tensor, Expand]:
        state.clock.tick("other")
        # [B, levels, V]
        logits = self.lm.logits(self.states(state, drafter_state), state.guidance)
        state.clock.tick("draft")

        def expand(
            tokens: Tensor, parent: Tensor | None, visible: Tensor | None, depth: int
        ) -> Tensor:
            return logits[:, depth : depth + 1].expand(-1, tokens.shape[1], -1)

        return logits[:, 0], expand

    def states(self, state: DecodeState, drafter_state: Any) -> Tensor:
        """The inputs of the head for every level, [R, levels, dim]."""
        raise NotImplementedError


class MedusaDrafter(LevelsDrafter):
    def states(self, state: DecodeState, drafter_state: Any) -> Tensor:
        last = state.now.last
        hidden = last.hidden[:, -1]
        if state.batch > 1 or last.advance.host is None:  # entries past ``advance`` are void
            hidden = state.cache.states_at(
                last.hidden, (last.advance.device - 1).clamp(min=0)[:, None]
            )[:, 0]
        return self.net(hidden)

    def network(self) -> Network:
        return network(self.net, self.lm, (), self.net.heads)


@register("proposal", "medusa")
class MedusaProposal(DrafterProposal):
    """Medusa: heads on the target's last state"""

    drafter_kind: ClassVar[str | None] = "medusa"
    samples: ClassVar[bool] = False
    marginals: ClassVar[bool] = True
    no_joint_sample: ClassVar[str | None] = (
        "Medusa's tokens are chosen, not sampled, so block verification has no p"
    )
    static_trees: ClassVar[dict[str, str]] = {"chain": "medusa", "static": "medusa"}

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        if max_depth > net.heads:
            raise UserError(
                f"the tree is {max_depth} levels deep but the drafter has {net.heads} Medusa heads"
            )
        return MedusaDrafter(net, target.model)


class DFlashDrafter(LevelsDrafter):
    """Its cache holds one entry per committed token but the last: the target's states that
    predicted it.

    In each step the entries of the last commit come first, then the block, in slots that the next
    step overwrites.
    """

    def __init__(self, net: Any, lm: Any):
        super().__init__(net, lm)
        self.aux_layers, self.step_slots = net.depths, 2 * net.block
        # additive, block to block
        self.visible = torch.zeros(net.block, net.block, device=lm.device)
        if net.causal:
            self.visible = additive(torch.ones_like(self.visible, dtype=torch.bool).tril())

    def network(self) -> Network:
        return network(self.net, self.lm, self.net.layers, self.net.block - 1)

    def begin(self, state: DecodeState, max_nodes: int) -> DecoderCache:
        prefix, hidden, net = state.prefix, state.prefix_states, self.net
        assert hidden is not None
        cache = open_cache(
            state.target, net, prefix, max(max_nodes, self.step_slots), self.lm, row_ends=False
        )
        # the last prefix position predicts token 0: the first step reads its states
        if hidden.shape[1] > 1:
            context = net.read(hidden[:, :-1])
            # and a blank block, which the first step overwrites
            x = F.pad(context, (0, 0, 0, net.block))
            cache.forward(x, run_address(0, x.shape[1]))
            cache.hide_pads(prefix.seen)
        return cache

    def states(self, state: DecodeState, cache: DecoderCache) -> Tensor:
        context = self.net.read(state.now.last.hidden)
        anchor = cache.all_rows(self.lm.tok_embeddings(state.now.root))
        x = torch.cat([context, self.net.blocks(anchor)], 1)
        # slot 0 is the anchor's
        return cache.forward(x, self.address(state, cache, context.shape[1]))[:, 1:]

    def address(self, state: DecodeState, cache: DecoderCache, entries: int) -> Address:
        """The ``entries`` of the last commit, of which those past ``advance`` are void, and the
        block after them.
        """
        length, advance, block = state.now.length, state.now.last.advance, self.net.block
        cursor = cache.cursor(length, state.span)
        layout, theirs, n = cache.layout, state.cache.layout, entries + self.net.block
        fresh = advance.shared
        if cursor.shared is not None and fresh is not None and not theirs.width:
            base = layout.slots[cursor.shared - fresh] + 1
            visible = F.pad(self.visible[None], (entries, 0)) if self.net.causal else None
            return run_address(base, n, visible)
        start = length.device - advance.device
        column = torch.arange(max(entries, block), device=start.device)
        void = additive(column[:entries] < advance.device[:, None])[:, None].expand(-1, block, -1)
        visible = torch.cat([void, self.visible.expand(len(void), -1, -1)], -1)
        # where each token was predicted
        before = theirs.slot_of[start[:, None] + column[:entries] + 1] - 1
        positions = torch.cat([before, theirs.slot_of[length.device[:, None] + column[:block]]], 1)
        after = layout.slot_of[start] + 1
        at = cursor.entries(after, entries, block, positions, visible)
        return at._replace(slots=after[:, None] + torch.arange(n, device=after.device))


@register("proposal", "dflash")
class DFlashProposal(DrafterProposal):
    """DFlash: a block in one forward, on the target's states at several depths"""

    drafter_kind: ClassVar[str | None] = "dflash"
    marginals: ClassVar[bool] = True
    static_trees: ClassVar[dict[str, str]] = {"chain": "block", "static": "static"}

    @property
    def samples(self) -> bool:  # type: ignore[override]
        """The public code drafts each slot's likeliest token at any temperature."""
        return self.variant == "paper"

    def refuses(self, choices: Choices) -> str | None:
        if choices.acceptance == "block" and not self.samples:
            return "the public code of DFlash chooses its tokens, so block verification has no p"
        return super().refuses(choices)

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        if max_depth >= net.block:
            raise UserError(
                f"the tree may be {max_depth} levels deep but the drafter's blocks hold {net.block - 1} drafts: give a "
                f"smaller --depth, or an adaptive tree a --depth-range of 0 {net.block} at most"
            )
        return DFlashDrafter(net, target.model)
