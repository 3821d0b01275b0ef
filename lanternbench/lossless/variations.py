"""Variations of a method: one option, residual or rule changed at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from lanternbench.errors import UserError
from lanternbench.methods.method import Method
from lanternbench.methods.method import method as make
from lanternbench.methods.residuals import PLAIN
from lanternbench.registry import components


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
    parts = (method.proposal, method.tree, method.acceptance)
    for part in parts:
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
