"""The worlds that ``verify`` enumerates show a mistake if there is one: every option changes what is
drawn in the world that it is judged in.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from conftest import slow_but

from lanternbench.lossless import EXACT, ROWS, MakeTables, OnTables, on_tables, small_worlds
from lanternbench.lossless.tables import RowTables, Tables
from lanternbench.methods.method import method

ADAPTIVE = {"window": "adaptive", "s_min": 1}
FORMS = [
    *[("sjd", {"init": f"{side}-{how}"}) for side in ("vertical", "horizontal") for how in ("repeat", "sample")],
    ("pjd", {"reuse": 0.5}),
    ("zipar", {"window": "adaptive"}),
    ("zipar", {"auxiliary": "seen"}),
]  # fmt: skip


def apart(one, other) -> float:
    """Return the largest difference between two methods' probabilities of images after each number
    of steps.
    """
    steps = max(len(one.enumerated.images), len(other.enumerated.images))
    padded = []
    for images in (one.enumerated.images, other.enumerated.images):
        padded.append(F.pad(images, (0, 0, 0, steps - len(images))))
    return float((padded[0] - padded[1]).abs().max())


@cache
def usual(name: str, make: MakeTables) -> OnTables:
    """The usual form, enumerated once for all others."""
    return on_tables(method(name), make(0))


@pytest.mark.parametrize(("name", "options"), slow_but(FORMS[-1:], FORMS), ids=str)
def test_every_form_is_judged_in_a_world_in_which_it_is_not_the_usual_one(name, options):
    form = method(name, **options)
    differences = []
    for tables in small_worlds(form):
        one = on_tables(form, tables(0))
        assert one.wrong < EXACT
        differences.append(apart(one, usual(name, tables)))
    assert max(differences) > 1e-3


def test_rows_that_overlap_are_judged_with_guidance():
    guided = ROWS[1](0)
    assert guided.sampling.guidance != 1
    one = on_tables(method("zipar"), guided)
    assert one.wrong < EXACT
    assert one.tv > 0.1


@pytest.mark.parametrize(("init", "width"), [("vertical-sample", 1), ("horizontal-sample", 3)])
def test_what_enters_a_window_comes_from_its_neighbour(init, width):
    tables = Tables(2, 6, 0, "dense", width=width)
    assert on_tables(method("sjd", init=init), tables).off < EXACT


def test_neighbours_are_judged_in_rows_that_are_narrower_and_in_rows_that_are_wider():
    window = method("sjd").with_parts(lambda part: part.small()).proposal.window
    widths = [tables(0).grid[1] for tables in small_worlds(method("sjd", init="vertical-sample"))]
    assert min(widths) < window < max(widths)


@pytest.mark.slow
def test_a_draft_that_stays_has_its_plain_law():
    """The law is seen in the loss alone."""
    one = on_tables(method("pjd", reuse=0.5), ROWS[0](0))
    assert abs(one.loss - one.enumerated.loss) < EXACT
    assert one.loss > 0.03


def test_every_drawn_token_of_rows_has_its_loss():
    """A relaxed rule loses something at the second token already."""
    relaxed = method("pjd", c=1, window=1, acceptance="typical")
    one = on_tables(relaxed, RowTables(2, (2, 2), 0))
    assert abs(one.loss - one.enumerated.loss) < EXACT


BOUNDED = {"plain definition", "fidelity loss, plain definition"}


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("sd", BOUNDED | {"exact distribution", "fidelity loss of a lossless method"}),
        ("cool-sd", BOUNDED | {"within the bound"}),
        ("sjd-sv", {"plain definition"}),
    ],
)
def test_a_method_is_held_against_all_that_it_claims(name, checks):
    one = on_tables(method(name), Tables(2, 3, 0, "dense"))
    assert set(one.deviations()) == checks


@pytest.mark.parametrize(
    ("name", "check", "change"),
    [
        ("sd", "exact distribution", {"joint": torch.full((8,), 0.125).double()}),
        ("sd", "plain definition", {"defined": []}),
        ("cool-sd", "fidelity loss, plain definition", {"loss": 9.0}),
    ],
)
def test_what_is_off_is_a_deviation(name, check, change):
    one = on_tables(method(name), Tables(2, 3, 0, "dense"))
    assert one.wrong < EXACT
    assert one._replace(**change).deviations()[check] > 0.01
    assert one._replace(**change).wrong > 0.01
