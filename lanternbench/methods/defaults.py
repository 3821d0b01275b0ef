"""Defaults of methods and targets with their sources: the table ``defaults.csv``."""

from __future__ import annotations

import csv
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lanternbench.registry import component, components

if TYPE_CHECKING:
    from lanternbench.component import Choices


class Default(NamedTuple):
    """One row.  ``of``: a method, METHOD on TARGETS, METHOD --acceptance RULE, or targets, which
    may be a pattern.
    """

    of: str
    option: str
    default: str
    source: str
    elsewhere: str

    @property
    def method(self) -> str:
        return self.of.partition(" ")[0]

    @property
    def target(self) -> str:
        """A pattern; empty for every target that has no row of its own."""
        return self.of.partition(" on ")[2]

    @property
    def rule(self) -> str:
        """The acceptance rule that the row is about in place of the method's; or empty."""
        return self.of.partition(" --acceptance ")[2]

    def equals(self, value: object) -> bool:
        """Return whether it is this value, as a number or as text."""
        text = self.default.strip("`")
        try:
            return float(str(value)) == float(text)
        except ValueError:
            return str(value) == text


@cache
def table() -> tuple[Default, ...]:
    """Return every row, in the order of the file."""
    with Path(__file__).with_name("defaults.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Default(**row) for row in csv.DictReader(file))


def of_target(target: str) -> dict[str, Default]:
    """The rows of a target's own defaults, by option."""
    return {row.option: row for row in table() if fnmatch(target, row.of)}


def reader(choices: Choices, option: str) -> str:
    """The kind of the component that reads an option, where several have it the last; empty where
    none does.
    """
    for kind in ("acceptance", "proposal", "tree"):
        fields = component(kind, getattr(choices, kind)).model_fields
        if option in {field.alias or name for name, field in fields.items()}:
            return kind
    return ""


def default_of(name: str, choices: Choices, option: str, target: str) -> Default | None:
    """The row of an option of a method, or of one whose component reads it too; a row on this
    target comes first.
    """
    kind = reader(choices, option)

    def fits(row: Default) -> bool:
        preset = components("preset").get(row.method)
        if (
            preset is None
            or not kind
            or row.option != option
            or (row.target and not fnmatch(target, row.target))
        ):
            return False
        theirs = preset.choices._replace(acceptance=row.rule) if row.rule else preset.choices
        if kind == "tree":  # a proposal says which of a target's trees it takes
            ours, other = (
                component("proposal", c.proposal).static_trees for c in (choices, theirs)
            )
            if ours != other:
                return False
        return reader(theirs, option) == kind and getattr(theirs, kind) == getattr(choices, kind)

    return min(
        filter(fits, table()), key=lambda row: (not row.target, row.method != name), default=None
    )
