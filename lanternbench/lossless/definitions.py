"""A method as the papers define it: what it chose, by name, as a specification of the plain definitions.

A plug-in's rule or residual gives its own definition (``Acceptance.plain``, ``residuals.plain``).  Where any part of a
method has none, there is nothing to hold the engine against but what the method claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lanternbench.lossless.plain import MethodSpec, WindowSpec
from lanternbench.lossless.plain.draft_trees import AdaptiveBounds
from lanternbench.lossless.plain.rows import RowSpec
from lanternbench.lossless.plain.rules import Rule, nearest
from lanternbench.lossless.tables import Tables, table_target
from lanternbench.methods.method import Method
from lanternbench.methods.residuals import PLAIN as OWN_RESIDUALS

Spec = MethodSpec | WindowSpec | RowSpec
RESIDUALS = ("standard", "lantern", "optimal")


def definition(method: Method, tables: Tables) -> Spec | None:
    """The plain definition of a method of enumerable size on these tables; None where a part has none."""
    rule = _rule(method, tables)
    windows = WINDOWS.get(method.choices.proposal)
    if rule is None or (windows is not None and method.choices.acceptance == "block"):
        return None
    if method.choices.order != "raster":
        return _rows(method, rule, table_target(tables).options["row_window"])
    if windows is not None:
        return windows(method.proposal, rule, method.choices.residual)
    if method.choices.proposal == "none":
        return MethodSpec("none")
    if method.proposal.drafter is None or method.choices.tree not in TREES:
        return None
    spec = TREES[method.choices.tree](method.tree, table_target(tables).options, method.proposal)
    if spec is None:
        return None
    block = method.choices.acceptance == "block"
    return replace(spec, rule=rule, residual=method.choices.residual, sampled=method.proposal.samples, block=block)


# ---------------------------------------------------------------- rules


def _rule(method: Method, tables: Tables) -> Rule | None:
    part, name = method.acceptance, method.choices.acceptance
    if part.plain is not None:
        rule: Rule | None = Rule(own=part.plain)
    elif part.variant != "paper" or name not in RULES:
        return None
    else:
        rule = RULES[name](part, tables)
    residual = method.choices.residual
    if rule is None or (residual == "lantern" and part.usual_residual != "lantern"):
        return None  # LANTERN's residual says what becomes of a group
    if residual in RESIDUALS:
        return rule
    return replace(rule, own_residual=OWN_RESIDUALS[residual]) if residual in OWN_RESIDUALS else None


def _near(part: Any, tables: Tables) -> tuple[tuple[int, ...], ...] | None:
    if part.proximity == "random":
        return None  # any table is right, and only the engine knows which it drew
    return nearest(tables.codebook.double().tolist(), part.k or table_target(tables).options["near"], part.proximity)


def _lantern(part: Any, tables: Tables) -> Rule | None:
    near = _near(part, tables)
    return None if near is None else Rule("lantern", near=near, delta=part.delta, distance=part.divergence)


def _lantern_pp(part: Any, tables: Tables) -> Rule | None:
    near = _near(part, tables)
    return None if near is None else Rule("lantern++", near=near, lam=part.lam)


def _grouped(part: Any, tables: Tables) -> Rule:
    codes = tuple(map(tuple, tables.codebook.double().tolist()))
    return Rule("grouped", ranks=part.ranks, dq=part.margin, radius=part.radius, codebook=codes)


RULES: dict[str, Callable[[Any, Tables], Rule | None]] = {
    "exact": lambda part, tables: Rule(),
    "block": lambda part, tables: Rule(),
    "annealed": lambda part, tables: Rule("annealed", lam=part.lam, schedule=part.schedule, nu=part.nu),
    "lantern": _lantern,
    "lantern++": _lantern_pp,
    "gsd": _grouped,
    "typical": lambda part, tables: Rule("typical", epsilon=part.epsilon),
    "top-k": lambda part, tables: Rule("top-k", top=part.k, rho=part.rho),
}


# ---------------------------------------------------------------- trees


def _chain(tree: Any, options: dict[str, Any], proposal: Any) -> MethodSpec:
    return MethodSpec("chain", depth=len(_paths(tree, options[proposal.static_trees["chain"]])))


def _static(tree: Any, options: dict[str, Any], proposal: Any) -> MethodSpec:
    return MethodSpec("static", paths=_paths(tree, options[proposal.static_trees["static"]]))


def _paths(tree: Any, usual: str | list[list[int]]) -> tuple[tuple[int, ...], ...]:
    shape = tree.shape or (f"chain-{tree.depth}" if tree.depth else usual)
    if isinstance(shape, str):
        return tuple((0,) * d for d in range(1, int(shape.removeprefix("chain-")) + 1))
    return tuple(map(tuple, shape))


def _dynamic(tree: Any, options: dict[str, Any], proposal: Any) -> MethodSpec:
    depth, top_k, total = _sizes(tree, options)
    return MethodSpec("dynamic", depth=depth, top_k=top_k, total=total)


def _adaptive(tree: Any, options: dict[str, Any], proposal: Any) -> MethodSpec | None:
    if tree.init == "random" or tree.fixed_depth or tree.fixed_width:
        return None
    depth, top_k, total = _sizes(tree, options)
    l_k = options["l_k"] if tree.l_k is None else tree.l_k
    depths, widths = tree.depth_range or (0, 10), tree.width_range or options["width_range"]
    bounds = AdaptiveBounds(tree.beta, tree.l_d, l_k, depths, widths)
    return MethodSpec("adaptive", total=total, bounds=bounds, init=tree.init, first=(depth, top_k), bonus=tree.bonus)


def _sizes(tree: Any, options: dict[str, Any]) -> tuple[int, int, int]:
    names = ("depth", "draft_top_k", "total_nodes")
    depth, top_k, total = (options[name] if getattr(tree, name) is None else getattr(tree, name) for name in names)
    return depth, top_k, total


TREES: dict[str, Callable[[Any, dict[str, Any], Any], MethodSpec | None]] = {
    "chain": _chain,
    "static": _static,
    "dynamic": _dynamic,
    "adaptive": _adaptive,
}


# ---------------------------------------------------------------- windows


def _jacobi(part: Any, rule: Rule, residual: str) -> WindowSpec:
    rule = replace(rule, length=part.window)
    return WindowSpec(part.window, part.init, rule, residual, one_hot=part.variant == "reference")


def _scd(part: Any, rule: Rule, residual: str) -> WindowSpec | None:
    if part.coupling != "maximal":
        return None
    redraw = "kept-law" if part.variant == "reference" else "maximal"
    return replace(_jacobi(part, rule, residual), redraw=redraw)


def _siblings(part: Any, rule: Rule, residual: str) -> WindowSpec | None:
    if part.variant != "paper":
        return None
    rule = replace(rule, length=part.window)
    return WindowSpec(
        part.window, rule=rule, residual=residual, redraw="maximal", siblings=part.siblings, tree_depth=part.depth
    )


def _rows(method: Method, rule: Rule, lead: int) -> RowSpec | None:
    order, window = method.order, getattr(method.proposal, "window", 0)
    if order.variant != "paper":
        return None
    rule = replace(rule, length=max(window, 1))
    if window:
        return RowSpec(order.c, window, reuse=order.reuse, rule=rule, residual=method.choices.residual)
    adaptive = order.window == "adaptive"
    return RowSpec(order.s_min if adaptive else order.window or lead, 0, adaptive, order.auxiliary == "seen")


WINDOWS: dict[str, Callable[[Any, Rule, str], WindowSpec | None]] = {
    "jacobi": _jacobi,
    "scd": _scd,
    "sjd-pac": _siblings,
}
