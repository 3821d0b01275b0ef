"""The plain definition of a method, put together from those of its components, by their types."""

from functools import singledispatch
from typing import Any

from lanternbench.engine.plain import (
    PLAIN_RULES,
    DiagonalSpec,
    PlainRule,
    RowSpec,
    TreeSpec,
    WindowSpec,
)
from lanternbench.engine.proposal import Proposal, TreePolicy
from lanternbench.engine.rows import Order
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.lossless.plain import PlainMethod, rules
from lanternbench.lossless.plain.drafts import MethodSpec, WindowMethod
from lanternbench.lossless.plain.lumina2 import PublicWindows, Redraw
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


def annealed(rule: Annealed, codes: rules.Codes, length: int) -> PlainRule:
    return rules.AnnealedRule(rule.lam, rule.schedule, rule.nu, max(length, 1))


def grouped(rule: Gsd, codes: rules.Codes, length: int) -> PlainRule:
    return rules.GroupRule(rule.ranks, rule.margin, rule.radius, codes)


def lantern(rule: Lantern, codes: rules.Codes, length: int) -> PlainRule | None:
    within = rules.within_divergence(rule.delta, rule.divergence)
    return nearby(rule, codes, within)


def lantern_pp(rule: LanternPP, codes: rules.Codes, length: int) -> PlainRule | None:
    return nearby(rule, codes, rules.within_ratio(rule.lam))


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
    Annealed: annealed,
    Typical: lambda rule, codes, length: rules.TypicalRule(rule.epsilon),
    TopK: lambda rule, codes, length: rules.TopKRule(rule.k, rule.rho),
    Gsd: grouped,
    Lantern: lantern,
    LanternPP: lantern_pp,
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


@singledispatch
def tree_spec(tree: TreePolicy) -> TreeSpec | None:
    """Return the plain definition of a tree policy; None if it has none."""
    return None


@tree_spec.register
def fixed(tree: FixedShape) -> TreeSpec | None:
    return TreeSpec("static", paths=tree.static.paths)


@tree_spec.register
def dynamic(tree: Dynamic) -> TreeSpec | None:
    depth, top_k, total = tree.bounds
    return TreeSpec("dynamic", depth=depth, top_k=top_k, total=total)


@tree_spec.register
def adaptive(tree: Adaptive) -> TreeSpec | None:
    if tree.init == "random" or tree.fixed_depth or tree.fixed_width:
        return None
    return TreeSpec(
        "adaptive",
        bounds=tree.within,
        init=tree.init,
        total=tree.bounds.total,
        first=(tree.bounds.depth, tree.bounds.top_k),
        bonus=tree.bonus,
    )


Drafts = TreeSpec | WindowSpec


@singledispatch
def drafts(proposal: Proposal, tree: TreePolicy) -> Drafts | None:
    """Return the plain definition of what a proposal drafts with a tree; None if it has none."""
    return None


@drafts.register
def nothing(proposal: NoDraft, tree: TreePolicy) -> Drafts | None:
    return TreeSpec()


@drafts.register
def of_drafter(proposal: DrafterProposal, tree: TreePolicy) -> Drafts | None:
    return tree_spec(tree)


@drafts.register
def sjd(proposal: Jacobi, tree: TreePolicy) -> Drafts | None:
    return WindowSpec(proposal.window, proposal.init, one_hot=proposal.variant != "paper")


@drafts.register
def scd(proposal: Scd, tree: TreePolicy) -> Drafts | None:
    if proposal.coupling == "gumbel":
        return None
    if proposal.variant == "reference":
        return WindowSpec(proposal.window, proposal.init, "kept-law", one_hot=True)
    return WindowSpec(proposal.window, proposal.init, "maximal")


@drafts.register
def sjd_plus(proposal: SjdPlus, tree: TreePolicy) -> Drafts | None:
    if proposal.variant == "reference":
        return None
    return WindowSpec(proposal.window, proposal.init, "keep", theta=proposal.theta)


@drafts.register
def sjd_pac(proposal: SjdPac, tree: TreePolicy) -> Drafts | None:
    if proposal.variant == "reference":
        return None
    return WindowSpec(
        proposal.window, redraw="maximal", siblings=proposal.siblings, tree_depth=proposal.depth
    )


@singledispatch
def in_order(order: Order, draft: Drafts) -> Drafts | RowSpec | DiagonalSpec | None:
    """Return the plain definition of an order of these drafts; None if it has none."""
    return draft


@in_order.register
def in_rows(order: Rows, draft: Drafts) -> Drafts | RowSpec | None:
    if order.variant != "paper":
        return None
    if draft.deepest:
        return RowSpec(order.c, draft.deepest, reuse=order.reuse)
    return RowSpec(order.lead, 0, order.adaptive, order.auxiliary == "seen")


@in_order.register
def on_diagonals(order: DiagonalOrder, draft: Drafts) -> DiagonalSpec | None:
    return DiagonalSpec(order.mask == "raster") if order.variant == "paper" else None


def definition(method: Method, tables: Tables) -> PlainMethod[Any] | None:
    """The plain definition of a method of enumerable size on these tables.

    None if any part has none: then the engine can only be held against what the method claims.
    """
    method = method.resolve(table_target(tables).options)
    proposal = method.proposal
    drafted = drafts(proposal, method.tree)
    draft = None if drafted is None else in_order(method.order, drafted)
    residual = component("residual", method.choices.residual).plain
    if draft is None or residual is None:
        return None
    codes = tables.codebook.double().tolist()
    rule = plain_rule(method.acceptance, codes, draft.deepest)
    if rule is None:
        return None
    if isinstance(draft, RowSpec):
        return RowMethod(draft, rule, residual)
    if isinstance(draft, DiagonalSpec):
        return DiagonalMethod(draft, rule, residual)
    if isinstance(draft, TreeSpec):
        return MethodSpec(draft, rule, residual, proposal.samples, proposal.marginals)
    if method.variant == LUMINA_2:
        return PublicWindows(draft, rule, Redraw(tables.sampling))
    return WindowMethod(draft, rule, residual)
