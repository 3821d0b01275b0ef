"""``verify dflash``: drafts of one forward keep the target's distribution to 1e-9, and relaxed
ones their bound.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from conftest import slow_but
from test_dflash import TREE, blocky
from test_verification import mutate

from lanternbench.lossless import definitions, exact, on_tables, statistical, verify_method
from lanternbench.lossless.exact import decode_tables
from lanternbench.lossless.plain.drafts import TreeMethod
from lanternbench.lossless.tables import Tables
from lanternbench.methods.method import method
from lanternbench.methods.trees import fixed
from lanternbench.settings import Sampling

CLOSE = 1e-9
TREES = {
    "chain": {},
    "static": {"tree": "static"},
    "dynamic": {"tree": "dynamic"},
    "adaptive": {"tree": "adaptive"},
}
WORLDS = {
    "plain": Tables(3, 4, 3, "mixed"),
    "guided": Tables(3, 4, 3, "dense", Sampling(guidance=1.7)),
    "top-k": Tables(4, 3, 3, "dense", Sampling(guidance=1.5, temperature=1.3, top_k=3)),
    "top-p": Tables(4, 3, 3, "zeros", Sampling(guidance=1.5, temperature=0.9, top_p=0.9)),
}
RELAXED = {
    "cool-sd": {"tree": "chain"},
    "cool-sd on a tree": {"tree": "static", "lam": 1.3},
    "lantern++": {"tree": "static"},
    "lantern": {"tree": "dynamic", "delta": 0.3},
}


@pytest.fixture
def fine(monkeypatch):
    """Thresholds of the engine's decisions to 2⁻³⁶, so that sums of their probabilities are good
    to 1e-9.
    """
    monkeypatch.setattr(exact, "RESOLUTION", 2.0**-36)


EACH = [("chain", "plain"), ("static", "top-p"), ("dynamic", "guided"), ("adaptive", "top-k")]


@pytest.mark.parametrize(("tree", "world"), slow_but(EACH, product(TREES, WORLDS)))
def test_the_target_s_distribution_is_kept(fine, tree, world):
    one = on_tables(method("dflash", **TREES[tree]), WORLDS[world])
    assert one.defined is not None
    assert max(one.bias, one.lost, one.enumerated.loss, one.off) <= CLOSE


@pytest.mark.parametrize(
    "options",
    [{"acceptance": "block"}, {"residual": "optimal"}, {"variant": "reference"}],
    ids=str,
)
def test_block_verification_another_residual_and_the_public_code_s_drafts_keep_it_too(
    fine, options
):
    one = on_tables(method("dflash", **options), WORLDS["top-k"])
    assert max(one.bias, one.lost, one.enumerated.loss) <= CLOSE
    assert ("variant" in options) == (one.defined is None)  # it is not a paper's


@pytest.mark.parametrize("tree", TREES)
def test_at_temperature_0_tokens_are_the_argmax(tree):
    for seed in range(6):
        sampling = Sampling(guidance=1.0 + seed % 2)
        tokens, expected = decode_tables(
            Tables(4, 4, seed, "mixed", sampling), method("dflash", **TREES[tree]), True, 2, 0
        )
        assert torch.equal(tokens, expected)


@pytest.mark.parametrize(
    ("name", "world"),
    slow_but(
        [("lantern++", "plain")],
        product(RELAXED, ("plain", "top-k")),
    ),
)
def test_relaxed_rules_draw_what_they_define_within_their_bound(fine, name, world):
    made = method(name.partition(" ")[0], proposal="dflash", **RELAXED[name])
    one = on_tables(made, WORLDS[world])
    assert one.defined is not None
    # ω is kept in float32
    assert max(one.off, one.lost, abs(one.enumerated.loss - one.loss)) <= 10 * CLOSE
    assert 1e-3 < one.tv <= one.enumerated.loss + CLOSE
    assert not made.lossless


def test_all_nodes_of_a_level_share_a_distribution_in_the_engine_and_in_the_definition(
    monkeypatch,
):
    """A drafter that looked at the drafts before would follow another definition."""
    honest = definitions.definition

    def by_drafts(*args):
        spec = honest(*args)
        assert isinstance(spec, TreeMethod)
        assert spec.marginals
        return replace(spec, marginals=False)

    made = method("cool-sd", proposal="dflash", tree="chain")
    assert on_tables(made, WORLDS["plain"]).off < 1e-6
    monkeypatch.setattr("lanternbench.lossless.definition", by_drafts)
    assert on_tables(made, WORLDS["plain"]).off > 1e-3


def test_probabilities_of_another_slot_than_the_draft_s_are_found(monkeypatch):
    mutate(
        monkeypatch,
        fixed,
        "FixedTree.grow",
        "torch.cat(distributions, 1) if",
        "torch.cat(distributions[::-1], 1) if",
    )
    monkeypatch.setattr("lanternbench.lossless.WORLDS", (lambda seed: WORLDS["plain"],))
    row = next(verify_method(method("dflash"), None, 3, 1))
    assert (row.check, row.passed) == ("tables: exact distribution", False)
    assert row.value > 1e-3


# of three levels at most, as blocks hold three drafts
SHALLOW = TREES | {
    "static": {"tree": "static", "shape": TREE},
    "adaptive": {"tree": "adaptive", "depth_range": (0, 4)},
}


@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("tree", slow_but(["dynamic"], SHALLOW))
def test_with_a_network_on_a_model_with_row_ends_tokens_follow_the_target(tree, causal):
    target, made = blocky("lumina", causal), method("dflash", **SHALLOW[tree])
    found = statistical.sampled_tests(target, made, 48, 0)
    assert min(found.ranks.p_value, found.log_q.p_value) > statistical.ALPHA
    assert found.forward < 1e-4
    assert found.alike == 0
    assert statistical.greedy_difference(target, made, 4, 0) == 0


@pytest.mark.parametrize("causal", slow_but([False], [False, True]), ids=["both-ways", "causal"])
def test_relaxed_on_a_model_it_is_told_from_the_target(causal):
    made = method("cool-sd", proposal="dflash", tree="chain", lam=4.0)
    found = statistical.sampled_tests(blocky("lumina", causal), made, 64, 0)
    assert found.ranks.p_value < statistical.ALPHA
    assert found.forward < 1e-4
