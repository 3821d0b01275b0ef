"""Proposals that draft with a drafter of the target, by any tree policy: EAGLE's, and an
independent model.
"""

from collections.abc import Hashable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor

from lanternbench.component import Prepared
from lanternbench.engine.address import prefix_address
from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.opening import open_cache
from lanternbench.engine.plain import TreeSpec
from lanternbench.engine.proposal import Drafter, Expand, Proposal, TreePolicy
from lanternbench.engine.row_ends import ROOT, RowEnds
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.errors import UserError
from lanternbench.methods.proposals.jacobi import NoDraft
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target
from lanternbench.registry import register


class DraftedState(NamedTuple):
    drafter: Any
    tree: Any


class DrafterProposal(Proposal):
    """A drafter of the target and a tree policy."""

    drafter = Prepared[Drafter]()
    tree = Prepared[TreePolicy]()

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        """The drafter of trees of ``max_depth`` levels; ``net``: its network."""
        raise NotImplementedError

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> Proposal:
        """Raises UserError if the target has no drafter of this kind, or one that does not fit."""
        if tree.max_depth == 0:
            return NoDraft().prepare(target, tree, rule)
        kind, have = self.drafter_kind, ", ".join(sorted(target.drafters)) or "none"
        net = target.drafters.get(str(kind))
        if net is None:
            lacks = f"target '{target.name}' has no drafter of kind '{kind}' (it has: {have})"
            raise UserError(f"{lacks}; choose another method or give one with --drafter")
        if other := net.misfit(target):
            misfit = f"the drafter of kind '{kind}' does not fit target '{target.name}': {other}"
            raise UserError(f"{misfit}; give a drafter made for it")
        return self.drafting(self.make(net, target, tree.max_depth), tree)

    def drafting(self, drafter: Drafter, tree: TreePolicy) -> Self:
        """The proposal, ready to draft with these."""
        # dynamic trees expand more than they keep
        expanded = tree.nodes + tree.width * max(tree.max_depth, 1)
        slots = max(expanded, drafter.step_slots)
        return self.ready(
            drafter=drafter, tree=tree, aux_layers=drafter.aux_layers, max_step_slots=slots,
            nodes=tree.nodes, max_depth=tree.max_depth, width=tree.width, uniforms=tree.uniforms, adapts=tree.adapts,
        )  # fmt: skip

    def plain(self, tree: TreePolicy) -> TreeSpec | None:
        return tree.plain()

    def begin(self, state: DecodeState) -> DraftedState:
        return DraftedState(self.drafter.begin(state, self.max_step_slots), self.tree.begin(state))

    def draft(self, state: DecodeState, proposer_state: DraftedState, u: Tensor) -> Draft:
        logits, expand = self.drafter.root(state, proposer_state.drafter)
        return self.tree.grow(state, proposer_state.tree, logits, expand, u)

    def update(
        self, state: DecodeState, proposer_state: DraftedState, result: StepResult
    ) -> DraftedState:
        return proposer_state._replace(tree=self.tree.update(state, proposer_state.tree, result))

    @property
    def updates(self) -> bool:
        return self.tree.updates

    @property
    def plans(self) -> bool:
        return self.tree.plans

    def plan(self, state: DecodeState, proposer_state: DraftedState) -> DraftedState:
        return proposer_state._replace(tree=self.tree.plan(state, proposer_state.tree))

    def sizes(self, proposer_state: DraftedState) -> PerPrompt | None:
        return self.tree.sizes(proposer_state.tree)

    def bucket(self, proposer_state: DraftedState) -> Hashable:
        return self.tree.bucket(proposer_state.tree)

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        return self.tree.levels(depth, nodes) if self.drafter.per_level else ()


