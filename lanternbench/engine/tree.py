"""Draft trees as tensors.  Node 0 is the root: the last committed token, which every step re-reads.

Shapes: b is 1 when all rows of a batch share the tree, else the batch; N nodes; W the widest family of siblings.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from torch import Tensor

from lanternbench.errors import UserError

Paths = tuple[tuple[int, ...], ...]
LONGEST = 64  # chain, as for the levels of other trees


class Tree(NamedTuple):
    """Shape of a draft tree.  A node that a row does not use has depth −1 and no parent's list names it."""

    depth: Tensor  # [b, N] 0 for the root
    children: Tensor  # [b, N, W] node ids in draft order, −1 = none
    ancestors: Tensor  # [b, N, N] bool: may node i see node j (itself included)
    max_depth: int

    @property
    def nodes(self) -> int:
        return self.depth.shape[1]

    @property
    def width(self) -> int:
        return self.children.shape[2]


class Level(NamedTuple):
    """The families of one depth of a static tree: who is expanded, and where the children go."""

    parents: tuple[int, ...]  # node ids
    widths: tuple[int, ...]  # children per parent
    first: int  # node id of the first child; children are numbered parent after parent
    rows: Tensor  # [C] which parent (index into ``parents``) a child belongs to
    ranks: Tensor  # [C] its place among its siblings


class Rank(NamedTuple):
    """The j-th children of a static tree."""

    families: Tensor  # [m] whose they are: places among the inner nodes
    nodes: Tensor  # [m] their ids


class StaticTree(NamedTuple):
    """A tree whose shape is data.  Nodes are numbered level by level, siblings side by side in draft order."""

    tree: Tree
    levels: tuple[Level, ...]
    inner: tuple[int, ...]  # nodes that have children, in order of depth
    inner_ids: Tensor  # [M] the same
    ranks: tuple[Rank, ...]  # their first children, their second ones, …
    sizes: Tensor  # [1, N] children of every node

    @property
    def is_chain(self) -> bool:
        return self.tree.width == 1

    def to(self, device: torch.device) -> StaticTree:
        def move(t):
            return type(t)(*(x.to(device) if isinstance(x, Tensor) else x for x in t))

        levels, ranks = (tuple(map(move, parts)) for parts in (self.levels, self.ranks))
        ids, sizes = self.inner_ids.to(device), self.sizes.to(device)
        return self._replace(tree=move(self.tree), levels=levels, inner_ids=ids, ranks=ranks, sizes=sizes)


def from_paths(paths: Paths) -> StaticTree:
    """A list of child paths (ranks from the root) -> tensors.

    Raises UserError where the paths are no tree: an empty list, a missing parent or a gap between siblings.
    """
    nodes = sorted(set(map(tuple, paths)), key=lambda p: (len(p), p))
    if not nodes or any(not p or min(p) < 0 for p in nodes):
        raise UserError("a static tree needs at least one path, each a non-empty list of child ranks such as [0, 1]")
    index: dict[tuple[int, ...], int] = {(): 0} | {p: i + 1 for i, p in enumerate(nodes)}
    for p in nodes:
        if p[:-1] not in index or (p[-1] > 0 and (*p[:-1], p[-1] - 1) not in index):
            raise UserError(f"the static tree names {list(p)} but not its parent or its left sibling: add them")
    n, width, deepest = len(index), 1 + max(p[-1] for p in nodes), len(nodes[-1])
    children = torch.full((1, n, width), -1)
    ancestors = torch.eye(n, dtype=torch.bool)
    for p in nodes:
        i, parent = index[p], index[p[:-1]]
        children[0, parent, p[-1]] = i
        ancestors[i] |= ancestors[parent]
    depth = torch.tensor([[len(p) for p in index]])
    levels = []
    for d in range(1, deepest + 1):
        level = [p for p in nodes if len(p) == d]
        parents = sorted({index[p[:-1]] for p in level})
        rows = [parents.index(index[p[:-1]]) for p in level]
        widths = tuple(rows.count(r) for r in range(len(parents)))
        places = torch.tensor([p[-1] for p in level])
        levels.append(Level(tuple(parents), widths, index[level[0]], torch.tensor(rows), places))
    inner = tuple(i for level in levels for i in level.parents)
    ids = torch.tensor(inner)
    of_rank = children[0, ids].T  # [W, M]
    ranks = tuple(Rank((nodes >= 0).nonzero()[:, 0], nodes[nodes >= 0]) for nodes in of_rank)
    sizes = (children >= 0).sum(-1)
    return StaticTree(Tree(depth, children, ancestors[None], deepest), tuple(levels), inner, ids, ranks, sizes)


@cache
def inner_index(inner: tuple[int, ...], nodes: int, device: torch.device) -> Tensor:
    """[N] place of each node among the inner ones, −1 for leaves; built once per tree and device."""
    index = torch.full((nodes,), -1)
    index[list(inner)] = torch.arange(len(inner))
    return index.to(device)


def chain(length: int) -> Paths:
    """A tree of width 1: ``length`` nodes below the root."""
    return tuple((0,) * d for d in range(1, length + 1))


@cache
def named() -> dict[str, Paths]:
    """The trees of ``trees.yaml``."""
    data = yaml.safe_load((Path(__file__).with_name("trees.yaml")).read_text())
    return {name: tuple(tuple(p) for p in paths) for name, paths in data.items()}


def static_tree(spec: str | list[list[int]]) -> StaticTree:
    """``chain-5``, a name of ``trees.yaml``, or a list of child paths -> the tree.  Raises UserError."""
    if not isinstance(spec, str):
        return from_paths(tuple(tuple(p) for p in spec))
    if spec.startswith("chain-") and spec[6:].isdigit() and 0 < int(spec[6:]) <= LONGEST:
        return from_paths(chain(int(spec[6:])))
    if spec not in named():
        known = f"chain-1 to chain-{LONGEST}, {', '.join(named())}"
        raise UserError(f"no static tree is called '{spec}': use {known} or a list of paths")
    return from_paths(named()[spec])


@cache
def _earlier(nodes: int, device: torch.device) -> Tensor:
    """[N, N] bool: is node j before node i, and not the root?"""
    earlier = torch.ones(nodes, nodes, dtype=torch.bool, device=device).tril(-1)
    earlier[:, 0] = False
    return earlier


def from_parents(parent: Tensor, depth: Tensor, max_depth: int, width: int) -> Tree:
    """A tree per row from parent ids, with no host synchronisation.

    parent [B, N] (a parent's id is below its child's); depth [B, N], 0 for the root, −1 for unused nodes.  Siblings
    rank by node id.
    """
    b, n = parent.shape
    ids = torch.arange(n, device=parent.device)
    real = depth > 0
    siblings = (parent[:, :, None] == parent[:, None]) & real[:, None] & _earlier(n, parent.device)
    rank = siblings.sum(-1)
    slot = torch.where(real & (rank < width), parent * width + rank, n * width)  # the rest goes to a spare cell
    children = torch.full((b, n * width + 1), -1, device=parent.device)
    children = children.scatter_(1, slot, ids.expand(b, -1))[:, :-1].view(b, n, width)
    up = (parent[..., None] == ids) & real[..., None] | (ids[:, None] == ids)  # each node's parent and itself
    reach = up.float()
    for _ in range((max_depth - 1).bit_length()):  # squaring doubles how far up
        reach = torch.bmm(reach, reach)
    return Tree(depth, children, reach > 0, max_depth)
