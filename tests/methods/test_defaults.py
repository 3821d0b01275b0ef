"""Every default of a method or target is in the table that docs/fidelity.md shows, with its value and its source."""

from __future__ import annotations

from fnmatch import fnmatch
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lanternbench.cli.methods_cmd import option_rows
from lanternbench.methods.acceptance.lantern import NEIGHBOURS
from lanternbench.methods.defaults import Default, table
from lanternbench.methods.method import flag, method, named, preset
from lanternbench.methods.trees.static import static_tree
from lanternbench.models.catalogue import catalogue, entry
from lanternbench.models.chameleon.checkpoint import split_shape
from lanternbench.models.janus.checkpoint import OPTIONS as JANUS
from lanternbench.models.llamagen.checkpoint import OPTIONS as LLAMAGEN
from lanternbench.models.tiny.checkpoint import OPTIONS as TINY
from lanternbench.registry import components

TREES = ("depth", "draft_top_k", "total_nodes", "depth_range", "width_range", "l_k")


def options_of(target: str) -> dict[str, Any]:
    """What the target's family sets."""
    if not target:
        return {}
    row = entry(next(name for name in catalogue() if fnmatch(name, target)))
    if row.family == "chameleon":
        return split_shape(row.shape)[1].options
    return {"llamagen": LLAMAGEN, "janus": JANUS, "tiny": TINY}.get(row.family, {})


def in_code(row: Default) -> list[Any]:
    """The default that the code has."""
    if targets := [name for name in catalogue() if fnmatch(name, row.of)]:
        return [getattr(entry(name), row.option) for name in targets]
    made = method(row.method, acceptance=row.rule or None)
    target: Any = SimpleNamespace(options=options_of(row.target), device=torch.device("cpu"))
    if row.option == "shape":
        built: Any = made.tree.tree(target, made.proposal)  # type: ignore[attr-defined]
        return [value(row) if same_tree(built, value(row)) else built.tree.nodes]
    if made.choices.tree in ("dynamic", "adaptive") and row.option in TREES:
        built = made.tree.build(target, made.proposal)
        first = getattr(built, "first", None) or built.bounds
        sizes = {"depth": first.depth, "draft_top_k": first.top_k, "total_nodes": first.total}
        within = {"depth_range": "d", "width_range": "k"}.get(row.option, row.option)
        return [sizes[row.option] if row.option in sizes else getattr(built.within, within)]
    if row.method == "lantern" and row.option == "k":
        return [target.options.get("near", NEIGHBOURS)]
    return [{flag(name): value for name, value in made.read.items()}[row.option]]


def same_tree(built: Any, name: str) -> bool:
    return torch.equal(built.tree.children, static_tree(name).tree.children)


@pytest.mark.parametrize("target", ["tiny", "llamagen-xl-stage1", "anole-7b", "janus-pro-1b"])
def test_a_methods_page_shows_the_defaults_that_the_code_has_on_a_target(target):
    sourced = 0
    for name in ("sd", "eagle-1", "eagle-2", "lantern", "sjd-pac", "adt-tree", "uniform-rsd"):
        for row in option_rows(named(name), preset(name), target):
            if row["default"] != "–" and row["source"] not in ("component", "preset", "target"):
                said = Default(f"{name} on {target}", row["option"][2:].replace("-", "_"), row["default"], "", "")
                (found,) = in_code(said)
                assert said.says(found) or said.default == _text(found), (name, said)
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
                if part.__module__.startswith("lanternbench.") and name != "variant" and field.default is not None:
                    assert flag(name) in named, f"{part.__name__} {name}"
    assert named >= set(TREES) | {"shape", "k"}
    for name in catalogue():
        for option in ("guidance", "top_k"):
            assert entry(name).gigabytes == 0 or any(fnmatch(name, row.of) and row.option == option for row in rows)
