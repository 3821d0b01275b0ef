"""How draft trees are built, from paths or from parents, and questions about their nodes; see
``engine.draft``.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.draft import MAX_DEPTH as MAX_DEPTH
from lanternbench.engine.draft import Draft as Draft
from lanternbench.engine.draft import (
    LaterRank,
    Level,
    Paths,
    SiblingOrder,
    StaticTree,
    Tree,
    additive,
)
from lanternbench.errors import UserError


def from_paths(paths: Paths) -> StaticTree:
    """Child paths (ranks from the root) -> tensors; none give a lone root.  Raises UserError if a
    node is missing.
    """
    nodes = sorted(set(map(tuple, paths)), key=lambda p: (len(p), p))
    if any(not p or min(p) < 0 for p in nodes):
        raise UserError(
            "a static tree needs at least one path, each a non-empty list of child ranks such as [0, 1]"
        )
    index: dict[tuple[int, ...], int] = {(): 0} | {p: i + 1 for i, p in enumerate(nodes)}
    for p in nodes:
        if p[:-1] not in index or (p[-1] > 0 and (*p[:-1], p[-1] - 1) not in index):
            raise UserError(
                f"the static tree names {list(p)} but not its parent or its left sibling: add them"
            )
    parent_of, depth = [-1, *(index[p[:-1]] for p in nodes)], [len(p) for p in index]
    width, deepest = 1 + max((p[-1] for p in nodes), default=-1), depth[-1]
    tree = from_parents(torch.tensor([parent_of]), torch.tensor([depth]), deepest, width)
    ancestors = tree.ancestors[0]
    levels: list[Level] = []
    inner: list[int] = []
    for d in range(1, deepest + 1):
        level = [i for i, n in enumerate(depth) if n == d]
        parents = sorted({parent_of[i] for i in level})
        rows = [parents.index(parent_of[i]) for i in level]
        inner += parents
        above = (
            torch.tensor([levels[-1].parents.index(parent_of[n]) for n in parents])
            if levels
            else None
        )
        below = bool(levels) and width > 1  # a chain needs no index and no mask
        expanded = torch.tensor(parents) - depth.index(d - 1) if below else None
        mask = additive(ancestors[parents][:, inner[1:]])[None] if below else None
        ranks, shape = (
            torch.tensor([nodes[i - 1][-1] for i in level]),
            (-1, len(parents), max(map(rows.count, rows))),
        )
        levels.append(
            Level(tuple(parents), torch.tensor(rows), ranks, shape, above, expanded, mask)
        )
    ids, inner_index = torch.tensor(inner, dtype=torch.long), torch.full((len(depth),), -1)
    inner_index[ids] = torch.arange(len(inner))
    sizes, mask = (tree.children >= 0).sum(-1), additive(tree.ancestors) if nodes else None
    siblings = sibling_order(tree, ids)
    return StaticTree(tree, tuple(levels), ids, inner_index, siblings, sizes, tuple(nodes), mask)


def sibling_order(tree: Tree, inner: Tensor) -> SiblingOrder:
    """The order in which the children of a static tree are tested; ``inner`` [M]: nodes that have
    children.
    """
    children = tree.children[0]
    depth = tree.depth[0]
    by_rank = [nodes[nodes >= 0] for nodes in children[inner].T]
    later = []
    for rank, nodes in enumerate(by_rank[1:], 1):
        families = (children[:, rank, None] == nodes).int().argmax(0)
        elders = children[families, rank - 1]
        places = torch.searchsorted(by_rank[rank - 1], elders)
        later.append(LaterRank(elders, places, depth[nodes]))
    order = torch.cat([*by_rank, inner[:0]])
    ids = torch.arange(tree.nodes)
    place = torch.full((tree.nodes + 1,), len(order))  # of a node's id; the last cell: no child
    place[order] = torch.arange(len(order))
    options = F.pad(children, (0, 1), value=-1)  # [N, W + 1]
    sizes = (children >= 0).sum(-1, keepdim=True)
    columns = torch.arange(1, tree.width + 2)
    return SiblingOrder(
        nodes=order,
        depth=depth[order],
        later=tuple(later),
        last_child=place[options.amax(-1)].where(sizes[:, 0] > 0, 0),
        is_leaf=sizes == 0,
        tests=place[options],
        outcomes=ids * (tree.width + 1),
        onward=torch.where(options >= 0, options, ids[:, None]).flatten(),
        tried=torch.minimum(columns, sizes).flatten(),
        paths=path_to(tree, ids),
        levels=depth,
    )


def chain(length: int) -> StaticTree:
    """``length`` nodes below the root, each the child of the one before; 0 gives a lone root."""
    return from_paths(tuple((0,) * d for d in range(1, length + 1)))


@cache
def _earlier(nodes: int, device: torch.device) -> Tensor:
    """[N, N] bool: is node j before node i, and not the root?"""
    earlier = torch.ones(nodes, nodes, dtype=torch.bool, device=device).tril(-1)
    earlier[:, 0].fill_(False)
    return earlier


def from_parents(parent: Tensor, depth: Tensor, max_depth: int, width: int) -> Tree:
    """A tree per prompt, with no host synchronisation.  Siblings rank by node id.

    parent [B, N], ids below the child's; depth [B, N], 0 for the root, −1 for unused nodes.
    """
    b, n = parent.shape
    ids = torch.arange(n, device=parent.device)
    real = depth > 0
    siblings = (parent[:, :, None] == parent[:, None]) & real[:, None] & _earlier(n, parent.device)
    rank = siblings.sum(-1)
    # the rest goes to a spare cell
    slot = torch.where(real & (rank < width), parent * width + rank, n * width)
    children = torch.full((b, n * width + 1), -1, device=parent.device)
    children = children.scatter_(1, slot, ids.expand(b, -1))[:, :-1].view(b, n, width)
    # each node's parent and itself
    up = (parent[..., None] == ids) & real[..., None] | (ids[:, None] == ids)
    reach = up.float()
    for _ in range((max_depth - 1).bit_length()):  # squaring doubles the number of generations
        reach = torch.bmm(reach, reach)
    return Tree(depth, children, reach > 0, max_depth)


def parents(tree: Tree) -> Tensor:
    """[b, N] parent of each node, −1 for the root and for unused nodes."""
    b, n, w = tree.children.shape
    parent = torch.full((b, n + 1), -1, device=tree.children.device)
    owner = torch.arange(n, device=parent.device)[None, :, None].expand(b, n, w)
    slot = torch.where(tree.children >= 0, tree.children, n)
    return parent.scatter_(1, slot.flatten(1), owner.flatten(1))[:, :-1]


def first_leaf(tree: Tree) -> Tensor:
    """[b, N] the lowest leaf at or below each node."""
    ids = torch.arange(tree.nodes, device=tree.depth.device)
    leaf = (tree.children < 0).all(-1) & (tree.depth >= 0)
    below = tree.ancestors.mT & leaf[:, None]  # [b, N, N] leaf j at or below node i
    return torch.where(below, ids, tree.nodes).amin(-1)


def path_to(tree: Tree, last: Tensor) -> Tensor:
    """The nodes from the root to ``last`` [B], padded with ``last``: [B, D + 1]."""
    rows = tree.ancestors.expand(len(last), -1, -1)
    seen = rows.gather(1, last[:, None, None].expand(-1, 1, rows.shape[-1]))[:, 0]  # [B, N]
    depth = torch.where(seen, tree.depth.expand_as(seen), -1)
    # [B, D + 1, N]
    at_depth = depth[:, None] == torch.arange(tree.max_depth + 1, device=last.device)[:, None]
    return torch.where(at_depth.any(-1), at_depth.int().argmax(-1), last[:, None])
