"""DFlash (arXiv 2602.06036): one forward of the drafter gives a distribution for every depth of the next tree.

Slot k of the block [anchor, mask, …] predicts the k-th token after the anchor, which is the last committed token.  The
distributions depend on the committed tokens alone: tokens drawn from them independently, verified against them, keep
the target's distribution, and all nodes of a level share one.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Choices
from lanternbench.engine.address import Address, additive, entries_address, run_address
from lanternbench.engine.opening import open_cache
from lanternbench.engine.proposal import Drafter
from lanternbench.engine.state import DecodeState
from lanternbench.errors import UserError
from lanternbench.methods.proposals.drafting import CachedState, DrafterProposal
from lanternbench.methods.proposals.medusa import HeadLogits
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target
from lanternbench.registry import register


class DFlashDrafter(Drafter):
    """Its cache holds one entry per committed token but the last: the target's states that predicted it.

    In each step the entries of the last commit come first, then the block, in slots that the next step overwrites.
    """

    per_level = False

    def __init__(self, net: Any, lm: Any):
        """``lm``: the target's decoder, whose embedding table and head are used."""
        self.net, self.lm, self.aux_layers = net, lm, net.depths
        self.step_slots = 2 * net.block
        self.visible = torch.zeros(net.block, net.block, device=lm.device)  # additive, block to block
        if net.causal:
            self.visible = additive(torch.ones_like(self.visible, dtype=torch.bool).tril())

    def network(self) -> Network:
        return network(self.net, self.lm, self.net.layers, self.net.block - 1)

    def begin(self, state: DecodeState, max_nodes: int) -> CachedState:
        prefix, hidden, net = state.prefix, state.prefix_states, self.net
        assert hidden is not None
        rope = self.lm.rotary_table(prefix.valid.shape[1])
        cache = open_cache(
            state.target, net, prefix, max(max_nodes, self.step_slots), borrowed=(net.config, rope), lag=1
        )
        if hidden.shape[1] > 1:  # the last prefix position predicts token 0: the first step reads its states
            context = net.read(hidden[:, :-1])
            x = F.pad(context, (0, 0, 0, net.block))  # and a blank block, which the first step overwrites
            cache.forward(x, run_address(0, x.shape[1]))
            cache.hide_pads(prefix.seen)
        return CachedState(cache)

    def root(self, state: DecodeState, memory: CachedState) -> tuple[Tensor, HeadLogits]:
        state.clock.tick("other")
        cache, last = memory.cache, state.now.last
        context = self.net.read(last.hidden)
        anchor = cache.all_rows(self.lm.tok_embeddings(state.now.root))
        x = torch.cat([context, self.net.blocks(anchor)], 1)
        states = cache.forward(x, self.address(state, memory, context.shape[1]))
        logits = self.lm.logits(states[:, 1:], state.guidance)  # slot 0 is the anchor's
        state.clock.tick("draft")
        return logits[:, 0], HeadLogits(logits)

    def address(self, state: DecodeState, memory: CachedState, entries: int) -> Address:
        """The ``entries`` of the last commit, of which those past ``advance`` are void, and the block after them."""
        cache, length, advance, block = memory.cache, state.now.length, state.now.last.advance, self.net.block
        layout, theirs, n = cache.layout, state.cache.layout, entries + self.net.block
        if length.shared is not None and advance.shared is not None and not theirs.width:
            base = layout.slots[length.shared - advance.shared] + 1
            here, visible = slice(base, base + n), self.visible[None, None] if self.net.causal else None
            if visible is not None:
                visible = F.pad(visible, (base + entries, 0))
            return Address(here, here, visible, base + n)
        start = length.device - advance.device
        column = torch.arange(max(entries, block), device=start.device)
        void = additive(column[:entries] < advance.device[:, None])[:, None].expand(-1, block, -1)
        visible = torch.cat([void, self.visible.expand(len(void), -1, -1)], -1)
        before = theirs.slot_of[start[:, None] + column[:entries] + 1] - 1  # where each token was predicted
        positions = torch.cat([before, theirs.slot_of[length.device[:, None] + column[:block]]], 1)
        after = layout.slot_of[start] + 1
        at = entries_address(layout, length, after, entries, block, positions, visible)
        return at._replace(slots=after[:, None] + torch.arange(n, device=after.device))

    def expand(
        self, state: DecodeState, memory: Any, cursor: HeadLogits, tokens: Tensor, parent: Tensor | None,
        visible: Tensor | None, depth: int,
    ) -> tuple[Tensor, HeadLogits]:  # fmt: skip
        return cursor.logits[:, depth : depth + 1].expand(-1, tokens.shape[1], -1), cursor


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
