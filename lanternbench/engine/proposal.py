"""The contracts between the engine and what drafts: a proposal, and a drafter with a tree policy.

State is explicit and of what ``engine.carry`` describes: ``begin`` returns it, ``draft`` reads it,
``update`` returns the next one.  Code that is replayed as a CUDA graph may read only its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Literal, TypeAlias

from torch import Tensor

from lanternbench.component import Choices, Component, Prepared
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.draft import Draft
from lanternbench.engine.plain import TreeSpec, WindowSpec
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.verify import AcceptanceRule, RatioTest
from lanternbench.models.network import Network
from lanternbench.models.target import Target

# tokens [B, m], parent [m] or [B, m] (index among the nodes of the last call; None or depth 1: the
# root), visible
# (additive [b, m, nodes so far, root excluded], None: all), depth -> guided logits [B, m, V] after
# the nodes
Expand = Callable[[Tensor, Tensor | None, Tensor | None, int], Tensor]
Size = tuple[int, int]  # depth and nodes of a tree
Search: TypeAlias = Literal["shape", "length", "growth", "bounds"]


class Drafter:
    """A model that predicts the tokens after the committed ones and after drafted nodes."""

    per_level: bool = True  # does ``Expand`` run a forward?
    aux_layers: tuple[int, ...] = ()  # see ``Proposal``
    step_slots: int = 0  # cache slots that a step fills, where they do not depend on the tree

    def begin(self, state: DecodeState, max_nodes: int) -> Any:
        """``max_nodes``: how many nodes one step expands at most."""
        return ()

    def root(self, state: DecodeState, drafter_state: Any) -> tuple[Tensor, Expand]:
        """Read the tokens of the last commit -> guided logits [B, V] after the last of them, and
        what drafts on.
        """
        raise NotImplementedError

    def network(self) -> Network:
        """The size of the network, for cost models."""
        raise NotImplementedError


class Growing(Component):
    """What proposals and tree policies have in common: sizes of drafts, and a state."""

    nodes = Prepared(1)  # maximum number of nodes of a tree, the root included
    max_depth = Prepared(0)
    width = Prepared(0)  # widest family of siblings
    uniforms = Prepared(0)  # uniforms that a step uses besides those of verification
    adapts = Prepared(False)  # does a tree's size depend on what was accepted before?

    def begin(self, state: DecodeState) -> Any:
        """The initial state, after the target's prefill (``state.prefix_states`` [R, P, (1 + aux)
        · dim]).
        """
        return ()

    def update(self, state: DecodeState, proposer_state: Any, result: StepResult) -> Any:
        """The next state after a commit, by work on the device: recorded as CUDA graphs are."""
        return proposer_state

    @property
    def updates(self) -> bool:
        """Whether ``update`` does anything."""
        return type(self).update is not Growing.update

    @property
    def plans(self) -> bool:
        """Whether ``plan`` does anything."""
        return type(self).plan is not Growing.plan

    def plan(self, state: DecodeState, proposer_state: Any) -> Any:
        """The next state after a commit, by work on the host, which knows the new lengths."""
        return proposer_state

    def sizes(self, proposer_state: Any) -> PerPrompt | None:
        """The requested ``Size`` of each prompt's next tree; None where it is always that of the
        draft tree.
        """
        return None

    def bucket(self, proposer_state: Any) -> Hashable:
        """A key for the shapes of the next draft where they change between steps; None where they
        are fixed.
        """
        return None


class TreePolicy(Growing):
    """Turns a drafter's distributions into draft trees."""

    search: ClassVar[Search | None] = None  # how `tune` finds its sizes; None: as ``tuned`` says

    def prepare(self, target: Target, proposal: Proposal) -> TreePolicy:
        """The policy for the drafts of ``proposal``, ready to decode."""
        return self

    def plain(self) -> TreeSpec | None:
        """Its plain definition; None where it has none."""
        return None

    def grow(
        self, state: DecodeState, tree_state: Any, logits: Tensor, expand: Expand, u: Tensor
    ) -> Draft:
        """logits [B, V] after the root, u [B, uniforms] -> a tree."""
        raise NotImplementedError

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        """Nodes that are expanded on each level below the root but the deepest, for a tree of this
        size; here equal.
        """
        return (-(-(nodes - 1) // max(depth, 1)),) * (depth - 1)


class Proposal(Growing):
    """Where draft trees come from."""

    drafter_kind: ClassVar[str | None] = None  # kind of drafter that the target must have
    # are children of static trees sampled, or the drafter's likeliest tokens?
    samples: ClassVar[bool] = True
    marginals: ClassVar[bool] = False  # do all nodes of a level share one distribution?
    # tree -> the target's default
    static_trees: ClassVar[dict[str, str]] = {"chain": "chain", "static": "static"}
    # trees that it drafts; None: any but "none"
    tree_names: ClassVar[tuple[str, ...] | None] = None
    tree_is_own: ClassVar[bool] = False  # is the tree implied by the proposal, its options unused?
    in_rows: ClassVar[bool] = False  # can it draw several rows at once?
    # why a chain's tokens are no sample of the product of their p
    no_joint_sample: ClassVar[str | None] = None

    # how many of ``uniforms``, counted from the end, ``update`` reads
    update_uniforms = Prepared(0)
    max_step_slots = Prepared(1)  # cache slots that a step fills after the committed prefix
    drafter = Prepared[Drafter | None](None)
    # target layers after which it also reads hidden states
    aux_layers = Prepared[tuple[int, ...]](())

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> Proposal:
        """Ready to decode; ``tree`` is prepared, unless ``tree_is_own``.  Raises UserError for a
        target that cannot.
        """
        return self

    def plain(self, tree: TreePolicy) -> TreeSpec | WindowSpec | None:
        """Its plain definition with this tree; None where it has none."""
        return None

    def verification(self, rule: RatioTest) -> RatioTest:
        """The rule that verifies its drafts in a method with ``rule``."""
        return rule

    @property
    def lasting_noise(self) -> bool:
        """Do several steps read the same noise, so that one step's outcomes are not independent of
        another's?
        """
        return False

    def refuses(self, choices: Choices) -> str | None:
        if self.tree_names is None:
            return "a drafter needs a tree" if choices.tree == "none" else None
        trees = " or ".join(self.tree_names)
        reason = (
            f"the proposal '{choices.proposal}' drafts with tree {trees}, not '{choices.tree}'"
        )
        return None if choices.tree in self.tree_names else reason

    def draft(self, state: DecodeState, proposer_state: Any, u: Tensor) -> Draft:
        """The next draft tree, from uniforms u [B, uniforms]."""
        raise NotImplementedError

    def canonical(self, proposer_state: Any) -> Any:
        """The state with unused entries set to zero, so that equivalent states compare equal."""
        return proposer_state

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        """Nodes read by each forward of the drafter after the first one, for a tree of this size."""
        return ()
