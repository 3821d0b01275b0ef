"""Draft trees as tensors, and what verification decides on one.

Node 0 is the root: the last committed token, which every step reads again.  Shapes: b is 1 when
all prompts share the tree, else the batch B; N nodes; W the widest family of siblings; D the
depth.  ``engine.tree`` builds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

Paths = tuple[tuple[int, ...], ...]
MAX_DEPTH = 64


class Tree(NamedTuple):
    """Shape of a draft tree.  A node that a prompt does not use has depth −1 and is in no list of
    children.
    """

    depth: Tensor  # [b, N] 0 for the root
    children: Tensor  # [b, N, W] node ids in draft order, −1 = none
    ancestors: Tensor  # [b, N, N] bool: may node i attend to node j (itself included)
    max_depth: int

    @property
    def nodes(self) -> int:
        return self.depth.shape[1]

    @property
    def width(self) -> int:
        return self.children.shape[2]


class Level(NamedTuple):
    """One depth of a static tree: which nodes are expanded, and where their children go."""

    parents: tuple[int, ...]  # node ids; their children are numbered parent after parent
    rows: Tensor  # [C] which parent (index into ``parents``) a child belongs to
    ranks: Tensor  # [C] its rank among its siblings
    shape: tuple[int, int, int]  # −1, how many parents, children that are drawn for each
    # [m] index of the parents' parents among those of the level before; None at depth 1
    above: Tensor | None
    # [m] index of the parents among the nodes of the level before; None in a chain
    expanded: Tensor | None
    mask: Tensor | None  # additive [1, m, nodes expanded so far but the root]; None in a chain


class LaterRank(NamedTuple):
    """The j-th children of a static tree, j > 1: m of them, each with an elder sibling."""

    elders: Tensor  # [m] node ids of the siblings before
    elder_places: Tensor  # [m] places of these siblings among those of their own rank
    depth: Tensor  # [m]


class SiblingOrder(NamedTuple):
    """The C = N − 1 children of a static tree, first children first, then second children, …

    Column j of a node's W + 1 outcomes: its child j is the first that passed; the first column
    without a child: none did.
    """

    nodes: Tensor  # [C] their ids
    depth: Tensor  # [C]
    later: tuple[LaterRank, ...]
    last_child: Tensor  # [N] place of each node's last child; 0 for leaves
    is_leaf: Tensor  # [N, 1] bool
    tests: (
        Tensor  # [N, W + 1] place of the child that decides on an outcome; C where there is none
    )
    outcomes: Tensor  # [N] number of each node's first outcome, if all are counted node by node
    onward: Tensor  # [N · (W + 1)] where an outcome leads: to a child, or nowhere on
    tried: Tensor  # [N · (W + 1)] how many children an outcome examined
    paths: Tensor  # [N, D + 1] from the root to each node, padded with the node
    levels: Tensor  # [N] depth of each node

    def walk(self, passed: Tensor) -> tuple[Tensor, Tensor]:
        """passed [B, C]: which children are accepted if tried -> the node at which each prompt
        stops [B], children of each node that were examined if it was reached [B, N].
        """
        decided = F.pad(passed, (0, 1), value=True)[:, self.tests]  # [B, N, W + 1]
        outcome = decided.int().argmax(-1) + self.outcomes
        onward = self.onward.take(outcome)
        depth = self.paths.shape[1] - 1
        for _ in range((depth - 1).bit_length()):  # doubles the number of steps onward
            onward = onward.gather(1, onward)
        return onward.select(1, 0), self.tried.take(outcome)


@dataclass(frozen=True, eq=False)
class StaticTree:
    """A tree whose shape is data.  Nodes are numbered level by level, siblings side by side in
    draft order.
    """

    tree: Tree
    levels: tuple[Level, ...]
    inner_ids: Tensor  # [M] nodes that have children, in order of depth
    inner_index: Tensor  # [N] index of each node among the inner ones, −1 for leaves
    siblings: SiblingOrder
    sizes: Tensor  # [1, N] number of children of every node
    paths: Paths  # of every node but the root, ranks from the root
    mask: Tensor | None  # additive [1, N, N] of ``ancestors``, None for a lone root

    @property
    def is_chain(self) -> bool:
        return self.tree.width == 1

    def to(self, device: torch.device) -> StaticTree:
        return StaticTree(
            **tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, vars(self))
        )


class Draft(NamedTuple):
    """What a proposal gives to verification: ``static`` where all prompts share one fixed shape,
    else ``grown``.
    """

    tokens: Tensor  # [B, N], node 0 = the last committed token
    # [B, M, V] distributions that the children of the inner nodes were sampled from
    p: Tensor | None = None
    static: StaticTree | None = None  # the tree, where all prompts share one fixed shape
    grown: Tree | None = None  # else a tree per prompt

    @property
    def tree(self) -> Tree:
        shape = self.static.tree if self.static is not None else self.grown
        assert shape is not None
        return shape

    @property
    def is_chain(self) -> bool:
        """Is it one chain for every prompt, so that a node's id is its depth?  A lone root is."""
        return self.static is not None and (self.static.is_chain or self.static.tree.nodes == 1)


def additive(visible: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bool mask -> 0 where visible, −∞ elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, -torch.inf
    )


class VerifyResult(NamedTuple):
    """What a verification decides."""

    # [B, D + 1] node ids from the root; entries past ``accepted`` repeat the last one
    path: Tensor
    accepted: Tensor  # [B] drafted tokens accepted, 0 … D
    token: Tensor  # [B] the residual or bonus token
    tried: Tensor  # [B, N] children of each node that were examined if it was reached


def walk(tree: Tree, exists: Tensor, accept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """accept [B, N, W]: which children are accepted if tried -> path [B, D + 1], accepted [B],
    tried [B, N].
    """
    some, first = accept.any(-1), accept.int().argmax(-1)  # the first accepted child
    chosen = tree.children.expand_as(accept).gather(-1, first[..., None])[..., 0]
    onward = torch.where(some, chosen, torch.arange(tree.nodes, device=accept.device))  # or stay
    path = [torch.zeros_like(onward[:, :1])]
    for _ in range(tree.max_depth):
        path.append(onward.gather(1, path[-1]))
    nodes = torch.cat(path, 1)
    return (
        nodes,
        (nodes[:, 1:] != nodes[:, :-1]).sum(1),
        torch.where(some, first + 1, exists.sum(-1)),
    )
