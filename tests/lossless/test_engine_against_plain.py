"""The engine's exact output distribution and fidelity loss are the plain definitions', of lossy
methods too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any, NamedTuple

import pytest
import torch
from conftest import slow_but
from plain_worlds import in_all
from rules import chain, drafted, plainly, windowed
from windows_on_tables import output_distribution

from lanternbench import lossless, registry
from lanternbench.component import option
from lanternbench.engine.plain import PLAIN_RULES, PlainRule, plain_rule
from lanternbench.engine.relaxed import RelaxedProb
from lanternbench.engine.sampling import at
from lanternbench.engine.verify import AcceptanceRule, Residual
from lanternbench.lossless.plain import World, decode_by_steps
from lanternbench.lossless.plain.drafts import TreeMethod, WindowMethod
from lanternbench.lossless.tables import Tables
from lanternbench.methods.method import method
from lanternbench.methods.residuals import optimal, standard
from lanternbench.methods.trees import adaptive
from lanternbench.settings import Sampling

RESOLUTION = 1e-6  # to which the engine's probabilities are measured
SMALL = ((0,), (1,), (2,), (0, 0), (0, 1))  # the tables' static tree
NEAR = 3  # and their neighbours


STATIC, DYNAMIC = TreeMethod(paths=SMALL), TreeMethod(kind="dynamic")


class Case(NamedTuple):
    """A method and the plain definition of it, whose rule may need the world's codebook."""

    name: str
    options: dict[str, Any]
    plain: Callable[[World], TreeMethod | WindowMethod]


def rule(world: World, name: str, **options: Any) -> PlainRule:
    return plainly(name, world.codebook, 2, **options)


CASES = (
    Case("sd", {}, lambda _: drafted(chain(2))),
    Case("eagle-1", {}, lambda _: drafted(STATIC)),
    Case("eagle-2", {}, lambda _: drafted(DYNAMIC)),
    Case("cool-sd", {}, lambda w: drafted(STATIC, rule(w, "annealed"), "optimal")),
    Case(
        "cool-sd",
        {"lam": 1.1, "schedule": "linear", "residual": "standard"},
        lambda w: drafted(STATIC, rule(w, "annealed", lam=1.1, schedule="linear")),
    ),
    Case(
        "uniform-rsd",
        {"lam": 1.2},
        lambda w: drafted(STATIC, rule(w, "annealed", lam=1.2, schedule="uniform"), "optimal"),
    ),
    Case("lantern++", {}, lambda w: drafted(STATIC, rule(w, "lantern++", k=NEAR), "lantern")),
    Case(
        "lantern++",
        {"residual": "optimal", "lam": 1.5},
        lambda w: drafted(STATIC, rule(w, "lantern++", lam=1.5, k=NEAR), "optimal"),
    ),
    Case(
        "lantern",
        {"delta": 0.3},
        lambda w: drafted(DYNAMIC, rule(w, "lantern", k=NEAR, delta=0.3), "lantern"),
    ),
    Case(
        "lantern",
        {"delta": 0.2, "divergence": "jsd"},
        lambda w: drafted(
            DYNAMIC, rule(w, "lantern", k=NEAR, delta=0.2, divergence="jsd"), "lantern"
        ),
    ),
    Case(
        "sjd",
        {"acceptance": "annealed", "lam": 1.5, "residual": "optimal", "schedule": "exp"},
        lambda w: windowed(rule(w, "annealed", lam=1.5), "optimal"),
    ),
    Case(
        "sjd",
        {
            "acceptance": "lantern",
            "delta": 0.3,
            "residual": "lantern",
            "init": "horizontal-sample",
        },
        lambda w: windowed(
            rule(w, "lantern", k=NEAR, delta=0.3), "lantern", init="horizontal-sample"
        ),
    ),
)


def name(value: Case | str) -> str:
    return (
        value
        if isinstance(value, str)
        else " ".join([value.name, *(f"{k}={v}" for k, v in value.options.items())])
    )


@pytest.mark.parametrize(
    ("case", "kind"),
    slow_but(
        [*product(CASES[::2], ["dense"]), *product(CASES[1::2], ["zeros"])],
        product(CASES, ["dense", "zeros"]),
    ),
    ids=name,
)
def test_the_engine_samples_what_the_papers_define(case, kind):
    tables = Tables(3, 3, 5, kind)
    world = tables.world()
    spec = case.plain(world)
    with torch.inference_mode():
        got, loss = output_distribution(tables, method(case.name, **case.options))
    by_steps, expected = decode_by_steps(world, spec)
    want = tables.on_all_images(in_all(by_steps))
    assert float((got - want).abs().max()) < RESOLUTION
    assert float(loss) == pytest.approx(expected, abs=RESOLUTION)


