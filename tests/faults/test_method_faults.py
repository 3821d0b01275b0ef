"""Methods and targets whose settings contradict each other, or ask for too much, say so in a
sentence and in time.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.experiment.config import sweep
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_target

pytestmark = pytest.mark.usefixtures("in_time")


@pytest.mark.parametrize("name", ["eagle-1", "sd", "cool-sd"])
def test_a_shape_and_another_depth_contradict_each_other(name, shallow):
    with pytest.raises(UserError, match="5 levels deep and --depth says 3"):
        build(shallow, method(name, shape="chain-5", depth=3))
    assert build(shallow, method(name, shape="chain-5", depth=5)).proposer.size.max_depth == 5


@pytest.mark.parametrize(
    "where", ["tiny=/nonexistent", "anole-7b=/nonexistent", "llamagen-xl-stage1=/dev/null"]
)
def test_a_folder_that_is_not_there_is_not_replaced_by_another(where):
    with pytest.raises(UserError, match=r"/nonexistent|/dev/null"):
        load_target(where)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("eagle-2", {"total_nodes": 1024, "depth": 64}),
        ("adt-tree", {"total_nodes": 1024, "depth": 64}),
        ("sd", {"shape": "chain-64"}),
        ("sjd", {"window": 256}),
        ("sjd-pac", {}),
    ],
)
def test_the_largest_trees_decode_or_are_refused_in_time(name, options, shallow):
    with suppress(UserError):
        generate(build(shallow, method(name, **options)), ["a red circle"], max_steps=1)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("eagle-2", {"draft_top_k": 1024, "depth": 64}, "give a smaller --depth or --draft-top-k"),
        (
            "adt-tree",
            {"width_range": (3, 1024), "depth_range": (0, 64)},
            "give a smaller range, or fixed size",
        ),
        (
            "adt-tree",
            {"fixed_width": 1024, "depth_range": (0, 64)},
            "give a smaller range, or fixed size",
        ),
    ],
)
def test_a_tree_chosen_from_tens_of_millions_of_nodes_is_refused(name, options, says, shallow):
    with pytest.raises(
        UserError, match=r"levels with 1,02\d children per expanded node are 6\d,.*" + says
    ):
        build(shallow, method(name, total_nodes=1024, **options))


def test_a_grid_of_millions_of_methods_is_refused():
    many = [i / 1e6 for i in range(1, 3001)]
    grid = {"method": "lantern", "k": list(range(2, 3002)), "delta": many}
    with pytest.raises(UserError, match="at most 1000 fit in one sweep"):
        sweep({"methods": [grid]}, "t")
