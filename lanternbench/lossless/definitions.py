"""The plain definition of a method, put together from those of its components, by their types."""

from dataclasses import replace
from functools import partial
from typing import Any

from lanternbench.engine.plain import PLAIN_RULES, PlainRule
from lanternbench.engine.proposal import Proposal, TreePolicy
from lanternbench.engine.rows import Order
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.lossless.plain import PlainMethod, rules
from lanternbench.lossless.plain.drafts import TreeMethod, WindowMethod
from lanternbench.lossless.plain.lumina2 import PublicWindows, processed_again
from lanternbench.lossless.plain.rows import DiagonalMethod, RowMethod
from lanternbench.lossless.tables import Tables, table_target
from lanternbench.methods.acceptance.chains import (
    BlockVerification,
    SegmentVerification,
    Unchanged,
)
from lanternbench.methods.acceptance.exact import Annealed, Exact
from lanternbench.methods.acceptance.gsd import Gsd
from lanternbench.methods.acceptance.lantern import Lantern, LanternPP
from lanternbench.methods.acceptance.likely import TopK, Typical
from lanternbench.methods.method import Method
from lanternbench.methods.orders import DiagonalOrder, Rows
from lanternbench.methods.proposals.drafting import DrafterProposal
from lanternbench.methods.proposals.jacobi import LUMINA_2, Jacobi, NoDraft, Scd, SjdPlus
from lanternbench.methods.proposals.sjd_pac import SjdPac
from lanternbench.methods.trees.adaptive import Adaptive
from lanternbench.methods.trees.dynamic import Dynamic
from lanternbench.methods.trees.static import FixedShape
from lanternbench.registry import component


def nearby(
    rule: Lantern | LanternPP, codes: rules.Codes, within: rules.Within
) -> PlainRule | None:
    """None for random neighbours: any table is right, and only the engine knows its own."""
    if rule.proximity == "random":
        return None
    return rules.NearbyRule(rule.k or len(codes), rule.proximity, codes, within)


PLAIN_RULES |= {
    Exact: lambda rule, codes, length: PlainRule(),
    Unchanged: lambda rule, codes, length: PlainRule(),
    Annealed: lambda rule, codes, length: rules.AnnealedRule(
        rule.lam, rule.schedule, rule.nu, max(length, 1)
    ),
    Typical: lambda rule, codes, length: rules.TypicalRule(rule.epsilon),
    TopK: lambda rule, codes, length: rules.TopKRule(rule.k, rule.rho),
    Gsd: lambda rule, codes, length: rules.GroupRule(rule.ranks, rule.margin, rule.radius, codes),
    Lantern: lambda rule, codes, length: nearby(
        rule, codes, rules.within_divergence(rule.delta, rule.divergence)
    ),
    LanternPP: lambda rule, codes, length: nearby(rule, codes, rules.within_ratio(rule.lam)),
    BlockVerification: lambda rule, codes, length: rules.BlockRule(),
    SegmentVerification: lambda rule, codes, length: rules.SegmentRule(rule.alpha, rule.excluded),
}


def plain_rule(rule: AcceptanceRule, codes: rules.Codes, length: int) -> PlainRule | None:
    """Return the rule in scalar Python for drafts of at most ``length`` levels; None if it has no
    definition.

    The definition of a base class holds for a rule that does not change how its base is built.
    """
    if rule.variant != "paper":
        return None
    for base in type(rule).__mro__:
        if base in PLAIN_RULES:
            return PLAIN_RULES[base](rule, codes, length)
        if "build" in vars(base) or "relax" in vars(base):
            return None
    return None


Plain = PlainMethod[Any]


def trees(tree: TreePolicy) -> TreeMethod | None:
    """Return the plain definition of a drafter's trees; None if they have none."""
    match tree:
        case FixedShape():
            return TreeMethod(paths=tree.static.paths)
        case Dynamic():
            depth, top_k, total = tree.bounds
            return TreeMethod(kind="dynamic", depth=depth, top_k=top_k, total=total)
        case Adaptive():
            if tree.init == "random" or tree.fixed_depth or tree.fixed_width:
                return None
            return TreeMethod(
                kind="adaptive",
                bounds=tree.within,
                init=tree.init,
                total=tree.bounds.total,
                first=(tree.bounds.depth, tree.bounds.top_k),
                bonus=tree.bonus,
            )
    return None


def drafts(proposal: Proposal, tree: TreePolicy) -> Plain | None:
    """Return the plain definition of what a proposal drafts with a tree; None if it has none."""
    match proposal:
        case NoDraft():
            return TreeMethod()
        case DrafterProposal():
            drafted = trees(tree)
            if drafted is not None:
                samples = proposal.samples
                return replace(drafted, sampled=samples, marginals=proposal.marginals)
        case Jacobi(window=window, init=init):
            kind = PublicWindows if proposal.variant == LUMINA_2 else WindowMethod
            return kind(window=window, init=init, one_hot=proposal.variant != "paper")
        case Scd(coupling="maximal", variant="paper", window=window, init=init):
            return WindowMethod(window=window, init=init, redraw="maximal")
        case Scd(coupling="maximal", window=window, init=init):
            return WindowMethod(window=window, init=init, redraw="kept-law", one_hot=True)
        case SjdPlus(variant="paper", window=window, init=init):
            return WindowMethod(window=window, init=init, redraw="keep", theta=proposal.theta)
        case SjdPac(variant="paper", window=window, siblings=siblings, depth=depth):
            return WindowMethod(
                window=window, redraw="maximal", siblings=siblings, tree_depth=depth
            )
    return None


def in_order(order: Order, drafted: Plain) -> Plain | None:
    """Return the plain definition of an order of these drafts; None if it has none."""
    match order:
        case Rows(variant="paper") if drafted.deepest:
            return RowMethod(lead=order.c, window=drafted.deepest, reuse=order.reuse)
        case Rows(variant="paper"):
            seen = order.auxiliary == "seen"
            return RowMethod(lead=order.lead, adaptive=order.adaptive, seen=seen)
        case DiagonalOrder(variant="paper"):
            return DiagonalMethod(causal=order.mask == "raster")
        case Rows() | DiagonalOrder():
            return None
    return drafted


def definition(method: Method, tables: Tables) -> Plain | None:
    """The plain definition of a method of enumerable size on these tables.

    None if any part has none: then the engine can only be held against what the method claims.
    """
    method = method.resolve(table_target(tables).options)
    drafted = drafts(method.proposal, method.tree)
    plain = None if drafted is None else in_order(method.order, drafted)
    residual = component("residual", method.choices.residual).plain
    if plain is None or residual is None:
        return None
    rule = plain_rule(method.acceptance, tables.codebook.double().tolist(), plain.deepest)
    if rule is None:
        return None
    if isinstance(plain, PublicWindows):
        residual = partial(processed_again, tables.sampling)
    return replace(plain, rule=rule, residual=residual)
