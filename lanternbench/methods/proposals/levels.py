"""Drafters whose one forward pass predicts every depth of the next tree: Medusa, DFlash.

Medusa (Cai et al. 2024): head d predicts the d-th token after the next from the target's last
state.  DFlash (arXiv 2602.06036): slot k of the block [anchor, mask, …] predicts the k-th token
after the anchor, the last committed token.  All nodes of a level share one distribution, which
depends only on the committed tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Generic

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Choices
from lanternbench.engine.cache import Address, DecoderCache, run_address
from lanternbench.engine.opening import open_cache
from lanternbench.engine.proposal import AnyDrafter, Drafter, Expand, S
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import numbers
from lanternbench.errors import UserError
from lanternbench.methods.proposals.drafting import DrafterProposal
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.dflash import DFlash, Medusa
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target
from lanternbench.models.transformer import additive
from lanternbench.registry import register


class LevelsDrafter(Drafter[S], Generic[S]):
    """Gives the logits of all levels at once."""

    per_level = False
    lm: ImageDecoder  # the target's decoder, whose head is used

    def expander(self, state: DecodeState, drafter_state: S) -> Expand:
        state.clock.tick("other")
        # [B, levels, V]
        logits = self.lm.logits(self.states(state, drafter_state), state.guidance)
        state.clock.tick("draft")

        def expand(
            tokens: Tensor,
            parent: Tensor | None,
            visible: Tensor | None,
            depth: int,
        ) -> Tensor:
            return logits[:, depth : depth + 1].expand(-1, tokens.shape[1], -1)

        return expand

    @abstractmethod
    def states(self, state: DecodeState, drafter_state: S) -> Tensor:
        """Return the inputs of the head for every level: [R, levels, dim]."""


class MedusaDrafter(LevelsDrafter[None]):
    """One head a level, on the target's last state."""

    def __init__(self, net: Medusa, lm: ImageDecoder):
        self.net = net
        self.lm = lm

    def states(self, state: DecodeState, drafter_state: None) -> Tensor:
        last = state.now.last
        hidden = last.hidden
        if state.batch > 1 or last.advance.host is None:  # entries past ``advance`` are void
            index = (last.advance.device - 1).clamp(min=0)[:, None]
            hidden = state.cache.states_at(hidden, index)
        states: Tensor = self.net(hidden[:, -1])
        return states

    def network(self) -> Network:
        return network(self.net, self.lm, (), self.net.heads)


@register("proposal", "medusa")
class MedusaProposal(DrafterProposal):
    """Medusa: heads on the target's last state"""

    drafter_kind = "medusa"
    samples = False
    marginals = True
    no_joint_sample = "Medusa's tokens are chosen, not sampled, so block verification has no p"
    static_trees: ClassVar[dict[str, str]] = {"chain": "medusa", "static": "medusa"}

    def make(self, target: Target, max_depth: int) -> AnyDrafter:
        net: Medusa = self.network_of(target)
        if max_depth > net.heads:
            raise UserError(
                f"the tree is {max_depth} levels deep but the drafter has {net.heads} Medusa heads"
            )
        return MedusaDrafter(net, target.model)


class DFlashDrafter(LevelsDrafter[DecoderCache]):
    """Drafts a block; its cache holds, for each committed token but the last, the target's states.

    In each step the entries of the last commit come first, then the block, in slots that the next
    step overwrites.
    """

    def __init__(self, net: DFlash, lm: ImageDecoder):
        self.net = net
        self.lm = lm
        self.aux_layers = net.depths
        self.step_slots = 2 * net.block
        # additive, block to block
        self.visible = torch.zeros(net.block, net.block, device=lm.device)
        if net.causal:
            self.visible = additive(torch.ones_like(self.visible, dtype=torch.bool).tril())

    def network(self) -> Network:
        return network(self.net, self.lm, self.net.layers, self.net.block - 1)

    def begin(self, state: DecodeState, max_nodes: int) -> DecoderCache:
        prefix = state.prefix
        slots = max(max_nodes, self.step_slots)
        cache = open_cache(state.target, self.net, prefix, slots, self.lm, row_ends=False)
        # the last prefix position predicts token 0: the first step reads its states
        states = state.prefix_states[:, :-1]
        if states.shape[1] > 0:
            # with a blank block, which the first step overwrites
            x = F.pad(self.net.read(states), (0, 0, 0, self.net.block))
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
        """Return the places of the last commit's ``entries`` and of the block after them.

        Entries past ``advance`` are void.
        """
        block = self.net.block
        layout = cache.layout
        cursor = cache.cursor(state.now.length, state.span)
        fresh = state.now.last.advance.shared
        if cursor.shared is None or fresh is None or state.cache.layout.width:
            return self._address_by_prompt(state, cache, entries)
        base = layout.slots[cursor.shared - fresh] + 1
        visible = F.pad(self.visible[None], (entries, 0)) if self.net.causal else None
        return run_address(base, entries + block, visible)

    def _address_by_prompt(self, state: DecodeState, cache: DecoderCache, entries: int) -> Address:
        """Return ``address`` for prompts of different lengths."""
        block = self.net.block
        length = state.now.length.device
        advance = state.now.last.advance.device
        start = length - advance
        columns = numbers(entries + block, start.device)
        new = columns[:entries]
        void = additive(new < advance[:, None])[:, None].expand(-1, block, -1)
        visible = torch.cat([void, self.visible.expand(len(void), -1, -1)], -1)
        # those at which each token was predicted
        slot_of = state.cache.layout.slot_of
        before = slot_of[start[:, None] + new + 1] - 1
        of_block = slot_of[length[:, None] + columns[:block]]
        positions = torch.cat([before, of_block], 1)
        after = cache.layout.slot_of[start] + 1
        cursor = cache.cursor(state.now.length, state.span)
        at = cursor.entries(after, entries, block, positions, visible)
        return at._replace(slots=after[:, None] + columns)


@register("proposal", "dflash")
class DFlashProposal(DrafterProposal):
    """DFlash: a block in one forward pass, on the target's states at several depths"""

    drafter_kind = "dflash"
    marginals = True
    static_trees: ClassVar[dict[str, str]] = {"chain": "block", "static": "static"}

    @property
    def samples(self) -> bool:  # type: ignore[override]
        """The public code drafts each slot's likeliest token at any temperature."""
        return self.variant == "paper"

    def refuses(self, choices: Choices) -> str | None:
        if choices.acceptance == "block" and not self.samples:
            return "the public code of DFlash chooses its tokens, so block verification has no p"
        return super().refuses(choices)

    def make(self, target: Target, max_depth: int) -> AnyDrafter:
        net: DFlash = self.network_of(target)
        if max_depth >= net.block:
            raise UserError(
                f"the tree may be {max_depth} levels deep but the drafter's blocks hold "
                f"{net.block - 1} drafts: give a smaller --depth, or an adaptive tree a "
                f"--depth-range of 0 {net.block} at most"
            )
        return DFlashDrafter(net, target.model)
