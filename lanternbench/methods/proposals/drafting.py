"""Drafts of a drafter and a tree policy, and drafters with a cached decoder of their own: EAGLE's and a model's."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from lanternbench.engine import row_ends
from lanternbench.engine.address import append_address, level_address, prefix_address
from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.opening import open_cache
from lanternbench.engine.proposal import Drafter, Proposer, TreeBuilder
from lanternbench.engine.row_ends import ROOT, Group
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft
from lanternbench.models.network import Network, network


class DraftedState(NamedTuple):
    drafter: Any
    tree: Any


class DraftedTree(Proposer):
    """A drafter and a tree policy."""

    def __init__(self, drafter: Drafter, tree: TreeBuilder):
        self.drafter: Drafter = drafter
        self.tree, self.adapts = tree, tree.adapts
        self.nodes, self.max_depth, self.width = tree.nodes, tree.max_depth, tree.width
        self.uniforms, self.aux_layers = tree.uniforms, drafter.aux_layers
        expanded = tree.nodes + tree.width * max(tree.max_depth, 1)  # dynamic trees expand more than they keep
        self.max_step_slots = max(expanded, drafter.step_slots)

    def init(self, state: DecodeState) -> DraftedState:
        return DraftedState(self.drafter.init(state, self.max_step_slots), self.tree.init(state))

    def draft(self, state: DecodeState, own: DraftedState, u: Tensor) -> Draft:
        logits, cursor = self.drafter.root(state, own.drafter)

        def expand(tokens: Tensor, parent: Tensor | None, visible: Tensor | None, depth: int) -> Tensor:
            nonlocal cursor
            logits, cursor = self.drafter.expand(state, own.drafter, cursor, tokens, parent, visible, depth)
            return logits

        return self.tree.grow(state, own.tree, logits, expand, u)

    def update(self, state: DecodeState, own: DraftedState, result: StepResult) -> DraftedState:
        if own.tree == ():  # a tree policy without a state has nothing to update
            return own
        return own._replace(tree=self.tree.update(state, own.tree, result))

    def sizes(self, own: DraftedState) -> PerPrompt | None:
        return self.tree.sizes(own.tree)

    def bucket(self, own: DraftedState) -> Hashable:
        return self.tree.bucket(own.tree)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        return self.tree.levels(depth, nodes) if self.drafter.per_level else ()


class CachedState(NamedTuple):
    cache: DecoderCache


class Cursor(NamedTuple):
    """After one level of drafted nodes."""

    states: Tensor  # [R, m, dim] that predict the tokens after them
    slots: int = 0  # filled after the committed tokens in this step
    groups: tuple[Group, ...] = ROOT  # what is in them, where row ends may be


class CachedDrafter(Drafter):
    """A drafter with a decoder of its own and a head, EAGLE's or an independent model's."""

    def __init__(self, net: Any, lm: Any):
        """``lm``: the decoder whose head is used."""
        self.net, self.lm = net, lm

    def network(self) -> Network:
        return network(self.net, self.lm, self.net.layers)

    def embed(self, tokens: Tensor) -> Tensor:
        """Image tokens [B, m] -> [B, m, dim]."""
        raise NotImplementedError

    def read(self, embedding: Tensor, states: Tensor | None) -> Tensor:
        """Embeddings of tokens and what stands for the states before them, [R, m, dim] -> the decoder's inputs."""
        raise NotImplementedError

    def target_states(self, states: Tensor | None) -> Tensor | None:
        """The target's states, as ``read`` takes them; None where it takes none."""
        return None

    def root(self, state: DecodeState, own: CachedState) -> tuple[Tensor, Cursor]:
        """The tokens of the last commit are appended."""
        state.clock.tick("other")
        cache, last, length = own.cache, state.now.last, state.now.length
        x = self.read(cache.all_rows(self.embed(last.tokens)), self.target_states(last.hidden))
        if cache.row_end is None:
            at = append_address(cache.layout, length, last.advance, x.shape[1])
            cursor = Cursor(cache.forward_last(x, at, last.advance))
        else:
            before = last.before
            ends = None if before is None else partial(self.row_end, cache, self.target_states(before))
            states, groups = row_ends.append(cache, x, ends, partial(self.row_end, cache), length, last.advance)
            cursor = Cursor(states, groups=groups)
        return self._logits(state, cursor.states[:, 0]), cursor

    def row_end(self, cache: DecoderCache, states: Tensor | None, like: Tensor) -> Tensor:
        """The inputs of row ends, of the shape of ``like``, after tokens with these states."""
        assert cache.row_end is not None
        return self.read(cache.row_end.expand_as(like), states)

    def expand(
        self, state: DecodeState, own: CachedState, cursor: Cursor, tokens: Tensor, parent: Tensor | None,
        visible: Tensor | None, depth: int,
    ) -> tuple[Tensor, Cursor]:  # fmt: skip
        state.clock.tick("other")
        cache, m, length = own.cache, tokens.shape[1], state.now.length
        before = parent_states(cache, cursor.states, parent, m, depth)
        x = self.read(cache.all_rows(self.embed(tokens)), before)
        if cache.row_end is None:
            states = cache.forward(x, level_address(cache.layout, length, cursor.slots, m, depth, visible))
            cursor = Cursor(states, cursor.slots + m)
        else:
            states, groups = row_ends.level(
                cache, x, cursor.groups, visible, depth, partial(self.row_end, cache), length
            )
            cursor = Cursor(states, groups=groups)
        return self._logits(state, cursor.states), cursor

    def _logits(self, state: DecodeState, states: Tensor) -> Tensor:
        """states [R, …, dim] -> guided logits [B, …, V]."""
        logits = self.lm.logits(states, state.guidance)
        state.clock.tick("draft")
        return logits


class EagleDrafter(CachedDrafter):
    """EAGLE-1 to 3 (Li et al. 2024, 2025): a few layers over the target's states and the next tokens' embeddings.

    Its entry for position t reads the target's states there and token t + 1: its cache lags one slot behind.
    """

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


class ModelDrafter(CachedDrafter):
    """An independent, smaller model of the target's kind (Leviathan et al. 2023); it reads the same prompt."""

    def init(self, state: DecodeState, max_nodes: int) -> CachedState:
        prefix, net = state.prefix, self.net
        cache = open_cache(state.target, net, prefix, max_nodes, row_end=lambda ids: net.prompt_embeddings(ids))
        cache.prefill(net.cls_embedding(prefix.features), prefix_address(prefix.valid), prefix.valid)
        return CachedState(cache)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.net.tok_embeddings(tokens)

    def read(self, embedding: Tensor, states: Tensor | None) -> Tensor:
        return embedding


def parent_states(cache: DecoderCache, states: Tensor, parent: Tensor | None, m: int, depth: int) -> Tensor:
    """The states [R, m, dim] at the parents of m nodes, out of those of the last level (see ``Expand``)."""
    if depth == 1 or parent is None:
        return states.expand(-1, m, -1)
    if parent.ndim == 1:
        return states if m == 1 == states.shape[1] else states[:, parent]
    return cache.states_at(states, parent)
