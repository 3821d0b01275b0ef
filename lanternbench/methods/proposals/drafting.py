"""Proposals that draft with a drafter of the target, by any tree: EAGLE's, and an independent
model.

B prompts, R rows (2B with guidance), m nodes, A new tokens, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from torch import Tensor

from lanternbench.component import Choices
from lanternbench.engine.cache import DecoderCache, prefix_address
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.opening import open_cache
from lanternbench.engine.proposal import (
    AnyDrafter,
    AnyProposer,
    AnyTreeGrower,
    Drafter,
    DraftSize,
    Expand,
    Proposal,
    Proposer,
    TreePolicy,
)
from lanternbench.engine.row_ends import ROOT, RowEnds
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.errors import UserError
from lanternbench.methods.proposals.jacobi import LoneRoots, NoDraft
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.drafters.flashar import FlashAR
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target
from lanternbench.registry import register


class DrafterProposal(Proposal):
    """A drafter of the target and a tree."""

    def make(self, target: Target, max_depth: int) -> AnyDrafter:
        """Return the drafter of trees of ``max_depth`` levels."""
        raise NotImplementedError

    def build(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> AnyProposer:
        """Raises UserError if the target has no drafter of this kind, or one that does not fit."""
        return self.drafting(target, tree.build(target, self.samples))

    def drafting(self, target: Target, tree: AnyTreeGrower) -> AnyProposer:
        """Return what drafts the trees of ``tree``.  Raises UserError as ``build``."""
        if tree.size.max_depth == 0:
            return LoneRoots.of(target)
        drafter = self.make(target, tree.size.max_depth)
        return DraftedTrees(tree.size, drafter, tree)

    def network_of(self, target: Target) -> Any:
        """Return the network of the target's drafter.  Raises UserError as ``build``."""
        kind = self.drafter_kind
        net = target.drafters.get(str(kind))
        if net is None:
            available = ", ".join(sorted(target.drafters)) or "none"
            raise UserError(
                f"target '{target.name}' has no drafter of kind '{kind}' (it has: {available}); "
                "choose another method or give one with --drafter"
            )
        misfit = net.misfit(target)
        if misfit:
            raise UserError(
                f"the drafter of kind '{kind}' does not fit target '{target.name}': {misfit}; "
                "give a drafter made for it"
            )
        return net


class DraftedState(NamedTuple):
    """The states of a drafter and a tree, from step to step."""

    drafter: Any
    tree: Any


@dataclass(frozen=True, eq=False)
class DraftedTrees(Proposer[DraftedState]):
    """Trees that grow by a drafter's distributions."""

    size: DraftSize
    drafter: AnyDrafter
    tree: AnyTreeGrower

    @property
    def aux_layers(self) -> tuple[int, ...]:
        return self.drafter.aux_layers

    @cached_property
    def step_slots(self) -> int:
        size = self.size  # dynamic trees expand more nodes than they keep
        expanded = size.nodes + size.width * max(size.max_depth, 1)
        return max(expanded, self.drafter.step_slots)

    def begin(self, state: DecodeState) -> DraftedState:
        return DraftedState(self.drafter.begin(state, self.step_slots), self.tree.begin(state))

    def draft(self, state: DecodeState, own: DraftedState, u: Tensor) -> Draft:
        expand = self.drafter.expander(state, own.drafter)
        return self.tree.grow(state, own.tree, expand, u)

    @property
    def updates(self) -> bool:
        return self.tree.updates

    def update(self, state: DecodeState, own: DraftedState, result: StepResult) -> DraftedState:
        return own._replace(tree=self.tree.update(state, own.tree, result))

    @property
    def plans(self) -> bool:
        return self.tree.plans

    def plan(self, state: DecodeState, own: DraftedState) -> DraftedState:
        return own._replace(tree=self.tree.plan(state, own.tree))

    def sizes(self, own: DraftedState) -> PerPrompt | None:
        return self.tree.sizes(own.tree)

    def bucket(self, own: DraftedState) -> Hashable:
        return self.tree.bucket(own.tree)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        if not self.drafter.per_level:
            return ()
        return self.tree.levels(depth, nodes)

    def network(self) -> Network:
        return self.drafter.network()


class LayeredDrafter(Drafter[DecoderCache]):
    """A decoder that reads the tokens of the last commit, then drafted nodes, level by level."""

    lm: ImageDecoder  # whose head is used

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Image tokens [B, m] -> [B, m, dim]."""

    @abstractmethod
    def inputs(self, embedding: Tensor, states: Tensor) -> Tensor:
        """Embeddings of tokens and what stands for the states before them, [R, m, dim] -> the
        decoder's inputs.
        """

    def target_states(self, states: Tensor) -> Tensor:
        """The target's states, in the form that ``inputs`` takes."""
        return states

    def expander(self, state: DecodeState, cache: DecoderCache) -> Expand:
        """Append the last commit's tokens; drafted nodes fill the next slots level by level."""
        state.clock.tick("other")
        last = state.now.last
        cursor = cache.cursor(state.now.length, state.span)
        embedding = cache.all_rows(self.embed(last.tokens))
        x = self.inputs(embedding, self.target_states(last.hidden))
        ends: RowEnds | None = None
        filled = 0
        groups = ROOT
        if cache.row_end is None:
            at = cursor.append(last.advance, x.shape[1])
            states = cache.forward_last(x, at, last.advance)
        else:
            row_end = partial(self.row_end, cache.row_end)
            ends = RowEnds(cache, row_end, cursor)
            before = None
            if last.before is not None:
                before = partial(row_end, self.target_states(last.before))
            states, groups = ends.append(x, before, last.advance)

        def expand(
            tokens: Tensor,
            parent: Tensor | None,
            visible: Tensor | None,
            depth: int,
        ) -> Tensor:
            nonlocal states, filled, groups
            if depth > 0:
                state.clock.tick("other")
                m = tokens.shape[1]
                above = parent_states(cache, states, parent, m)
                x = self.inputs(cache.all_rows(self.embed(tokens)), above)
                if ends is None:
                    states = cache.forward(x, cursor.level(filled, m, depth, visible))
                    filled += m
                else:
                    states, groups = ends.level(x, groups, visible, depth)
            logits = self.lm.logits(states, state.guidance)
            state.clock.tick("draft")
            return logits

        return expand

    def row_end(self, embedding: Tensor, states: Tensor, like: Tensor) -> Tensor:
        """Return the inputs of row ends after tokens with these states, shaped as ``like``.

        embedding [dim] of a row end
        """
        return self.inputs(embedding.expand_as(like), states)


