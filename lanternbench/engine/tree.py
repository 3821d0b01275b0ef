"""Draft trees as tensors: their shapes, how they are built, and questions about their nodes.

Node 0 is the root: the last committed token, which every step reads again.  Shapes: b is 1 if all
prompts share the tree, else the batch B; N nodes; M of them with children; C = N − 1 children; W
the widest family of siblings; D the depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from lanternbench.errors import UserError
from lanternbench.models.transformer import additive

Path = tuple[int, ...]  # ranks among siblings, from the root
Paths = tuple[Path, ...]
MAX_DEPTH = 64


@cache
def numbers(n: int, device: torch.device) -> Tensor:
    """Return 0 … n − 1 [n], the same tensor for all who ask."""
    return torch.arange(n, device=device)


class Tree(NamedTuple):
    """Shape of a draft tree.

    A node that a prompt does not use has depth −1 and is nobody's child.
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
    # None at depth 1 and in a chain: [m] index of the parents' parents among those of the level
    # before, and of the parents among its nodes
    above: Tensor | None = None
    expanded: Tensor | None = None
    mask: Tensor | None = None  # additive [1, m, nodes expanded so far but the root]


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
    # [N, W + 1] place of the child that decides on an outcome; C if there is none
    tests: Tensor
    onward: Tensor  # [N, W + 1] where an outcome leads: to a child, or nowhere on
    tried: Tensor  # [N, W + 1] how many children an outcome examined
    paths: Tensor  # [N, D + 1] from the root to each node, padded with the node
    levels: Tensor  # [N] depth of each node


@dataclass(frozen=True, eq=False)
class StaticTree:
    """A tree whose shape is data.

    Nodes are numbered level by level, siblings next to each other in draft order.
    """

    tree: Tree
    levels: tuple[Level, ...]
    inner_ids: Tensor  # [M] nodes that have children, in order of depth
    inner_index: Tensor  # [N] index of each node among the inner ones, −1 for leaves
    siblings: SiblingOrder
    sizes: Tensor  # [1, N] number of children of every node
    paths: Paths  # of every node but the root, ranks from the root
    mask: Tensor | None  # additive [1, N, N] of ``ancestors``, None for a lone root
    is_chain: bool  # whether a node's id is its depth; a lone root is a chain

    def to(self, device: torch.device) -> StaticTree:
        def moved(x: object) -> object:
            return x.to(device) if isinstance(x, Tensor) else x

        return StaticTree(**tree_map(moved, vars(self)))


class Draft(NamedTuple):
    """The draft that a proposal gives to verification."""

    tokens: Tensor  # [B, N], node 0 = the last committed token
    # [B, M, V] distributions that the children of the inner nodes were sampled from
    p: Tensor | None = None
    static: StaticTree | None = None  # the tree, if all prompts share one fixed shape
    grown: Tree | None = None  # else a tree per prompt

    @property
    def tree(self) -> Tree:
        """Raise TypeError for a draft without a tree."""
        if self.static is not None:
            return self.static.tree
        if self.grown is None:
            raise TypeError("a draft has a static tree or a grown one")
        return self.grown

    @property
    def is_chain(self) -> bool:
        """Return whether it is one chain for every prompt."""
        return self.static is not None and self.static.is_chain


class VerifyResult(NamedTuple):
    """The outcome of a verification."""

    # [B, D + 1] node ids from the root; entries past ``accepted`` repeat the last one
    path: Tensor
    accepted: Tensor  # [B] drafted tokens accepted, 0 … D
    token: Tensor  # [B] the residual or bonus token
    tried: Tensor  # [B, N] children of each node that were examined if it was reached


