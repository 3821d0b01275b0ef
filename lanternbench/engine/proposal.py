"""The contracts between the engine and what drafts: a proposer, or a drafter with a tree policy.

State is explicit: ``init`` returns it, ``draft`` reads it, and ``update`` takes it and returns the next one.  It
consists of what ``engine.carry`` describes; a component keeps no other mutable state.  Code that is replayed as a CUDA
graph may read only the tensors of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.models.network import Network

# tokens [B, m], parent [m] or [B, m] (index among the nodes of the last call; None or depth 1: the root), visible
# (additive [b, m, nodes so far, root excluded], None: all), depth -> guided logits [B, m, V] after the nodes
Expand = Callable[[Tensor, Tensor | None, Tensor | None, int], Tensor]
Size = tuple[int, int]  # depth and nodes of a tree


class Proposer:
    """Where draft trees come from."""

    nodes: int  # maximum number of nodes of a tree, the root included
    max_depth: int
    width: int  # widest family of siblings
    uniforms: int = 0  # uniforms that a step uses besides those of verification
    update_uniforms: int = 0  # how many of these, counted from the end, ``update`` reads
    max_step_slots: int  # cache slots that a step fills after the committed prefix
    adapts: bool = False  # does a tree's size depend on what was accepted before?
    drafter: Drafter | None = None
    aux_layers: tuple[int, ...] = ()  # numbers of target layers after which it also reads hidden states

    def init(self, state: DecodeState) -> Any:
        """The initial state, after the target's prefill (``state.prefix_states`` [R, P, (1 + aux) · dim])."""
        return ()

    def draft(self, state: DecodeState, own: Any, u: Tensor) -> Draft:
        """The next draft tree, from uniforms u [B, uniforms]."""
        raise NotImplementedError

    def update(self, state: DecodeState, own: Any, result: StepResult) -> Any:
        """The next state; called once after each commit."""
        return own

    def canonical(self, own: Any) -> Any:
        """The state with unused entries set to zero, so that equivalent states compare equal."""
        return own

    def verification(self, rule: AcceptanceRule) -> AcceptanceRule:
        """The rule that verifies its drafts in a method with ``rule``."""
        return rule

    def sizes(self, own: Any) -> PerPrompt | None:
        """The requested ``Size`` of each prompt's next tree; None where it is always that of the draft tree."""
        return None

    def bucket(self, own: Any) -> Hashable:
        """A key for the shapes of the next draft where they change between steps; None where they are fixed."""
        return None

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        """Nodes read by each forward of the drafter after the first one, for a tree of this size."""
        return ()


class Drafter:
    """A model that predicts the tokens after the committed ones and after drafted nodes.

    A cursor is passed from call to call within one step.  ``per_level``: does ``expand`` run a forward?
    """

    per_level: bool = True
    aux_layers: tuple[int, ...] = ()  # see ``Proposer``
    step_slots: int = 0  # cache slots that a step fills, where they do not depend on the tree

    def init(self, state: DecodeState, max_nodes: int) -> Any:
        """``max_nodes``: how many nodes one step expands at most."""
        return ()

    def root(self, state: DecodeState, own: Any) -> tuple[Tensor, Any]:
        """Read the tokens of the last commit -> guided logits [B, V] after the last of them, and a cursor."""
        raise NotImplementedError

    def expand(
        self, state: DecodeState, own: Any, cursor: Any, tokens: Tensor, parent: Tensor | None,
        visible: Tensor | None, depth: int,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """See ``Expand``; also returns the cursor for the next call."""
        raise NotImplementedError

    def network(self) -> Network:
        """The size of the network, for cost models."""
        raise NotImplementedError


class TreeBuilder:
    """A tree policy that is built: turns a drafter's distributions into draft trees."""

    nodes: int
    max_depth: int
    width: int
    uniforms: int = 0
    adapts: bool = False

    def init(self, state: DecodeState) -> Any:
        return ()

    def grow(self, state: DecodeState, own: Any, logits: Tensor, expand: Expand, u: Tensor) -> Draft:
        """logits [B, V] after the root, u [B, uniforms] -> a tree."""
        raise NotImplementedError

    def update(self, state: DecodeState, own: Any, result: StepResult) -> Any:
        """The next state, where ``init`` gives one; called once after each commit."""
        return own

    def sizes(self, own: Any) -> PerPrompt | None:
        return None

    def bucket(self, own: Any) -> Hashable:
        return None

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        """Nodes that are expanded on each level below the root but the deepest, for a tree of this size.

        By default all levels are assumed to have equal width.
        """
        return (-(-(nodes - 1) // max(depth, 1)),) * (depth - 1)
