"""Every default of a method or target is in defaults.csv, with its value and its source."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import pytest

from lanternbench.cli.listing_cmd import option_rows
from lanternbench.methods.defaults import Default, table
from lanternbench.methods.method import flag, method, named, preset
from lanternbench.methods.trees.static import static_tree
from lanternbench.models.catalogue import catalogue, entry
from lanternbench.models.entries import family
from lanternbench.registry import components

TREES = ("depth", "draft_top_k", "total_nodes", "depth_range", "width_range", "l_k")


def options_of(target: str) -> dict[str, Any]:
    """What the target's family sets."""
    if not target:
        return {}
    row = entry(next(name for name in catalogue() if fnmatch(name, target)))
    return family(row.family).options(row)


def in_code(row: Default) -> list[Any]:
    """The default that the code has."""
    if targets := [name for name in catalogue() if fnmatch(name, row.of)]:
        return [getattr(entry(name), row.option) for name in targets]
    resolved = method(row.method, acceptance=row.rule or None).resolve(options_of(row.target))
    found = {flag(name): value for name, value in resolved.read.items()}[row.option]
    same = row.option == "shape" and static_tree(found).paths == static_tree(value(row)).paths
    return [value(row) if same else found]


@pytest.mark.parametrize("target", ["tiny", "llamagen-xl-stage1", "anole-7b", "janus-pro-1b"])
def test_a_methods_page_shows_the_defaults_that_the_code_has_on_a_target(target):
    sourced = 0
    for name in ("sd", "eagle-1", "eagle-2", "lantern", "sjd-pac", "adt-tree", "uniform-rsd"):
        for row in option_rows(named(name), preset(name), target):
            if row["default"] != "–" and row["source"] not in ("component", "preset", "target"):
                said = Default(
                    f"{name} on {target}",
                    row["option"][2:].replace("-", "_"),
                    row["default"],
                    "",
                    "",
                )
                (found,) = in_code(said)
                assert said.equals(found) or said.default == _text(found), (name, said)
                sourced += 1
    assert sourced > 20


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row.of} {row.option}")
def test_a_default_is_the_one_that_its_source_has(row):
    assert row.source
    for found in in_code(row):
        number = isinstance(found, float)
        assert (float(value(row)) if number else value(row)) == (found if number else _text(found))


def value(row: Default) -> str:
    return row.default.strip("`")


def _text(value: Any) -> str:
    return f"{value[0]} to {value[1]}" if isinstance(value, tuple) else str(value)


def test_the_table_has_every_default():
    rows = table()
    named = {row.option for row in rows}
    for kind in ("proposal", "tree", "acceptance"):
        for part in components(kind).values():
            for name, field in part.model_fields.items():
                if (
                    part.__module__.startswith("lanternbench.")
                    and name != "variant"
                    and field.default is not None
                ):
                    assert flag(name) in named, f"{part.__name__} {name}"
    assert named >= set(TREES) | {"shape", "k"}
    for name in catalogue():
        for option in ("guidance", "top_k"):
            assert entry(name).gigabytes == 0 or any(
                fnmatch(name, row.of) and row.option == option for row in rows
            )