def from_paths(paths: Paths) -> StaticTree:
    """Build the tree of child paths (ranks from the root); none give a lone root.

    Raises UserError if a node is missing.
    """
    unique = set(map(tuple, paths))
    nodes = sorted(unique, key=lambda path: (len(path), path))
    check_paths(nodes)
    index = {path: number for number, path in enumerate([(), *nodes])}
    parent_of = [-1] + [index[path[:-1]] for path in nodes]
    depth = [len(path) for path in index]
    ranks = [path[-1] for path in nodes]
    width = 1 + max(ranks, default=-1)
    tree = from_parents(torch.tensor([parent_of]), torch.tensor([depth]), depth[-1], width)
    levels = build_levels(nodes, parent_of, tree.ancestors[0])
    inner_ids = sorted(set(parent_of[1:]))
    inner = torch.tensor(inner_ids, dtype=torch.long)
    inner_index = torch.full((tree.nodes,), -1)
    inner_index[inner] = torch.arange(len(inner))
    return StaticTree(
        tree=tree,
        levels=tuple(levels),
        inner_ids=inner,
        inner_index=inner_index,
        siblings=sibling_order(tree, inner),
        sizes=(tree.children >= 0).sum(-1),
        paths=tuple(nodes),
        mask=additive(tree.ancestors) if nodes else None,
        is_chain=width <= 1,
    )


def check_paths(nodes: list[Path]) -> None:
    """Raise UserError for paths that are no tree."""
    known: set[Path] = {()}
    for path in nodes:
        if not path or min(path) < 0:
            raise UserError(
                "a static tree needs at least one path, each a non-empty list of child ranks such "
                "as [0, 1]"
            )
        parent = path[:-1]
        left = (*parent, path[-1] - 1)
        if parent not in known or (path[-1] > 0 and left not in known):
            raise UserError(
                f"the static tree names {list(path)} but not its parent or its left sibling: "
                "add them"
            )
        known.add(path)


def build_levels(nodes: list[Path], parent_of: list[int], ancestors: Tensor) -> list[Level]:
    """Return the levels of a static tree.

    nodes: their paths in order; ancestors [N, N] bool: which nodes attend to which.
    """
    is_chain = all(path[-1] == 0 for path in nodes)
    levels: list[Level] = []
    inner: list[int] = []  # the nodes expanded so far
    first = 1  # node of the level
    before = 0  # first node of the level before
    for _, paths in groupby(nodes, key=len):
        ranks = [path[-1] for path in paths]
        members = parent_of[first : first + len(ranks)]
        parents = sorted(set(members))
        inner += parents
        level = Level(
            parents=tuple(parents),
            rows=torch.tensor([parents.index(parent) for parent in members]),
            ranks=torch.tensor(ranks),
            shape=(-1, len(parents), 1 + max(ranks)),
        )
        if levels and not is_chain:
            above = [levels[-1].parents.index(parent_of[parent]) for parent in parents]
            level = level._replace(
                above=torch.tensor(above),
                expanded=torch.tensor(parents) - before,
                mask=additive(ancestors[parents][:, inner[1:]])[None],
            )
        levels.append(level)
        before = first
        first += len(ranks)
    return levels


def sibling_order(tree: Tree, inner: Tensor) -> SiblingOrder:
    """Return the order in which the children of a static tree are tested.

    inner [M]: nodes that have children
    """
    children = tree.children[0]
    depth = tree.depth[0]
    by_rank = [nodes[nodes >= 0] for nodes in children[inner].T]
    order = torch.cat([*by_rank, inner[:0]])
    ids = torch.arange(tree.nodes)
    place = torch.full((tree.nodes + 1,), len(order))  # of a node's id; the last cell: no child
    place[order] = torch.arange(len(order))
    options = F.pad(children, (0, 1), value=-1)  # [N, W + 1]
    sizes = (children >= 0).sum(-1, keepdim=True)
    last_child = options.amax(-1)
    onward = torch.where(options >= 0, options, ids[:, None])
    examined = torch.arange(1, tree.width + 2)
    return SiblingOrder(
        nodes=order,
        depth=depth[order],
        later=tuple(later_ranks(tree, by_rank)),
        last_child=place[last_child].where(sizes[:, 0] > 0, 0),
        is_leaf=sizes == 0,
        tests=place[options],
        onward=onward,
        tried=torch.minimum(examined, sizes),
        paths=path_to(tree, ids),
        levels=depth,
    )


def later_ranks(tree: Tree, by_rank: list[Tensor]) -> Iterator[LaterRank]:
    """Yield the second children, the third children, …; ``by_rank``: children by rank."""
    children = tree.children[0]
    for rank, nodes in enumerate(by_rank[1:], 1):
        is_parent = children[:, rank, None] == nodes
        families = is_parent.int().argmax(0)
        elders = children[families, rank - 1]
        places = torch.searchsorted(by_rank[rank - 1], elders)
        yield LaterRank(elders, places, tree.depth[0, nodes])


