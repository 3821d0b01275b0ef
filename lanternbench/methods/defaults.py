"""Defaults of methods and targets with their sources: ``defaults.csv``, which docs/fidelity.md shows as a table."""

from __future__ import annotations

import csv
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lanternbench.registry import components

if TYPE_CHECKING:
    from lanternbench.methods.component import Choices


class Default(NamedTuple):
    """One row.  ``of``: a method, METHOD on TARGETS, METHOD --acceptance RULE, or targets, which may be a pattern."""

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


@cache
def table() -> tuple[Default, ...]:
    """Every row, in the order of the document."""
    with Path(__file__).with_name("defaults.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Default(**row) for row in csv.DictReader(file))


def of_target(target: str) -> dict[str, Default]:
    """The rows of a target's own defaults, by option."""
    return {row.option: row for row in table() if fnmatch(target, row.of)}


def default_of(name: str, choices: Choices, kind: str, option: str, target: str = "") -> Default | None:
    """The row of an option of a method's component of this kind: the method's, or that of one with the same component.

    A row on this target stands before one on all.
    """

    def fits(row: Default) -> bool:
        preset = components("preset").get(row.method)
        if row.option != option or preset is None or (row.target and not fnmatch(target, row.target)):
            return False
        theirs = preset.choices._replace(acceptance=row.rule) if row.rule else preset.choices
        return getattr(theirs, kind) == getattr(choices, kind)

    return min(filter(fits, table()), key=lambda row: (not row.target, row.method != name), default=None)
