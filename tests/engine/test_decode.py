"""The decode loop on the embedded model."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from conftest import slow_but

import lanternbench
from lanternbench.engine import decode as engine
from lanternbench.engine.state import DecodeState
from lanternbench.engine.tree import Draft, from_paths
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import KINDS, method, named
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.models.transformer import guide
from lanternbench.prompts import load
from lanternbench.registry import components
from lanternbench.settings import Sampling

CAPTIONS = [p.text for p in load("demo", 3)]
LOSSLESS = ["sd", "medusa", "eagle-1", "eagle-2", "eagle-3", "adt-tree", "sjd", "jacobi"]
RELAXED = ["lantern", "lantern++", "uniform-rsd", "cool-sd"]
GOING_ON = ["ar", "adt-tree", "sjd"]  # whose batches are looked at as prompts finish
# with the above every drafter and tree
QUICK = ["ar", "sd", "eagle-2", "eagle-3", "lantern", "cool-sd"]


def tokens(target, name, captions=CAPTIONS, temperature=1.0, seed=0, trace=False, **options):
    decoder = build(target, method(name, **options), Sampling(temperature=temperature))
    return engine.generate(decoder, captions, seed=seed, trace=trace)


@pytest.fixture(scope="module")
def greedy(shallow_5x5):
    return torch.stack([g.tokens for g in tokens(shallow_5x5, "ar", temperature=0.0)])


@pytest.mark.parametrize("name", slow_but(["sd", "eagle-2", "eagle-3", "jacobi"], LOSSLESS))
def test_greedy_output_of_lossless_methods_is_that_of_ar(shallow_5x5, greedy, name):
    made = tokens(shallow_5x5, name, temperature=0.0)
    assert torch.equal(torch.stack([g.tokens for g in made]), greedy)


@pytest.mark.parametrize(
    ("layers", "name"),
    slow_but(
        [("shallow_5x5", name) for name in QUICK],
        [
            *(("shallow_5x5", name) for name in ["ar", *LOSSLESS, *RELAXED]),
            ("target_8x8", "ar"),
            ("target_8x8", "eagle-1"),
        ],
    ),
)
def test_a_batch_gives_each_prompt_the_tokens_it_gets_alone(request, layers, name):
    target = request.getfixturevalue(layers)
    together = tokens(target, name)
    alone = tokens(target, name, CAPTIONS[1:2])[0]
    assert torch.equal(together[1].tokens, alone.tokens)
    for figure in ("accept_lengths", "tree_depths", "tree_nodes"):
        assert getattr(together[1], figure) == getattr(alone, figure), figure


@pytest.mark.parametrize("name", ["ar", "eagle-1", "eagle-2", "sjd", "cool-sd"])
def test_a_step_synchronises_once_and_commits_what_it_says(shallow_5x5, name):
    made = tokens(shallow_5x5, name, CAPTIONS[:1])[0]
    assert made.syncs == made.steps
    # the first token comes with the prefill
    assert sum(made.accept_lengths) == shallow_5x5.length - 1
    assert len(made.tree_depths) == len(made.tree_nodes) == made.steps
    assert int(made.tokens.min()) >= 0
    assert int(made.tokens.max()) < shallow_5x5.vocab


@pytest.mark.parametrize(
    "name",
    slow_but(GOING_ON, ["ar", "sd", "medusa", "lantern", "adt-tree", "sjd", "cool-sd"]),
)
def test_a_batch_goes_on_without_the_prompts_that_are_finished(shallow_5x5, name, monkeypatch):
    target, kept = shallow_5x5, []
    select = DecodeState.select

    def counted(self, prompts):
        kept.append(list(prompts))
        return select(self, prompts)

    monkeypatch.setattr(DecodeState, "select", counted)
    options = {"init": "vertical-sample"} if name == "sjd" else {}
    captions = [p.text for p in load("demo", 4)]
    together = tokens(target, name, captions, trace=True, **options)
    if name == "ar":  # all finish at once
        assert kept == []
        return
    assert kept
    assert all(2 * after <= before for before, after in pairwise([len(captions), *map(len, kept)]))
    slowest = max(range(len(captions)), key=lambda i: together[i].steps)
    for i in (slowest, min(range(len(captions)), key=lambda i: together[i].steps)):
        alone = tokens(target, name, [captions[i]], trace=True, **options)[0]
        assert torch.equal(together[i].tokens, alone.tokens)
        assert together[i].accept_lengths == alone.accept_lengths
        for of_all, own in zip(
            vars(together[i].trace).values(), vars(alone.trace).values(), strict=True
        ):
            torch.testing.assert_close(of_all[i], own[0])
    assert all(sum(g.accept_lengths) == target.length - 1 for g in together)


def test_ar_takes_one_step_a_token(shallow_5x5):
    assert tokens(shallow_5x5, "ar", CAPTIONS[:1])[0].accept_lengths == [1] * (
        shallow_5x5.length - 1
    )


def test_the_same_seed_gives_the_same_image_and_another_seed_another(shallow_5x5):
    first, again, other = (
        tokens(shallow_5x5, "eagle-1", CAPTIONS[:1], seed=s)[0].tokens for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_relaxation_accepts_more(shallow_8x8):
    def tau(**options):
        made = tokens(shallow_8x8, "cool-sd", **options)
        return sum(sum(g.accept_lengths) for g in made) / sum(g.steps for g in made)

    assert tau(lam=4.0) > tau(lam=1.0)


def test_without_guidance_there_is_one_row_and_it_still_agrees(shallow_5x5):
    def made(name):
        decoder = build(shallow_5x5, method(name), Sampling(temperature=0.0, guidance=1.0))
        return engine.generate(decoder, CAPTIONS[:2])

    for a, b in zip(made("ar"), made("eagle-1"), strict=True):
        assert torch.equal(a.tokens, b.tokens)


@pytest.mark.parametrize(
    "shape", ["chain-1", "chain-9", "twig-8", "mc_sim_7b_63", [[0], [1], [0, 0]]]
)
def test_any_static_tree_is_lossless_when_greedy(shallow_5x5, greedy, shape):
    made = tokens(shallow_5x5, "eagle-1", CAPTIONS[:1], 0.0, shape=shape)
    assert torch.equal(made[0].tokens, greedy[0])


def test_depth_zero_is_autoregressive(shallow_5x5):
    made = tokens(shallow_5x5, "eagle-1", CAPTIONS[:1], tree="chain", depth=0)
    assert made[0].accept_lengths == [1] * (shallow_5x5.length - 1)


def test_a_tree_deeper_than_the_rest_of_the_image_is_cut(shallow_5x5, greedy):
    made = tokens(shallow_5x5, "sd", CAPTIONS[:1], 0.0, depth=40)[0]
    assert torch.equal(made.tokens, greedy[0])
    assert sum(made.accept_lengths) == shallow_5x5.length - 1


def test_top_k_one_is_greedy(shallow_5x5, greedy):
    decoder = build(shallow_5x5, method("eagle-1"), Sampling(temperature=1.0, top_k=1))
    assert torch.equal(engine.generate(decoder, CAPTIONS[:1])[0].tokens, greedy[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_logits_are_reported_not_decoded(shallow_8x8, value):
    from copy import deepcopy

    broken = replace(shallow_8x8, model=deepcopy(shallow_8x8.model))
    with torch.no_grad():
        broken.model.norm.weight[7] = value
    with pytest.raises(UserError, match="NaN or infinite"):
        tokens(broken, "eagle-1", CAPTIONS[:1])


def test_a_drafter_that_does_not_fit_is_refused(shallow_8x8):
    from lanternbench.models.drafters.eagle import Eagle

    wide = replace(
        shallow_8x8,
        drafters={"eagle": Eagle(replace(shallow_8x8.model.config.decoder, dim=64, n_head=2))},
    )
    with pytest.raises(UserError, match="does not fit"):
        tokens(wide, "eagle-1", CAPTIONS[:1])
    with pytest.raises(UserError, match="no drafter of kind 'medusa'"):
        tokens(wide, "medusa", CAPTIONS[:1])


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("nope", {}, "unknown method 'nope'"),
        ("cool-sd", {"lam": 0.5}, "option 'lambda' = 0.5 is wrong"),
        ("lantern", {"delta": 2.0}, "'delta'"),
        ("ar", {"acceptance": "lantern"}, "drafts nothing"),
        ("sjd", {"tree": "dynamic"}, "chain"),
        ("sjd", {"init": "sideways"}, "option 'init' = 'sideways' is wrong"),
        ("eagle-1", {"acceptance": "magic"}, "no acceptance called 'magic'"),
        ("eagle-1", {"colour": 3}, "no option 'colour'"),
        ("ar", {"lambda": 2}, "does not read the option 'lambda'"),
        ("sjd", {"depth": 3}, "'depth' .it reads: init, window."),
        ("uniform-rsd", {"nu": 0.5}, "does not read the option 'nu'"),
        ("cool-sd", {"acceptance": "exact", "k": 7}, "does not read the option 'k'"),
        (
            "eagle-1",
            {"shape": "chain-3", "total_nodes": 9},
            "does not read the option 'total_nodes'",
        ),
        ("adt-tree", {"width_range": [3, 10**6]}, "'width_range'"),
    ],
)
def test_impossible_methods_are_refused_with_the_reason(name, options, reason):
    with pytest.raises(UserError, match=reason):
        method(name, **options)


@pytest.mark.parametrize(
    ("name", "rule", "label", "residual"),
    [
        ("lantern", "lantern++", "lantern+lantern++ λ=2", "lantern"),
        ("lantern++", "lantern", "lantern+++lantern δ=0.1", "lantern"),
        ("cool-sd", "exact", "cool-sd+exact", "standard"),
        ("eagle-1", "lantern++", "eagle-1+lantern++ λ=2", "lantern"),
    ],
)
def test_a_rule_in_another_s_place_brings_its_own_relaxation(name, rule, label, residual):
    made = method(name, acceptance=rule)
    assert made.choices.residual == residual
    assert made.label == label
    if "lantern" in rule:
        assert method(name, acceptance=rule, k=7).acceptance.k == 7


def test_every_option_that_a_preset_has_is_one_that_it_reads():
    for name, preset in components("preset").items():
        assert set(preset.options).isdisjoint(KINDS)
        assert set(preset.options) <= set(named(name).read), name


@pytest.fixture(scope="module")
def halved():
    """The embedded target in bfloat16."""
    return tiny.load(dtype=torch.bfloat16)


@torch.inference_mode()
def teacher_forced(target, decoder, captions, tokens):
    """[B, n, V]: the distributions of ``tokens`` [B, n] by one uncached forward."""
    prefix = target.prefix(captions, decoder.guidance)
    hidden = target.model.teacher_forced(prefix.embeddings, prefix.valid, tokens.repeat(2, 1))
    return decoder.warp(target.model.output(guide(hidden, decoder.guidance)))


@pytest.mark.parametrize(
    ("name", "temperature"),
    slow_but(
        [("ar", 1.0), ("eagle-2", 1.0)],
        [
            *((name, 1.0) for name in ["ar", *LOSSLESS, *RELAXED]),
            *((name, 0.0) for name in ["ar", "sd", "eagle-2", "sjd", "cool-sd"]),
        ],
    ),
)
def test_in_bfloat16_every_method_verifies_by_float32_s_distributions_up_to_rounding(
    target, halved, name, temperature
):
    decoder = build(halved, method(name), Sampling(temperature=temperature))
    for captions in (CAPTIONS[:1], CAPTIONS[:2]):
        made = engine.generate(decoder, captions, trace=True, max_steps=12)
        counts = [1 + sum(g.accept_lengths) for g in made]
        tokens, q = (
            torch.stack([g.tokens for g in made])[:, : max(counts)],
            made[0].trace.q[:, : max(counts)],
        )
        assert (q.dtype, made[0].trace.p.dtype) == (torch.float32, torch.float32)
        own = (q - teacher_forced(target, decoder, captions, tokens)).abs().sum(-1) / 2
        others = (
            q - teacher_forced(target, decoder, CAPTIONS[1 : 1 + len(captions)], tokens)
        ).abs().sum(-1) / 2
        for i, count in enumerate(counts):
            assert 0 < own[i, :count].mean() < 0.04
            assert others[i, :count].mean() > 0.5


@pytest.mark.slow
def test_bfloat16_draws_other_tokens_and_accepts_about_as_many(target, halved):
    plain, other = (
        engine.generate(build(t, method("eagle-1")), CAPTIONS, max_steps=48)
        for t in (target, halved)
    )
    assert not any(torch.equal(a.tokens, b.tokens) for a, b in zip(plain, other, strict=True))
    tau = [
        sum(sum(g.accept_lengths) for g in made) / sum(g.steps for g in made)
        for made in (plain, other)
    ]
    assert tau[1] == pytest.approx(tau[0], rel=0.15)


def test_weights_are_float32_unless_bfloat16_is_asked_for_and_the_tokeniser_always_is(
    target, halved
):
    for made, dtype in ((target, torch.float32), (halved, torch.bfloat16)):
        assert made.dtype == dtype
        found = {
            p.dtype for net in (made.model, *made.drafters.values()) for p in net.parameters()
        }
        assert found - {torch.float16} == {dtype}  # float16: layers that lose nothing by it
        assert dtype == torch.float32 or torch.float16 not in found
        assert {p.dtype for p in made.vq.parameters()} == {torch.float32}
    assert torch.equal(
        halved.model.tok_embeddings.weight, target.model.tok_embeddings.weight.bfloat16()
    )
    assert torch.equal(halved.model.rope, target.model.rope)  # positions are not rounded


def test_the_python_interface_takes_a_drafter_and_a_dtype():
    model = lanternbench.load("tiny", drafter="tiny", dtype="bfloat16")
    assert (
        model.target.dtype == model.target.drafters["model"].output.weight.dtype == torch.bfloat16
    )
    # the target itself
    assert len(model.target.drafters["model"].layers) == len(model.target.model.layers)
    with pytest.raises(
        UserError, match="'dtype' is wrong \\(must be 'float32', 'bfloat16' or 'float16'\\)"
    ):
        lanternbench.load("tiny", dtype="int8")
    with pytest.raises(UserError, match="unknown drafter 'nope'"):
        lanternbench.load("tiny", drafter="nope")
    with pytest.raises(UserError, match="unknown device 'gpu': use auto, cpu, cuda or cuda:N"):
        lanternbench.load("tiny", "gpu")
    for wrong in (
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_p": 0},
        {"top_k": -1},
        {"guidance": math.inf},
    ):
        with pytest.raises(UserError, match=f"'{next(iter(wrong))}' is wrong"):
            model.generate("a ring", **wrong)


def test_the_python_interface_gives_tokens_image_and_stats():
    model = lanternbench.load("tiny")
    made = model.generate(
        "a large red ring on the left on a plain white background", "cool-sd", lam=2.0, seed=42
    )
    again = model.generate(
        "a large red ring on the left on a plain white background", "cool-sd", lam=2.0, seed=42
    )
    assert torch.equal(made.tokens, again.tokens)
    assert made.image.size == (64, 64)
    assert made.stats.steps < len(made.tokens)


def test_two_trees_of_one_size_in_a_decode_are_masked_by_their_own_ancestors(shallow):
    """A mask that is kept by size alone would show the second tree's nodes the first one's
    ancestors.
    """
    trees = [
        from_paths(paths) for paths in (((0,), (1,), (0, 0), (0, 1)), ((0,), (1,), (1, 0), (1, 1)))
    ]
    tokens = torch.tensor([[5, 1, 2, 3, 4]])

    def q(*order):
        decoder = build(shallow, method("eagle-1"))
        state, _ = engine.begin(decoder, ["a red star"], [1])
        for i in order:
            draft = Draft(tokens, static=trees[i])
            logits = engine.forward(state, decoder.strategy, draft).logits
        return state.warp(logits)

    with torch.inference_mode():
        assert torch.equal(q(0, 1), q(1))
        assert (q(0) - q(1)).abs().max() > 1e-4