class EagleDrafter(LayeredDrafter):
    """EAGLE-1 to 3 (Li et al. 2024, 2025): a few layers over the target's states and the next
    tokens' embeddings.

    Its entry for position t reads the target's states there and token t + 1: its cache lags one
    slot behind.
    """

    def __init__(self, net: Eagle, lm: ImageDecoder):
        """``lm``: the target's decoder."""
        self.net = net
        self.lm = lm
        self.aux_layers = net.aux_layers(lm)

    def network(self) -> Network:
        return network(self.net, self.lm, self.net.layers)

    def begin(self, state: DecodeState, max_nodes: int) -> DecoderCache:
        prefix = state.prefix
        cache = open_cache(state.target, self.net, prefix, max_nodes, self.lm)
        # entry t: the state of position t, with what stands for token t + 1 and its position
        states = state.prefix_states[:, :-1]
        if states.shape[1] > 0:
            ahead = self.net.embed_prompt(prefix.ahead_ids, self.lm)
            x = self.net.fuse(ahead, self.net.read(states))
            cache.forward(x, prefix_address(prefix.seen, 1))
            cache.hide_pads(prefix.seen)
        return cache

    def embed(self, tokens: Tensor) -> Tensor:
        return self.net.embed(tokens, self.lm)

    def target_states(self, states: Tensor) -> Tensor:
        return self.net.read(states)

    def inputs(self, embedding: Tensor, states: Tensor) -> Tensor:
        return self.net.fuse(embedding, states)


class ModelDrafter(LayeredDrafter):
    """An independent, smaller model of the target's kind (Leviathan et al. 2023); it reads the
    same prompt.
    """

    def __init__(self, net: ImageDecoder):
        self.lm = net

    def network(self) -> Network:
        return network(self.lm, self.lm, self.lm.layers)

    def begin(self, state: DecodeState, max_nodes: int) -> DecoderCache:
        prefix = state.prefix
        cache = open_cache(state.target, self.lm, prefix, max_nodes)
        x = self.lm.cls_embedding(prefix.features)
        cache.forward(x, prefix_address(prefix.valid))
        cache.hide_pads(prefix.valid)
        return cache

    def embed(self, tokens: Tensor) -> Tensor:
        embedding: Tensor = self.lm.tok_embeddings(tokens)
        return embedding

    def inputs(self, embedding: Tensor, states: Tensor) -> Tensor:
        return embedding


@register("proposal", "eagle")
class EagleProposal(DrafterProposal):
    """EAGLE: a few layers on the target's last states"""

    drafter_kind = "eagle"

    def make(self, target: Target, max_depth: int) -> AnyDrafter:
        return EagleDrafter(self.network_of(target), target.model)


@register("proposal", "eagle-3")
class Eagle3Proposal(EagleProposal):
    """EAGLE-3: the same on the target's states at three depths"""

    drafter_kind = "eagle-3"


@register("proposal", "model")
class ModelProposal(DrafterProposal):
    """an independent small model of the target's kind"""

    drafter_kind = "model"

    def make(self, target: Target, max_depth: int) -> AnyDrafter:
        return ModelDrafter(self.network_of(target))


@dataclass(frozen=True, eq=False)
class BranchedRoots(LoneRoots):
    """Drafts nothing; the order draws with the vertical branch ``net``."""

    net: FlashAR
    lm: ImageDecoder

    def network(self) -> Network:
        return network(self.net, self.lm, self.net.layers)


@register("proposal", "flashar")
class FlashARBranch(NoDraft, DrafterProposal):
    """no draft: FlashAR's vertical branch on the target's inner states"""

    drafter_kind = "flashar"
    in_rows = False

    def refuses(self, choices: Choices) -> str | None:
        if choices.order != "diagonal":
            return "FlashAR's branch predicts the row below, so it needs the order 'diagonal'"
        return super().refuses(choices)

    def build(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> BranchedRoots:
        """Raises UserError if the target has no branch, or one that does not fit."""
        roots = LoneRoots.of(target)
        return BranchedRoots(roots.size, roots.static, self.network_of(target), target.model)


def parent_states(cache: DecoderCache, states: Tensor, parent: Tensor | None, m: int) -> Tensor:
    """The states [R, m, dim] at the parents of m nodes, out of those of the last level (see
    ``Expand``).
    """
    if m == 1 == states.shape[1]:
        return states
    if parent is None:
        return states.expand(-1, m, -1)
    if parent.ndim > 1:
        return cache.states_at(states, parent)
    return states[:, parent]