def chain(length: int) -> StaticTree:
    """``length`` nodes below the root, each the child of the one before; 0 gives a lone root."""
    return from_paths(tuple((0,) * d for d in range(1, length + 1)))


@cache
def _earlier(nodes: int, device: torch.device) -> Tensor:
    """[N, N] bool: node j is before node i, and not the root."""
    earlier = torch.ones(nodes, nodes, dtype=torch.bool, device=device).tril(-1)
    earlier[:, 0].fill_(False)
    return earlier


def from_parents(parent: Tensor, depth: Tensor, max_depth: int, width: int) -> Tree:
    """Build a tree per prompt, with no host synchronisation.  Siblings rank by node id.

    parent [B, N], ids below the child's; depth [B, N], 0 for the root, −1 for unused nodes.
    """
    b, n = parent.shape
    device = parent.device
    ids = numbers(n, device)
    used = depth > 0
    same_parent = parent[:, :, None] == parent[:, None]
    elder = same_parent & used[:, None] & _earlier(n, device)
    rank = elder.sum(-1)
    cells = n * width  # and a spare one for nodes that are nobody's child
    is_child = used & (rank < width)
    cell = torch.where(is_child, parent * width + rank, cells)
    children = torch.full((b, cells + 1), -1, device=device)
    children = children.scatter_(1, cell, ids.expand(b, -1))
    children = children[:, :-1].view(b, n, width)
    its_parent = (parent[..., None] == ids) & used[..., None]
    reach = (its_parent | (ids[:, None] == ids)).float()
    for _ in range((max_depth - 1).bit_length()):  # squaring doubles the number of generations
        reach = torch.bmm(reach, reach)
    return Tree(depth, children, reach > 0, max_depth)


def parents(tree: Tree) -> Tensor:
    """Return the parent of each node, −1 for the root and for unused nodes: [b, N]."""
    depth = tree.depth
    is_parent = tree.ancestors & (depth[:, None] == depth[..., None] - 1)
    parent = is_parent.int().argmax(-1)
    return torch.where(is_parent.any(-1), parent, -1)


def first_leaf(tree: Tree) -> Tensor:
    """Return the lowest leaf at or below each node: [b, N]."""
    ids = numbers(tree.nodes, tree.depth.device)
    has_no_child = (tree.children < 0).all(-1)
    leaf = has_no_child & (tree.depth >= 0)
    below = tree.ancestors.mT & leaf[:, None]  # [b, N, N] leaf j at or below node i
    return torch.where(below, ids, tree.nodes).amin(-1)


def path_to(tree: Tree, last: Tensor) -> Tensor:
    """Return the nodes from the root to ``last`` [B], padded with ``last``: [B, D + 1]."""
    rows = tree.ancestors.expand(len(last), -1, -1)
    index = last[:, None, None].expand(-1, 1, rows.shape[-1])
    seen = rows.gather(1, index)[:, 0]  # [B, N]
    depth = torch.where(seen, tree.depth.expand_as(seen), -1)
    depths = numbers(tree.max_depth + 1, last.device)
    at_depth = depth[:, None] == depths[:, None]  # [B, D + 1, N]
    node = at_depth.int().argmax(-1)
    return torch.where(at_depth.any(-1), node, last[:, None])


def walk(tree: Tree, exists: Tensor, accept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the first accepted children: path [B, D + 1], accepted [B], tried [B, N].

    accept [B, N, W]: the children that are accepted if tried.
    """
    found = accept.any(-1)
    first = accept.int().argmax(-1)  # the first accepted child
    children = tree.children.expand_as(accept)
    child = children.gather(-1, first[..., None])[..., 0]
    onward = torch.where(found, child, numbers(tree.nodes, accept.device))
    path = [torch.zeros_like(onward[:, :1])]
    for _ in range(tree.max_depth):
        path.append(onward.gather(1, path[-1]))
    nodes = torch.cat(path, 1)
    moved = nodes[:, 1:] != nodes[:, :-1]
    tried = torch.where(found, first + 1, exists.sum(-1))
    return nodes, moved.sum(1), tried