class EagleDrafter(Drafter):
    """EAGLE-1 to 3 (Li et al. 2024, 2025): a few layers over the target's states and the next
    tokens' embeddings.

    Its entry for position t reads the target's states there and token t + 1: its cache lags one
    slot behind.
    """

    def __init__(self, net: Any, lm: Any):
        """``lm``: the target's decoder, whose head is used."""
        self.net, self.lm, self.aux_layers = net, lm, net.aux_layers(lm)

    def network(self) -> Network:
        return network(self.net, self.lm, self.net.layers)

    def begin(self, state: DecodeState, max_nodes: int) -> DecoderCache:
        prefix, net, hidden = state.prefix, self.net, state.prefix_states
        assert hidden is not None
        cache = open_cache(state.target, net, prefix, max_nodes, self.lm)
        # entry t: the state of position t, with what stands for token t + 1 and its position
        if hidden.shape[1] > 1:
            x = net.fuse(net.embed_prompt(prefix.ahead_ids, self.lm), net.read(hidden[:, :-1]))
            cache.prefill(x, prefix_address(prefix.seen, 1), prefix.seen)
        return cache

    def embed(self, tokens: Tensor) -> Tensor:
        """Image tokens [B, m] -> [B, m, dim]."""
        return self.net.embed(tokens, self.lm)

    def target_states(self, states: Tensor | None) -> Any:
        """The target's states, as ``read`` takes them."""
        return self.net.read(states)

    def read(self, embedding: Tensor, states: Any) -> Tensor:
        """Embeddings of tokens and what stands for the states before them, [R, m, dim] -> the
        decoder's inputs.
        """
        return self.net.fuse(embedding, states)

    def root(self, state: DecodeState, cache: DecoderCache) -> tuple[Tensor, Expand]:
        """The tokens of the last commit are appended; drafted nodes fill the next slots, level by
        level.
        """
        state.clock.tick("other")
        last = state.now.last
        cursor = cache.cursor(state.now.length, state.span)
        x = self.read(cache.all_rows(self.embed(last.tokens)), self.target_states(last.hidden))
        ends: RowEnds | None = None
        filled = 0
        groups = ROOT
        if cache.row_end is None:
            at = cursor.append(last.advance, x.shape[1])
            states = cache.forward_last(x, at, last.advance)
        else:
            ends = RowEnds(cache, partial(self.row_end, cache), cursor)
            before = None
            if last.before is not None:
                before = partial(self.row_end, cache, self.target_states(last.before))
            states, groups = ends.append(x, before, last.advance)

        def expand(
            tokens: Tensor, parent: Tensor | None, visible: Tensor | None, depth: int
        ) -> Tensor:
            nonlocal states, filled, groups
            state.clock.tick("other")
            m = tokens.shape[1]
            above = parent_states(cache, states, parent, m, depth)
            x = self.read(cache.all_rows(self.embed(tokens)), above)
            if ends is None:
                states = cache.forward(x, cursor.level(filled, m, depth, visible))
                filled += m
            else:
                states, groups = ends.level(x, groups, visible, depth)
            return self._logits(state, states)

        return self._logits(state, states[:, 0]), expand

    def row_end(self, cache: DecoderCache, states: Tensor | None, like: Tensor) -> Tensor:
        """The inputs of row ends, of the shape of ``like``, after tokens with these states."""
        assert cache.row_end is not None
        return self.read(cache.row_end.expand_as(like), states)

    def _logits(self, state: DecodeState, states: Tensor) -> Tensor:
        """states [R, …, dim] -> guided logits [B, …, V]."""
        logits = self.lm.logits(states, state.guidance)
        state.clock.tick("draft")
        return logits


class ModelDrafter(EagleDrafter):
    """An independent, smaller model of the target's kind (Leviathan et al. 2023); it reads the
    same prompt.
    """

    def __init__(self, net: Any):
        self.net, self.lm = net, net

    def begin(self, state: DecodeState, max_nodes: int) -> DecoderCache:
        prefix, net = state.prefix, self.net
        cache = open_cache(state.target, net, prefix, max_nodes)
        cache.prefill(
            net.cls_embedding(prefix.features), prefix_address(prefix.valid), prefix.valid
        )
        return cache

    def embed(self, tokens: Tensor) -> Tensor:
        return self.net.tok_embeddings(tokens)

    def target_states(self, states: Tensor | None) -> None:
        """None: it reads none."""

    def read(self, embedding: Tensor, states: Any) -> Tensor:
        return embedding


@register("proposal", "eagle")
class EagleProposal(DrafterProposal):
    """EAGLE: a few layers on the target's last states"""

    drafter_kind: ClassVar[str | None] = "eagle"

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        return EagleDrafter(net, target.model)


@register("proposal", "eagle-3")
class Eagle3Proposal(EagleProposal):
    """EAGLE-3: the same on the target's states at three depths"""

    drafter_kind: ClassVar[str | None] = "eagle-3"


@register("proposal", "model")
class ModelProposal(DrafterProposal):
    """an independent small model of the target's kind"""

    drafter_kind: ClassVar[str | None] = "model"

    def make(self, net: Any, target: Target, max_depth: int) -> Drafter:
        return ModelDrafter(net)


def parent_states(
    cache: DecoderCache, states: Tensor, parent: Tensor | None, m: int, depth: int
) -> Tensor:
    """The states [R, m, dim] at the parents of m nodes, out of those of the last level (see
    ``Expand``).
    """
    if depth == 1 or parent is None:
        return states.expand(-1, m, -1)
    if parent.ndim == 1:
        return states if m == 1 == states.shape[1] else states[:, parent]
    return cache.states_at(states, parent)
