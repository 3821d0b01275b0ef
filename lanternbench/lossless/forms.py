"""Forms of a method: as the papers define it, what its components say of themselves in plain Python put together; and
with one option, residual or rule changed at a time.

Where any part of a method has no definition, there is nothing to hold the engine against but what the method claims.
"""

from contextlib import suppress
from typing import Any, Literal, get_args, get_origin

from lanternbench.engine.plain import RowSpec, TreeSpec
from lanternbench.errors import UserError
from lanternbench.lossless.plain.decoding import MethodSpec
from lanternbench.lossless.plain.rows import RowMethod
from lanternbench.lossless.plain.windows import WindowMethod
from lanternbench.lossless.tables import Tables, TableTarget
from lanternbench.methods.method import KINDS, Method
from lanternbench.methods.method import method as make
from lanternbench.methods.residuals import PLAIN
from lanternbench.registry import components


def definition(method: Method, tables: Tables) -> MethodSpec | WindowMethod | RowMethod | None:
    """The plain definition of a method of enumerable size on these tables; None where a part has none."""
    target: Any = TableTarget(tables)
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


def variations(method: Method) -> list[Method]:
    """Every named value of every option that is read, and a second one of those that ask for it (``also``); every
    residual of a relaxed method, and every other exact rule that an exact one can be run with."""
    changes: list[dict[str, Any]] = []
    for name, field in ((name, field) for part in method.parts for name, field in type(part).model_fields.items()):
        if name in method.read and name != "variant":
            extra: Any = field.json_schema_extra or {}
            values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            changes += [{name: value} for value in (*values, extra.get("also")) if value is not None]
    if not method.lossless:
        changes += [{"residual": name} for name in PLAIN]
    elif method.choices.acceptance == "exact":
        rules = components("acceptance").items()
        changes += [{"acceptance": name} for name, rule in rules if rule.lossless and not rule.by_position]
    others: dict[str, Method] = {}
    for change in changes:
        with suppress(UserError):  # some do not go together
            other = make(method.preset, **{**method.options, **change})
            others.setdefault(other.label, other)
    others.pop(method.label, None)
    return list(others.values())


def changed(method: Method, options: dict[str, Any]) -> Method:
    """``method`` with these options, and of its own those that are still read."""
    chosen = {kind: name for kind, name in method.options.items() if kind in KINDS} | options
    still = make(method.preset, **chosen).read
    return make(method.preset, **{k: v for k, v in method.options.items() if k in still} | chosen)
