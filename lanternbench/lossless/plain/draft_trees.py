"""Draft trees as nested lists: chains and static shapes, EAGLE-2's dynamic tree, ADT-Tree's depth and width."""

import math

from lanternbench.engine.plain import AdaptiveBounds
from lanternbench.lossless.plain.world import Prefix, World

Path = tuple[int, ...]


def top_children(p: list[float], k: int) -> list[int]:
    """The k likeliest tokens, ties by token id."""
    return sorted(range(len(p)), key=lambda x: (-p[x], x))[:k]


def dynamic_tree(world: World, prefix: Prefix, depth: int, top_k: int, total: int) -> dict[Path, list[int]]:
    """EAGLE-2 (arXiv 2406.16858, section 4): the tokens of every node's children, in draft order.

    A node is the path of its tokens.  Expansion: on each level the ``top_k`` nodes of highest value, the product of the
    drafter's probabilities along the path, get their ``top_k`` likeliest children.  Reranking: the total − 1 nodes of
    highest value over all levels stay; of equal ones the shallower, so that the rest is a tree.
    """
    value: dict[Path, float] = {(): 0.0}
    frontier: list[Path] = [()]
    pool: list[Path] = []
    for _ in range(depth):
        level = []
        for node in frontier:
            p = world.p(prefix + node)
            for x in top_children(p, top_k):
                if p[x] > 0:
                    value[(*node, x)] = value[node] + math.log(p[x])
                    level.append((*node, x))
        pool += level
        frontier = sorted(level, key=lambda node: -value[node])[:top_k]
    best = set(sorted(pool, key=lambda node: -value[node])[: total - 1])
    children: dict[Path, list[int]] = {}
    for node in pool:
        if node in best:
            children.setdefault(node[:-1], []).append(node[-1])
    return children


Tree = tuple[int, int]  # depth and width of ADT-Tree's


def adt_step(
    history: list[Tree], alpha: float | None, bounds: AdaptiveBounds, init: str, grid_width: int, radius: int = 2,
    u: tuple[float, float] = (0.0, 0.0),
) -> Tree:  # fmt: skip
    """(d̂, k̂) of the tree that drafts token number len(history): (d̃, k̃) by adjacency, then adapted.

    ``history``: the tree that produced each earlier token, in raster order.  ``alpha``: τ/d̂ of the previous tree, its τ
    tokens counted with the bonus token; None before the first, which starts where it is initialised.  ``radius``: δ of
    ``token-flock``.  ``u``: two uniforms, read by ``random`` alone.  Where ``vertical`` has no token above, the tree of
    the one to the left stands in.
    """
    start: tuple[float, float] = history[-1]  # horizontal: the tree of the token to the left
    if init == "random":  # uniform over the integers strictly inside the two ranges, whatever the trees so far
        (d, d_end), (k, k_end) = bounds.d, bounds.k
        start = d + 1 + int(u[0] * (d_end - d - 1)), k + 1 + int(u[1] * (k_end - k - 1))
    elif init == "vertical" and len(history) >= grid_width:  # the tree of the token above
        start = history[-grid_width]
    elif init == "token-flock":
        start = token_flock(history, grid_width, radius)
    return adt_adapt(start, alpha, bounds)


def token_flock(history: list[Tree], grid_width: int, radius: int) -> tuple[float, float]:
    """d̃ = Σ w·d / Σ w and k̃ likewise, over the earlier tokens at a Euclidean distance of at most δ (eq. 6).

    A token Δy rows above weighs w = (δ − Δy + 1)/δ.
    """
    row, column = divmod(len(history), grid_width)
    near = []
    for i, (d, k) in enumerate(history):
        other = divmod(i, grid_width)
        if math.dist((row, column), other) <= radius:
            near.append(((radius - (row - other[0]) + 1) / radius, d, k))
    total = sum(w for w, _, _ in near)
    return (sum(w * d for w, d, _ in near) / total, sum(w * k for w, _, k in near) / total) if near else history[-1]


def adt_adapt(start: tuple[float, float], alpha: float | None, bounds: AdaptiveBounds) -> Tree:
    """Bisectional adaptation: α ≥ β makes the next tree deeper and narrower, else shallower and wider.

    The intervals are open.  The width is held inside its own only where d̃ ± l_d > 1: of a tree of one level every
    child is a leaf.
    """
    sign = 0 if alpha is None else 1 if alpha >= bounds.beta else -1
    d, k = start[0] + sign * bounds.l_d, start[1] - sign * bounds.l_k
    depth, width = (min(max(round(x), low + 1), high - 1) for x, (low, high) in ((d, bounds.d), (k, bounds.k)))
    return depth, width if d > 1 else max(1, round(k))
