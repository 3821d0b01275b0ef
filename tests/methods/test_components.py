"""Components of others are really called: on every tree, at every temperature, whatever they
inherit from.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lanternbench import registry
from lanternbench.engine import decode as engine
from lanternbench.engine.relaxed import RelaxedProb
from lanternbench.engine.sampling import at
from lanternbench.engine.verify import AcceptanceRule, ExactTest
from lanternbench.errors import UserError
from lanternbench.methods.acceptance.exact import Exact
from lanternbench.methods.acceptance.gsd import Gsd
from lanternbench.methods.acceptance.lantern import Lantern
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.methods.proposals.drafting import EagleDrafter, EagleProposal
from lanternbench.methods.proposals.jacobi import Jacobi, SlidingWindow
from lanternbench.methods.residuals import residual, standard
from lanternbench.methods.trees.dynamic import Dynamic, DynamicTree
from lanternbench.registry import register
from lanternbench.settings import Sampling

TREES = ["chain", "static", "dynamic", "adaptive"]
CAPTION = "a small green ring"
calls: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _registry():
    """What a test registers is gone afterwards."""
    calls.clear()
    with registry.temporary():
        yield


def run(target: Any, name: str, temperature: float, **options: Any) -> engine.SpeculativeDecoder:
    decoder = build(target, method(name, **options), Sampling(temperature=temperature))
    engine.generate(decoder, [CAPTION], max_steps=3)
    return decoder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", TREES)
def test_a_rule_that_defines_relax_alone_is_called(shallow, tree, temperature):
    @register("acceptance", "counting")
    class Counting(AcceptanceRule):
        def relax(self, q, x, depth):
            calls["relax"] += 1
            return RelaxedProb(at(q, x))

    run(shallow, "eagle-1", temperature, tree=tree, acceptance="counting", residual="standard")
    assert calls["relax"] > 0


@pytest.mark.parametrize("base", [Exact, Lantern, Gsd])
def test_a_rule_whose_relax_would_not_be_read_is_refused(base):
    with pytest.raises(TypeError, match="derive from AcceptanceRule, or define build too"):

        class Ignored(base):
            def relax(self, q, x, depth):
                return RelaxedProb(at(q, x))


def test_a_subclass_of_a_rule_is_built_as_its_base_is(shallow, monkeypatch):
    @register("acceptance", "same")
    class Same(Exact):
        pass

    rule = run(shallow, "eagle-1", 1.0, tree="dynamic", acceptance="same").rule
    assert type(rule) is ExactTest


@pytest.mark.parametrize("tree", TREES)
def test_a_residual_is_called_on_every_tree(shallow, tree):
    @residual("counting")
    def counting(q, p, x, depth, rule):
        calls["residual"] += 1
        return standard(q, p, x, depth, rule)

    run(shallow, "eagle-1", 1.0, tree=tree, residual="counting")
    assert calls["residual"] > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", TREES)
def test_a_proposal_is_called_with_every_tree(shallow, tree, temperature):
    class Drafter(EagleDrafter):
        def expander(self, state, memory):
            calls["expander"] += 1
            return super().expander(state, memory)

    @register("proposal", "counting")
    class Counting(EagleProposal):
        def make(self, target, max_depth):
            return Drafter(self.network_of(target), target.model)

    run(shallow, "eagle-1", temperature, tree=tree, proposal="counting")
    assert calls["expander"] == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_state_of_a_window_goes_through_update_once_a_step(shallow, temperature):
    class Window(SlidingWindow):
        def update(self, state, window, result):
            calls["update"] += 1
            return super().update(state, window, result)

    @register("proposal", "counting")
    class Counting(Jacobi):
        def build(self, target, tree, rule):
            return Window(**vars(super().build(target, tree, rule)))

    run(shallow, "sjd", temperature, proposal="counting")
    assert calls["update"] == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_is_grown_once_a_step(shallow, temperature):
    class Tree(DynamicTree):
        def grow(self, state, own, expand, u):
            calls["grow"] += 1
            return super().grow(state, own, expand, u)

    @register("tree", "counting")
    class Counting(Dynamic):
        def build(self, target, samples):
            return Tree.of(self.bounds)

    run(shallow, "eagle-2", temperature, tree="counting")
    assert calls["grow"] == 3


def test_a_name_that_is_taken_and_an_unknown_kind_are_one_sentence():
    with pytest.raises(UserError, match="the acceptance 'exact' is registered already"):
        register("acceptance", "exact")(Lantern)
    with pytest.raises(UserError, match="no components of kind 'rule'"):
        register("rule", "mine")
    with pytest.raises(UserError, match="no tree called 'chian': did you mean 'chain'"):
        method("eagle-1", tree="chian")


def test_relaxed_rules_do_not_claim_to_be_lossless():
    rules = registry.components("acceptance")
    assert {name for name, rule in rules.items() if rule.lossless} == {
        "exact",
        "block",
        "unchanged",
    }


def test_what_is_registered_or_replaced_in_a_temporary_registry_is_gone_after_an_error_too():
    presets, honest = (
        list(registry.components("preset")),
        registry.component("residual", "standard"),
    )

    def forget(q, p, x, depth, rule):
        return q

    def fail():
        with registry.temporary({"residual": {"standard": forget}}):
            register("residual", "forget")(forget)
            assert (
                registry.component("residual", "standard")
                is registry.component("residual", "forget")
                is forget
            )
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert registry.component("residual", "standard") is honest
    assert "forget" not in registry.components("residual")
    assert list(registry.components("preset")) == presets
