"""The table of how far SJD++ and SJD-SV are from the target's distribution is what enumeration
gives.
"""

from __future__ import annotations

import pytest
from conftest import ROOT, slow_but

from benchmarks import distances
from lanternbench.lossless import EXACT
from lanternbench.methods.method import method

PAGE = ROOT / "benchmarks" / "results" / "distances.md"


def cells(label: str) -> list[str]:
    """Of a method's line, one a world."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (found,) = (line for line in lines if line.startswith(f"| {label} |"))
    return found.strip("| ").split(" | ")[1:]


CASES = [("sjd++", {"theta": 0.9}), ("sjd-sv", {"alpha": 0.8}), ("scd", {}), ("sjd", {})]


@pytest.mark.parametrize(("name", "options"), slow_but(CASES[2:3], CASES))
def test_the_first_world_s_figures_are_those_of_the_engine(name, options):
    found = distances.of_world(name, options, 0)
    assert cells(method(name, **options).label)[0] == distances.cell(found)
    assert (found.tv < EXACT) == (name in ("scd", "sjd"))


def test_settings_of_each_stand_next_to_methods_that_are_exact():
    for name, options in distances.SETTINGS:
        row = [float(cell.partition(" ")[0]) for cell in cells(method(name, **options).label)]
        assert len(row) == len(distances.WORLDS)
        exact = (
            name in ("sjd", "scd")
            or options == {"tree": "chain"}
            or options.get("acceptance") == "block"
        )
        assert (max(row) == 0) == exact
    names = [options.get("acceptance", name) for name, options in distances.SETTINGS]
    assert [names.count(name) for name in ("sjd++", "sjd-sv")] == [3, 10]