GUIDED = Sampling(guidance=1.7, temperature=1.4, top_k=3, top_p=0.9)


@pytest.mark.parametrize("name", ["ar", "sd", "eagle-2", "cool-sd", "sjd", "scd"])
def test_guided_and_warped_the_engine_samples_what_the_papers_define(name):
    with torch.inference_mode():
        one = lossless.on_tables(method(name), Tables(4, 3, 11, "dense", GUIDED))
    assert one.wrong < RESOLUTION


@pytest.mark.slow
def test_every_form_of_a_rule_is_held_against_its_definition(monkeypatch):
    monkeypatch.setattr(lossless, "WORLDS", (partial(Tables, 3, 3, kind="dense"),))
    monkeypatch.setattr(lossless, "TREES", (partial(Tables, 3, 3, kind="dense"),))
    labels = {m.label for m in lossless.variations(method("cool-sd"))}
    assert {
        "cool-sd λ=1",
        "cool-sd λ=2 schedule=linear",
        "cool-sd residual=standard λ=2",
    } <= labels

    def other_forms() -> lossless.Row:  # the checks after it are not run
        return next(
            r
            for r in lossless.verify_method(method("cool-sd"), None, 0, 1)
            if "other forms" in r.check
        )

    assert other_forms().passed
    wrong = replace(optimal, weights=lambda q, p, *_: (q - p).clamp(min=0))
    with registry.temporary({"residual": {"optimal": wrong}}):
        assert other_forms().passed is False  # ω is below 1 at λ = 1 alone


def test_a_method_without_a_plain_definition_is_judged_by_its_bound_alone(monkeypatch):
    monkeypatch.setattr(lossless, "WORLDS", (partial(Tables, 3, 3, kind="dense"),))
    row = next(
        lossless.verify_method(method("lantern", variant="reference", delta=0.3), None, 0, 1)
    )
    assert row.check == "tables: within the bound"
    assert "bound only" in row.detail


@pytest.mark.slow
def test_a_plug_in_s_rule_and_residual_are_held_against_their_own_definitions(monkeypatch):
    monkeypatch.setattr(
        lossless,
        "WORLDS",
        (
            partial(Tables, 3, 3, kind="dense"),
            partial(Tables, 3, 4, kind="dense", sampling=lossless.GUIDED, deep=True),
        ),
    )

    class Peak(AcceptanceRule):
        lossless = False
        share: float = option(0.4, "share of the likeliest token's probability")

        def relax(self, q, x, depth):
            return RelaxedProb(
                torch.where(at(q, x) >= self.share * q.amax(-1), torch.inf, 0.0).to(q.dtype)
            )

    def flatter(q, p, x, depth, rule):
        return standard(q, p, x, depth, rule).sqrt()

    def plain_flatter(q, p, x, depth, rule):
        return [math.sqrt(max(0.0, qy - py)) for qy, py in zip(q, p, strict=True)]

    def defined_by(least):
        @plain_rule(Peak)
        def peak(rule, q, p, x, depth):
            return float(q[x] >= least(rule) * max(q))

    residual = Residual(flatter, plain_flatter)
    monkeypatch.setitem(PLAIN_RULES, Peak, None)  # gone afterwards
    defined_by(lambda rule: rule.share)

    def follows_its_definition() -> bool | None:  # the checks after it are not run
        made = method("eagle-1", acceptance="peaks", residual="flatter")
        rows = lossless.verify_method(made, None, 0, 1)
        return next(row for row in rows if row.check == "tables: plain definition").passed

    with registry.temporary({"acceptance": {"peaks": Peak}, "residual": {"flatter": residual}}):
        assert follows_its_definition()
        defined_by(lambda rule: 0.6)
        assert follows_its_definition() is False


def test_a_tree_that_adapts_the_wrong_way_is_found_though_its_images_are_right(monkeypatch):
    monkeypatch.setattr(
        lossless, "WORLDS", (partial(Tables, 3, 5, kind="dense", sampling=Sampling(), deep=True),)
    )
    honest = adaptive.adapt

    def flipped(start, alpha, within):
        return honest(start, None if alpha is None else 2.0 - alpha, within)

    monkeypatch.setattr(adaptive, "adapt", flipped)
    # the rest asks other questions
    found = islice(lossless.verify_method(method("adt-tree"), None, 0, 1), 3)
    rows = {row.check: row.passed for row in found}
    assert rows["tables: exact distribution"]
    assert not rows["tables: plain definition"]
