"""A method as the papers define it: what its components say of themselves in plain Python, put together.

Where any part of a method has no definition, there is nothing to hold the engine against but what the method claims.
"""

from __future__ import annotations

from lanternbench.engine.plain import RowSpec, TreeSpec
from lanternbench.lossless.plain.decoding import MethodSpec
from lanternbench.lossless.plain.rows import RowMethod
from lanternbench.lossless.plain.windows import WindowMethod
from lanternbench.lossless.tables import Tables, table_target
from lanternbench.methods.method import Method
from lanternbench.methods.residuals import PLAIN


def definition(method: Method, tables: Tables) -> MethodSpec | WindowMethod | RowMethod | None:
    """The plain definition of a method of enumerable size on these tables; None where a part has none."""
    target = table_target(tables)
    method = method.resolve(target.options)
    proposal, rule, residual = method.proposal, method.acceptance, PLAIN.get(method.choices.residual)
    tree = method.tree if proposal.tree_is_own else method.tree.prepare(target, proposal)
    drawn = proposal.plain(tree)
    draft = None if drawn is None else method.order.plain(drawn)
    if draft is None or residual is None or not rule.has_plain:
        return None
    rule = rule.prepare(target, draft.deepest)
    if isinstance(draft, RowSpec):
        return RowMethod(draft, rule, residual)
    if isinstance(draft, TreeSpec):
        return MethodSpec(draft, rule, residual, proposal.samples, rule.plain_chain, proposal.marginals)
    return WindowMethod(draft, rule, residual) if rule.plain_chain is None else None
