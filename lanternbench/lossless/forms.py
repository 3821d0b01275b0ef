"""Forms of a method: as the papers define it, what its components say of themselves in plain Python put together; with
one option, residual or rule changed at a time; and small enough to be enumerated.

Where any part of a method has no definition, there is nothing to hold the engine against but what the method claims.
"""

from collections.abc import Iterator
from dataclasses import replace
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


def few_drafts(method: Method) -> Method:
    """``method`` with one draft a row, so that the outcomes of larger images can be enumerated."""
    one = {"window": 1} if "window" in type(method.proposal).model_fields else {}
    return replace(method, proposal=method.proposal.model_copy(update=one))


def variations(method: Method) -> list[Method]:
    """Every named value of every option that is read, and a second one of those that ask for it (``also``); every
    residual of a relaxed method, and every other exact rule that an exact one can be run with."""
    others: dict[str, Method] = {}
    for changed in _changes(method):
        try:
            other = make(method.preset, **{**method.options, **changed})
        except UserError:
            continue  # these do not go together
        others.setdefault(other.label, other)
    others.pop(method.label, None)
    return list(others.values())


def _changes(method: Method) -> Iterator[dict[str, Any]]:
    for part in method.parts:
        for name, field in type(part).model_fields.items():
            if name == "variant" or name not in method.read:
                continue
            values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            extra: Any = field.json_schema_extra or {}
            values += () if extra.get("also") is None else (extra["also"],)
            yield from ({name: value} for value in values)
    if not method.lossless:
        yield from ({"residual": name} for name in PLAIN)
    elif method.choices.acceptance == "exact":
        rules = components("acceptance").items()
        yield from ({"acceptance": name} for name, rule in rules if rule.lossless and not rule.by_position)


def changed(method: Method, options: dict[str, Any]) -> Method:
    """``method`` with these options, and of its own those that are still read."""
    chosen = {kind: name for kind, name in method.options.items() if kind in KINDS} | options
    still = make(method.preset, **chosen).read
    return make(method.preset, **{k: v for k, v in method.options.items() if k in still} | chosen)
