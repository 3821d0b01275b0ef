"""Rules, residuals and draws against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rules import EXACT, annealed
from rules import lantern as lantern_rule
from scipy.spatial.distance import jensenshannon

from lanternbench.engine.chosen import rank_by_rank
from lanternbench.engine.sampling import BELOW_ONE, Warp, draw, draw_distinct, normalised
from lanternbench.engine.verify import Uniforms
from lanternbench.methods import residuals
from lanternbench.methods.acceptance import lantern
from lanternbench.methods.acceptance.exact import schedule
from lanternbench.methods.acceptance.lantern import jensen_shannon, nearest
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.methods.trees.dynamic import Bounds, grow_by_confidence
from lanternbench.settings import GREEDY, Sampling

DEPTH = torch.tensor([1])


def dist(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def token(x: int) -> torch.Tensor:
    return torch.tensor([x])


# ---------------------------------------------------------------- schedules


@pytest.mark.parametrize("kind", ["uniform", "exp", "linear"])
@pytest.mark.parametrize("length", [1, 3, 5])
def test_every_schedule_spends_the_same_budget(kind, length):
    assert sum(schedule(kind, 2.0, length, 0.7)) == pytest.approx(2.0 * length)


def test_exp_schedule_by_hand_and_with_nu_one_uniform():
    assert schedule("exp", 1.5, 2, 0.5) == pytest.approx([2.0, 1.0])  # 3·(1, ½)/1.5
    assert schedule("exp", 2.0, 4, 1.0) == pytest.approx(schedule("uniform", 2.0, 4, 0.3))


@pytest.mark.parametrize("lam", [1.1, 2.0, 10.0])
def test_linear_schedule_falls_evenly_around_lambda_and_stays_positive(lam):
    omega = schedule("linear", lam, 5, 0.7)
    falls = [a - b for a, b in pairwise(omega)]
    assert min(omega) >= 0
    assert falls == pytest.approx([falls[0]] * 4)
    assert omega[2] == pytest.approx(lam)


def test_annealed_rule_multiplies_by_the_omega_of_the_depth():
    rule = annealed([3.0, 1.0, 0.5])
    q = torch.tensor([[0.2, 0.8]] * 3)
    assert rule.relax(
        q, torch.tensor([0, 0, 1]), torch.tensor([1, 2, 3])
    ).value.tolist() == pytest.approx([0.6, 0.2, 0.4])


def test_the_first_draft_has_the_first_omega_of_the_schedule():
    rule = method("cool-sd", lam=1.5, nu=0.5).acceptance.build(SimpleNamespace(device="cpu"), 2)
    q = torch.full((2, 4), 0.25)
    relaxed = rule.relax(q, torch.tensor([0, 1]), torch.tensor([1, 2]))
    assert relaxed.value.tolist() == pytest.approx([0.5, 0.25])  # ω = 2 and 1


# ---------------------------------------------------------------- LANTERN


Q = dist(0.4, 0.1, 0.2, 0.3)
NEAR = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 3], [2, 1, 3, 0], [3, 2, 1, 0]])


def test_lantern_grows_nearest_first_while_strictly_below_delta():
    q = dist(0.5, 0.125, 0.25, 0.125)  # exact in binary
    mass = lantern_rule(NEAR, "tvd", 0.375).relax(q, token(0), DEPTH)
    assert mass.group.inside.tolist() == [
        [True, True, False, False]
    ]  # 0.125 < δ, but 0.375 is not
    assert mass.value.item() == 0.625
    assert lantern_rule(NEAR, "tvd", 0.376).relax(q, token(0), DEPTH).value.item() == 0.875
    assert lantern_rule(NEAR, "tvd", 0.375, NEAR).relax(q, token(0), DEPTH).value.item() == 0.875


def test_lantern_keeps_x_alone_where_the_bound_is_tight():
    assert lantern_rule(NEAR, "tvd", 1e-9).relax(Q, token(2), DEPTH).value.item() == pytest.approx(
        0.2
    )


def test_lantern_plus_plus_bound_is_inclusive_and_scales_with_q():
    q = dist(0.25, 0.25, 0.25, 0.25)
    rule = lantern_rule(NEAR, "multiplicative", 2.0)  # neighbours may add up to q(x)
    assert rule.relax(q, token(0), DEPTH).group.inside.tolist() == [[True, True, False, False]]
    assert rule.relax(q, token(0), DEPTH).value.item() == 0.5
    assert rule.relax(dist(0.0, 0.5, 0.25, 0.25), token(0), DEPTH).value.item() == 0.0


def test_jsd_of_a_move_is_scipys():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        q = torch.rand(1, 4, generator=generator, dtype=torch.float64)
        q = q / q.sum()
        far = (
            jensenshannon(
                q[0].numpy(), dist(q[0, 0] + q[0, 1] + q[0, 2], 0, 0, q[0, 3])[0].numpy()
            )
            ** 2
        )
        qx, moved = q[:, :1], q[:, 1:3].cumsum(-1)
        # one token takes the mass of two: the sum over the group's losers is the same as of one
        # loser
        assert jensen_shannon(qx, moved)[0, 1].item() == pytest.approx(far, abs=1e-12)
    rule = lantern_rule(NEAR, "jsd", far + 1e-9)
    assert rule.relax(q, token(0), DEPTH).group.inside.tolist()[0][:3] == [True, True, True]
    assert not lantern_rule(NEAR, "jsd", far - 1e-9).relax(q, token(0), DEPTH).group.inside[0, 2]
    assert float(jensen_shannon(torch.zeros(1), torch.zeros(1))) == 0.0


def test_relaxed_distribution_moves_the_groups_mass_onto_x_and_keeps_the_sum():
    mass = lantern_rule(NEAR, "tvd", 0.35).relax(Q, token(0), DEPTH)
    # p = 0
    moved = residuals.lantern(
        Q, torch.zeros_like(Q), token(0), DEPTH, lantern_rule(NEAR, "tvd", 0.35)
    )
    assert mass.value.item() == pytest.approx(0.7)
    assert moved.tolist()[0] == pytest.approx([0.7, 0.0, 0.0, 0.3])


def test_everywhere_is_the_rule_asked_of_each_token():
    for rule in (
        EXACT,
        annealed([1.5]),
        lantern_rule(NEAR, "tvd", 0.25),
        lantern_rule(NEAR, "multiplicative", 2.0),
    ):
        one_by_one = torch.stack([rule.relax(Q, token(x), DEPTH).value for x in range(4)], -1)
        assert torch.allclose(rule.everywhere(Q, DEPTH), one_by_one)


def test_methods_of_a_sweep_share_one_table_of_neighbours(target, monkeypatch):
    target, made = replace(target, near={}), []
    monkeypatch.setattr(
        lantern, "nearest", lambda codes, k, kind: made.append(k) or nearest(codes, k, kind)
    )

    def table(name, **options):
        return build(target, method(name, **options)).rule.near

    for name, options in (
        ("lantern", {"k": 20}),
        ("lantern++", {"k": 20}),
        ("lantern", {"k": 5, "delta": 0.3}),
    ):
        assert torch.equal(table(name, **options), nearest(target.codebook, options["k"]))
    assert made == [20]
    table("lantern", k=30)
    table("lantern", k=20, proximity="cosine")
    assert made == [20, 30, 20]


def test_coinciding_codebook_rows_are_each_others_nearest_but_come_after_the_token_itself():
    codebook = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [5.0, 0.0]])
    table = nearest(codebook, 3)
    assert table[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert table[2].tolist() == [2, 1, 3]
    assert nearest(codebook, 99).shape == (5, 5)
    for proximity in ("cosine", "random"):
        assert nearest(codebook, 4, proximity)[:, 0].tolist() == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------- residuals


P = dist(0.1, 0.5, 0.2, 0.2)


def test_residuals_by_hand():
    rule = lantern_rule(NEAR, "tvd", 0.35)  # A of token 1 = {1, 2}
    assert residuals.standard(Q, P, token(1), DEPTH, EXACT).tolist()[0] == pytest.approx(
        [0.3, 0, 0, 0.1]
    )
    assert residuals.lantern(Q, P, token(1), DEPTH, rule).tolist()[0] == pytest.approx(
        [0.3, 0, 0, 0.1]
    )
    half = annealed([0.5])  # [q − min(p, q/2)]₊
    assert residuals.optimal(Q, P, token(1), DEPTH, half).tolist()[0] == pytest.approx(
        [0.3, 0.05, 0.1, 0.15]
    )


def test_residuals_of_chosen_children_bar_the_child():
    assert residuals.standard(Q, None, token(0), DEPTH, EXACT)[0].tolist() == pytest.approx(
        [0, 0.1, 0.2, 0.3]
    )
    rule = lantern_rule(NEAR, "tvd", 0.15)  # A of token 0 = {0, 1}
    assert residuals.lantern(Q, None, token(0), DEPTH, rule)[0].tolist() == pytest.approx(
        [0, 0, 0.2, 0.3]
    )
    half = annealed([0.5])  # accepted with 0.2, so 0.2 of token 0 is left
    assert residuals.optimal(Q, None, token(0), DEPTH, half)[0].tolist() == pytest.approx(
        [0.2, 0.1, 0.2, 0.3]
    )


@pytest.mark.parametrize("omega", [1.0, 1.7, 5.0])
def test_optimal_residual_is_the_standard_one_when_omega_is_at_least_one(omega):
    rule = annealed([omega])
    optimal = residuals.optimal(Q, P, token(1), DEPTH, rule)
    assert torch.allclose(optimal, residuals.standard(Q, P, token(1), DEPTH, rule))


def test_a_residual_without_mass_falls_back_to_the_target():
    rest = residuals.standard(Q, Q, token(0), DEPTH, EXACT)
    assert float(rest.sum()) == 0.0
    assert torch.equal(normalised(rest, Q), Q)


def test_the_reference_residual_counts_all_neighbours_and_never_vanishes():
    rule = lantern_rule(NEAR[:, :2], "tvd", 0.15, NEAR[:, :3])  # A = {0, 1}, all of 0, 1, 2 count
    near, far = NEAR[0, 1:3].tolist(), NEAR[0, 3].item()
    sampled = residuals.lantern_reference(Q, P, token(0), DEPTH, rule)[0]
    assert torch.equal(sampled[near], Q[0, near])  # p is not subtracted there
    assert float(sampled[far]) == pytest.approx(max(0.0, float(Q[0, far] - P[0, far])))
    chosen = residuals.lantern_reference(Q, None, token(0), DEPTH, rule)[0]
    assert chosen[[0, *near]].tolist() == [0, 0, 0]
    assert chosen[far] == Q[0, far]
    everything = lantern_rule(NEAR, "tvd", 0.99, NEAR)
    assert residuals.lantern_reference(Q, None, token(0), DEPTH, everything)[0].tolist() == [
        1,
        1,
        1,
        1,
    ]


# ---------------------------------------------------------------- draws and warps


def test_a_draw_is_the_inverse_cdf_and_never_a_token_of_weight_zero():
    weights = torch.tensor([0.0, 2.0, 0.0, 6.0, 0.0])
    u = torch.tensor([0.0, 0.2499, 0.2501, 0.9, BELOW_ONE])
    assert draw(weights.expand(5, -1), u).tolist() == [1, 1, 3, 3, 3]
    # times u none may round up to the total
    totals = torch.rand(1000, 3, generator=torch.Generator().manual_seed(1))
    assert set(
        draw(torch.nn.functional.pad(totals, (0, 1)), torch.full((1000,), BELOW_ONE)).tolist()
    ) == {2}
    many = draw(
        weights.expand(2000, -1), torch.rand(2000, generator=torch.Generator().manual_seed(0))
    )
    assert set(many.tolist()) == {1, 3}
    assert (many == 3).float().mean().item() == pytest.approx(0.75, abs=0.03)


def test_a_draw_is_made_in_float64_where_a_sum_of_float32_would_pass_over_tokens():
    weights = torch.full((1, 2**16), 1e-9)
    weights[0, 0] = 1.0  # in float32 nothing is added to it
    u = torch.tensor([1 - 1e-6])
    assert 50_000 < int(draw(weights, u)) < 2**16


def test_draws_without_replacement_are_distinct():
    u = torch.rand(500, 4, generator=torch.Generator().manual_seed(0))
    drawn = draw_distinct(torch.tensor([0.97, 0.01, 0.01, 0.01]).expand(500, -1), u)
    assert drawn.sort(-1).values.tolist() == [[0, 1, 2, 3]] * 500


def test_top_k_keeps_ties_and_top_k_one_is_the_argmax():
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0])
    assert (Warp(Sampling(top_k=2))(logits) > 0).tolist() == [False, True, True, True]
    assert Warp(Sampling(top_k=1))(logits).tolist() == [0, 1, 0, 0]
    assert torch.allclose(Warp(Sampling(top_k=99))(logits), logits.softmax(-1))


def test_top_p_keeps_the_fewest_tokens_that_reach_it_and_at_least_one():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert Warp(Sampling(top_p=0.7))(logits).tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert Warp(Sampling(top_p=1e-6))(logits).tolist() == pytest.approx([1, 0, 0, 0])


def test_temperature_divides_the_logits():
    logits = torch.tensor([0.0, 1.0])
    assert Warp(Sampling(temperature=0.5))(logits)[1].item() == pytest.approx(
        1 / (1 + math.exp(-2))
    )
    assert Warp(GREEDY).greedy


@pytest.mark.parametrize("limit", [0.02, 0.3, 0.9])
def test_lantern_over_chosen_children_touches_groups_alone_and_decides_as_the_general_rule(limit):
    """1,000 trees of 14 nodes in all; both ways must take the same path to the same token, however
    much is struck.
    """
    generator = torch.Generator().manual_seed(5)
    rule, batch, size = (
        lantern_rule(nearest(torch.randn(40, 3, generator=generator), 12), "tvd", limit),
        1000,
        40,
    )

    def expand(tokens, parent, visible, depth):
        return torch.randn(*tokens.shape, size, generator=generator) * 3

    root = torch.zeros(batch, dtype=torch.long)
    state: Any = SimpleNamespace(
        now=SimpleNamespace(root=root),
        target=SimpleNamespace(vocab=size),
        warp=Warp(Sampling(temperature=1.0, top_k=20)),
        drawn_after=lambda p, depth: p,
    )
    draft = grow_by_confidence(state, expand, Bounds(3, 4, 14))
    q = Warp(Sampling(temperature=1.0, top_k=9))(
        torch.randn(batch, 14, size, generator=generator) * 3
    ).double()
    u = torch.rand(batch, 14, generator=generator).double() * BELOW_ONE
    general = rank_by_rank(rule, draft, q, u, residuals.lantern)
    groups = rule.verify(draft, q, Uniforms(u, u), residuals.lantern, greedy=False)
    assert torch.equal(general.path, groups.path)
    assert torch.equal(general.token, groups.token)
    assert torch.equal(general.accepted, groups.accepted)
    assert 0 < general.accepted.float().mean() < 3
    assert not torch.equal(rank_by_rank(EXACT, draft, q, u, residuals.standard).path, groups.path)
