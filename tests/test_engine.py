"""The decode loop on the embedded model."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from lanternbench.decoding import engine, presets
from lanternbench.decoding.session import Session
from lanternbench.errors import UserError
from lanternbench.prompts import load

CAPTIONS = [p.text for p in load("demo", 3)]
LOSSLESS = ["sd", "medusa", "eagle-1", "eagle-2", "adt-tree", "sjd", "jacobi"]
RELAXED = ["lantern", "lantern++", "uniform-rsd", "cool-sd"]


def tokens(target, name, captions=CAPTIONS, temperature=1.0, seed=0, trace=False, **options):
    decoder = engine.build(target, presets.method(name, **options), temperature)
    return engine.generate(decoder, captions, seed=seed, trace=trace)


@pytest.fixture(scope="module")
def greedy(target):
    return torch.stack([g.tokens for g in tokens(target, "ar", temperature=0.0)])


@pytest.mark.parametrize("name", LOSSLESS)
def test_greedy_output_of_lossless_methods_is_that_of_ar(target, greedy, name):
    made = tokens(target, name, temperature=0.0)
    assert torch.equal(torch.stack([g.tokens for g in made]), greedy)


@pytest.mark.parametrize("name", ["ar", *LOSSLESS, *RELAXED])
def test_a_batch_gives_each_prompt_the_tokens_it_gets_alone(target, name):
    together = tokens(target, name)
    alone = tokens(target, name, CAPTIONS[1:2])[0]
    assert torch.equal(together[1].tokens, alone.tokens)
    assert together[1].accept_lengths == alone.accept_lengths


@pytest.mark.parametrize("name", ["ar", "eagle-1", "eagle-2", "sjd", "cool-sd"])
def test_a_step_synchronises_once_and_commits_what_it_says(target, name):
    made = tokens(target, name, CAPTIONS[:1])[0]
    assert made.syncs == made.steps
    assert sum(made.accept_lengths) == target.length - 1  # the first token comes with the prefill
    assert len(made.tree_depths) == len(made.tree_nodes) == made.steps
    assert int(made.tokens.min()) >= 0
    assert int(made.tokens.max()) < target.vocab


@pytest.mark.parametrize("name", ["ar", "sd", "medusa", "lantern", "adt-tree", "sjd", "cool-sd"])
def test_a_batch_goes_on_without_the_prompts_that_are_finished(target, name, monkeypatch):
    kept = []
    keep = Session.keep

    def counted(self, prompts):
        kept.append(list(prompts))
        return keep(self, prompts)

    monkeypatch.setattr(Session, "keep", counted)
    options = {"init": "vertical-sample"} if name == "sjd" else {}
    captions = [p.text for p in load("demo", 4)]
    together = tokens(target, name, captions, **options)
    if name == "ar":  # all finish at once
        assert kept == []
        return
    assert kept
    assert all(2 * after <= before for before, after in pairwise([len(captions), *map(len, kept)]))
    slowest = max(range(len(captions)), key=lambda i: together[i].steps)
    alone = tokens(target, name, [captions[slowest]], **options)[0]
    assert torch.equal(together[slowest].tokens, alone.tokens)
    assert together[slowest].accept_lengths == alone.accept_lengths
    assert all(sum(g.accept_lengths) == target.length - 1 for g in together)


def test_ar_takes_one_step_a_token(target):
    assert tokens(target, "ar", CAPTIONS[:1])[0].accept_lengths == [1] * (target.length - 1)


def test_the_same_seed_gives_the_same_image_and_another_seed_another(target):
    first, again, other = (tokens(target, "eagle-1", CAPTIONS[:1], seed=s)[0].tokens for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_relaxation_accepts_more(target):
    def tau(**options):
        made = tokens(target, "cool-sd", **options)
        return sum(sum(g.accept_lengths) for g in made) / sum(g.steps for g in made)

    assert tau(lam=4.0) > tau(lam=1.0)


def test_without_guidance_there_is_one_row_and_it_still_agrees(target):
    def made(name):
        decoder = engine.build(target, presets.method(name), 0.0, guidance=1.0)
        return engine.generate(decoder, CAPTIONS[:2])

    for a, b in zip(made("ar"), made("eagle-1"), strict=True):
        assert torch.equal(a.tokens, b.tokens)


@pytest.mark.parametrize("shape", ["chain-1", "chain-9", "twig-8", "mc_sim_7b_63", [[0], [1], [0, 0]]])
def test_any_static_tree_is_lossless_when_greedy(target, greedy, shape):
    made = tokens(target, "eagle-1", CAPTIONS[:1], 0.0, shape=shape)
    assert torch.equal(made[0].tokens, greedy[0])


def test_depth_zero_is_autoregressive(target):
    made = tokens(target, "eagle-1", CAPTIONS[:1], tree="chain", depth=0)
    assert made[0].accept_lengths == [1] * (target.length - 1)


def test_a_tree_deeper_than_the_rest_of_the_image_is_cut(target, greedy):
    made = tokens(target, "sd", CAPTIONS[:1], 0.0, depth=40)[0]
    assert torch.equal(made.tokens, greedy[0])
    assert sum(made.accept_lengths) == target.length - 1


def test_top_k_one_is_greedy(target, greedy):
    decoder = engine.build(target, presets.method("eagle-1"), 1.0, top_k=1)
    assert torch.equal(engine.generate(decoder, CAPTIONS[:1])[0].tokens, greedy[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_logits_are_reported_not_decoded(target, value):
    from copy import deepcopy

    broken = replace(target, model=deepcopy(target.model))
    with torch.no_grad():
        broken.model.output.weight[7] = value
    with pytest.raises(UserError, match="NaN or infinite"):
        tokens(broken, "eagle-1", CAPTIONS[:1])


def test_a_drafter_that_does_not_fit_is_refused(target):
    from lanternbench.models.eagle import Eagle

    wide = replace(target, drafters={"eagle": Eagle(replace(target.model.cfg, dim=64, n_head=2))})
    with pytest.raises(UserError, match="does not fit"):
        tokens(wide, "eagle-1", CAPTIONS[:1])
    with pytest.raises(UserError, match="no drafter of kind 'medusa'"):
        tokens(wide, "medusa", CAPTIONS[:1])


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("nope", {}, "unknown method 'nope'"),
        ("cool-sd", {"lam": 0.5}, "λ = 0.5"),
        ("lantern", {"delta": 2.0}, "'delta'"),
        ("ar", {"acceptance": "lantern"}, "drafts nothing"),
        ("sjd", {"tree": "dynamic"}, "chain"),
        ("sjd", {"init": "sideways"}, "init must be one of"),
        ("eagle-1", {"acceptance": "magic"}, "no acceptance rule"),
        ("eagle-1", {"colour": 3}, "no option 'colour'"),
    ],
)
def test_impossible_methods_are_refused_with_the_reason(name, options, reason):
    with pytest.raises(UserError, match=reason):
        presets.method(name, **options)


def test_the_python_interface_gives_tokens_image_and_stats():
    import lanternbench

    model = lanternbench.load("tiny")
    made = model.generate("a large red ring on the left on a plain white background", "cool-sd", lam=2.0, seed=42)
    again = model.generate("a large red ring on the left on a plain white background", "cool-sd", lam=2.0, seed=42)
    assert torch.equal(made.tokens, again.tokens)
    assert made.image.size == (64, 64)
    assert made.stats.steps < len(made.tokens)
