"""The contracts between the engine and what drafts.

What users set are options, ``Proposal`` and ``TreePolicy``.  ``build`` makes runtimes of them: a
``Proposer`` drafts, alone or with a ``Drafter`` and a ``TreeGrower``.

State is explicit and of what ``engine.carry`` describes: ``begin`` returns it, ``draft`` reads it,
``update`` returns the next one.  Code that is replayed as a CUDA graph may read only its tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

from torch import Tensor

from lanternbench.component import Choices, Component
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.relaxed import Residual
from lanternbench.engine.sampling import Warp
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule, RatioTest
from lanternbench.models.network import Network
from lanternbench.models.target import Target
from lanternbench.settings import Sampling

S = TypeVar("S")  # the state of what drafts

# tokens [B, m], parent [m] or [B, m] (index among the nodes of the last call; None: its only node),
# visible (additive [b, m, nodes so far, root excluded], None: all), depth -> guided logits [B, m, V]
# after the nodes.  The first call is for the root, at depth 0.
Expand = Callable[[Tensor, Tensor | None, Tensor | None, int], Tensor]
Size = tuple[int, int]  # depth and nodes of a tree
Search: TypeAlias = Literal["shape", "length", "growth", "bounds"]


class DraftSize(NamedTuple):
    """The largest draft of a method, and the uniforms of a step."""

    nodes: int  # the root included
    max_depth: int
    width: int  # of the widest family of siblings
    uniforms: int = 0  # besides those of verification
    update_uniforms: int = 0  # how many of these, counted from the end, ``update`` reads
    adapts: bool = False  # whether a tree's size depends on what was accepted before


class Drafter(ABC, Generic[S]):
    """A model that predicts the tokens after the committed ones and after drafted nodes."""

    per_level: ClassVar[bool] = True  # whether ``Expand`` runs a forward pass
    aux_layers: tuple[int, ...] = ()  # see ``Proposer``
    step_slots: int = 0  # cache slots that a step fills, if they do not depend on the tree

    def begin(self, state: DecodeState, max_nodes: int) -> S:
        """Return the initial state, if there is any; ``max_nodes``: how many nodes one step expands
        at most.
        """
        return cast(S, None)

    @abstractmethod
    def expander(self, state: DecodeState, drafter_state: S) -> Expand:
        """Read the tokens of the last commit -> what drafts on from them, first from the root."""

    def network(self) -> Network:
        """Return the size of the network, for cost models."""
        raise NotImplementedError


class Stateful(ABC, Generic[S]):
    """The common part of strategies, proposers and tree growers: the size of drafts, and a state."""

    size: DraftSize

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Target layers after which drafts also read hidden states."""
        return ()

    @property
    def step_slots(self) -> int:
        """Cache slots that a step fills after the committed tokens, at most."""
        return self.size.nodes

    def begin(self, state: DecodeState) -> S:
        """Return the initial state, if there is any, after the target's prefill
        (``state.prefix_states`` [R, P, (1 + aux) · dim]).
        """
        return cast(S, None)

    def update(self, state: DecodeState, own: S, result: StepResult) -> S:
        """Return the next state after a commit, by work on the device: recorded as CUDA graphs
        are.
        """
        return own

    @property
    def updates(self) -> bool:
        """Return whether ``update`` does anything."""
        return type(self).update is not Stateful.update

    def bucket(self, own: S) -> Hashable:
        """Return a key for the shapes of the next draft if they change between steps."""
        return None

    def canonical(self, own: S) -> S:
        """Return the state with unused entries set to zero, so that equivalent states compare
        equal.
        """
        return own


class Growing(Stateful[S]):
    """The common part of proposers and tree growers."""

    @property
    def plans(self) -> bool:
        """Return whether ``plan`` does anything."""
        return type(self).plan is not Growing.plan

    def plan(self, state: DecodeState, own: S) -> S:
        """Return the next state after a commit, by work on the host, which has the lengths."""
        return own

    def sizes(self, own: S) -> PerPrompt | None:
        """Return the requested ``Size`` of each prompt's next tree; None if it is always that of
        the draft tree.
        """
        return None

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        """Return the nodes that each forward pass of the drafter but the first reads, for a tree
        of this size.
        """
        return ()


class TreeGrower(Growing[S]):
    """Turns a drafter's distributions into draft trees."""

    @abstractmethod
    def grow(self, state: DecodeState, own: S, expand: Expand, u: Tensor) -> Draft:
        """Return a tree; u [B, uniforms]."""

    def levels(self, depth: int, nodes: int) -> tuple[int, ...]:
        """Return the nodes that are expanded on each level below the root but the deepest;
        equally many unless the tree says better.
        """
        return (-(-(nodes - 1) // max(depth, 1)),) * (depth - 1)


class Proposer(Growing[S]):
    """Gives the draft tree of each step."""

    @abstractmethod
    def draft(self, state: DecodeState, own: S, u: Tensor) -> Draft:
        """Return the next draft tree, from uniforms u [B, uniforms]."""

    def verification(self, rule: RatioTest) -> RatioTest:
        """Return the rule that verifies its drafts in a method with ``rule``."""
        return rule

    def network(self) -> Network | None:
        """Return the size of its drafter's network, for cost models; None without a drafter."""
        return None


AnyProposer: TypeAlias = Proposer[Any]
AnyTreeGrower: TypeAlias = TreeGrower[Any]
AnyDrafter: TypeAlias = Drafter[Any]


class TreePolicy(Component):
    """The options of a tree: what users set, and nothing else."""

    search: ClassVar[Search | None] = None  # how `tune` finds its sizes; None: as ``tuned`` says

    def build(self, target: Target, samples: bool) -> AnyTreeGrower:
        """Return what grows the trees; ``samples``: see ``Proposal``."""
        raise NotImplementedError


class Proposal(Component):
    """The options of a proposal: what users set, and nothing else."""

    drafter_kind: ClassVar[str | None] = None  # kind of drafter that the target must have
    # whether children of static trees are sampled, or the drafter's likeliest tokens
    samples: ClassVar[bool] = True
    marginals: ClassVar[bool] = False  # whether all nodes of a level share one distribution
    # tree -> the target's default
    static_trees: ClassVar[dict[str, str]] = {"chain": "chain", "static": "static"}
    # trees that it drafts; None: any but "none"
    tree_names: ClassVar[tuple[str, ...] | None] = None
    tree_is_own: ClassVar[bool] = False  # whether it implies the tree, whose options are unused
    in_rows: ClassVar[bool] = False  # whether it can draw several rows at once
    # why a chain's tokens are no sample of the product of their p
    no_joint_sample: ClassVar[str | None] = None

    def build(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> AnyProposer:
        """Return what drafts.  Raises UserError for a target that cannot."""
        raise NotImplementedError

    def warp(self, sampling: Sampling) -> Warp:
        """Return what makes distributions of the target's logits."""
        return Warp(sampling)

    def residual(self, residual: Residual, sampling: Sampling) -> Residual:
        """Return what a rejected draft is drawn from in a method with ``residual``."""
        return residual

    @property
    def lasting_noise(self) -> bool:
        """Return whether several steps read the same noise, so that one step's outcomes are not
        independent of another's.
        """
        return False

    def refuses(self, choices: Choices) -> str | None:
        if self.tree_names is None:
            return "a drafter needs a tree" if choices.tree == "none" else None
        if choices.tree in self.tree_names:
            return None
        trees = " or ".join(self.tree_names)
        return f"the proposal '{choices.proposal}' drafts with tree {trees}, not '{choices.tree}'"
