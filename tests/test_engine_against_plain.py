"""The engine's exact output distribution and fidelity loss are the plain definitions', of lossy methods too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from lanternbench.lossless.exact import output_distribution
from lanternbench.lossless.plain import decoding, windows
from lanternbench.lossless.plain.decoding import MethodSpec
from lanternbench.lossless.plain.rules import Rule, nearest
from lanternbench.lossless.plain.windows import WindowSpec
from lanternbench.lossless.plain.world import World
from lanternbench.lossless.tables import Tables
from lanternbench.methods.method import method

RESOLUTION = 1e-6  # to which the engine's probabilities are measured
SMALL = ((0,), (1,), (2,), (0, 0), (0, 1))  # the tables' static tree
NEAR = 3  # and their neighbours


class Case(NamedTuple):
    """A method and the plain definition of it, which may need the world's codebook."""

    name: str
    options: dict[str, Any]
    plain: Callable[[World], MethodSpec | WindowSpec]


def near(world: World) -> tuple[tuple[int, ...], ...]:
    return nearest(world.codebook, NEAR)


def annealed(lam: float, schedule: str) -> Rule:
    return Rule("annealed", lam=lam, schedule=schedule, length=2)


CASES = (
    Case("sd", {}, lambda _: MethodSpec("chain")),
    Case("eagle-1", {}, lambda _: MethodSpec("static", paths=SMALL)),
    Case("eagle-2", {}, lambda _: MethodSpec("dynamic")),
    Case("cool-sd", {}, lambda _: MethodSpec("static", annealed(2.0, "exp"), "optimal", paths=SMALL)),
    Case(
        "cool-sd",
        {"lam": 1.1, "schedule": "linear", "residual": "standard"},
        lambda _: MethodSpec("static", annealed(1.1, "linear"), "standard", paths=SMALL),
    ),
    Case("uniform-rsd", {"lam": 1.2}, lambda _: MethodSpec("static", annealed(1.2, "uniform"), "optimal", paths=SMALL)),
    Case("lantern++", {}, lambda w: MethodSpec("static", Rule("lantern++", near=near(w)), "lantern", paths=SMALL)),
    Case(
        "lantern++",
        {"residual": "optimal", "lam": 1.5},
        lambda w: MethodSpec("static", Rule("lantern++", lam=1.5, near=near(w)), "optimal", paths=SMALL),
    ),
    Case(
        "lantern", {"delta": 0.3}, lambda w: MethodSpec("dynamic", Rule("lantern", near=near(w), delta=0.3), "lantern")
    ),
    Case(
        "lantern",
        {"delta": 0.2, "divergence": "jsd"},
        lambda w: MethodSpec("dynamic", Rule("lantern", near=near(w), delta=0.2, distance="jsd"), "lantern"),
    ),
    Case(
        "sjd",
        {"acceptance": "annealed", "lam": 1.5, "residual": "optimal", "schedule": "exp"},
        lambda _: WindowSpec(rule=annealed(1.5, "exp"), residual="optimal"),
    ),
    Case(
        "sjd",
        {"acceptance": "lantern", "delta": 0.3, "residual": "lantern", "init": "horizontal-sample"},
        lambda w: WindowSpec(2, "horizontal-sample", Rule("lantern", near=near(w), delta=0.3), "lantern"),
    ),
)


def plain_world(tables: Tables) -> World:
    """The same tables, read by prefix."""

    def logits(rows: torch.Tensor) -> Callable[[tuple[int, ...]], list[float]]:
        def after(prefix: tuple[int, ...]) -> list[float]:
            code = 0
            for x in prefix:
                code = code * tables.vocab + x
            return rows[tables.rows(torch.tensor(code), torch.tensor(len(prefix)))].log().tolist()

        return after

    codes = tables.codebook.double().tolist()
    return World(tables.vocab, tables.length, logits(tables.q), logits(tables.p), codebook=codes)


@pytest.mark.parametrize("kind", ["dense", "zeros"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: " ".join([c.name, *(f"{k}={v}" for k, v in c.options.items())]))
def test_the_engine_samples_what_the_papers_define(case, kind):
    tables = Tables(3, 3, 5, kind)
    world = plain_world(tables)
    spec = case.plain(world)
    with torch.inference_mode():
        got, loss = output_distribution(tables, method(case.name, **case.options))
    if isinstance(spec, WindowSpec):
        made, expected = windows.output_distribution(world, spec), None
    else:
        made, expected = decoding.decode(world, spec)
    want = torch.zeros_like(got)
    for image, probability in made.items():
        want[sum(x * tables.vocab**i for i, x in enumerate(reversed(image)))] = probability
    assert float((got - want).abs().max()) < RESOLUTION
    if expected is not None:
        assert float(loss) == pytest.approx(expected, abs=10 * RESOLUTION)
