"""Coupled redraws, sibling trees and groups compute the plain definitions, batch and shape apart."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rules import EXACT, chain, drafted, on_codes, plainly
from scipy.stats import chisquare
from torch import Tensor
from windows_on_tables import gumbel_token

from lanternbench.engine.noise import uniform_noise
from lanternbench.engine.sampling import Warp
from lanternbench.engine.state import StepResult
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import Uniforms
from lanternbench.lossless.plain import outcomes, without
from lanternbench.lossless.plain.drafts import coupled
from lanternbench.methods.acceptance.gsd import Gsd, group
from lanternbench.methods.proposals.jacobi import Window
from lanternbench.methods.proposals.redraws import gumbel, maximal
from lanternbench.methods.proposals.sjd_pac import (
    Columns,
    PublicSiblingWindow,
    recursive_residuals,
    sibling_paths,
    sibling_tests,
)
from lanternbench.methods.residuals import standard
from lanternbench.settings import TARGETS_OWN


def distributions(*shape: int, seed: int = 0, zeros: float = 0.0, scale: float = 1.2) -> Tensor:
    """Random rows [..., V] in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
    banned = torch.rand(*shape, generator=generator) < zeros
    banned[..., 0] = False
    return logits.masked_fill(banned, -torch.inf).softmax(-1)


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_maximal_coupling_is_the_plain_one():
    p, q = distributions(50, 4, 5, seed=1, zeros=0.3), distributions(50, 4, 5, seed=2, zeros=0.3)
    x = p.flatten(0, 1).multinomial(1, generator=torch.Generator().manual_seed(3)).view(50, 4)
    u = uniforms(50, 4, seed=4)
    made = maximal(x, p, q, u, uniforms(50, 4, seed=5))
    laws = made.residual / made.residual.sum(-1, keepdim=True)
    for i, j in itertools.product(range(50), range(4)):
        laws_of = q[i, j].tolist(), p[i, j].tolist(), int(x[i, j])
        branches, _ = outcomes(lambda draws, given=laws_of: coupled(draws, *given))
        keep = sum(chance for (_, kept), chance in branches.items() if kept)
        assert bool(made.accepted[i, j]) == (float(u[i, j]) < keep)
        for (y, kept), chance in branches.items():
            if not kept:
                assert float(laws[i, j, y]) == pytest.approx(chance / (1 - keep))
    assert torch.equal(made.tokens[made.accepted], x[made.accepted])


def test_gumbel_redraw_is_the_plain_one_and_agrees_with_itself():
    p, u = distributions(200, 5, seed=1, zeros=0.3), uniforms(200, 5, seed=2)
    noise = -(-u.log()).log()
    got = gumbel(p, u)
    assert got.tolist() == [
        gumbel_token(a, g) for a, g in zip(p.tolist(), noise.tolist(), strict=True)
    ]
    near = 0.98 * p + 0.02 * distributions(200, 5, seed=3)
    assert (gumbel(near, u) == got).double().mean() > 0.9
    extremes = torch.tensor([0.0, 1.0, 0.5, 0.5, 0.5], dtype=torch.float64)
    assert int(gumbel(torch.full((5,), 0.2, dtype=torch.float64), extremes)) == 1


def test_position_noise_is_uniform_lasts_and_is_of_its_own_for_every_image_and_position():
    """Power: each test sees 200,000 numbers; a correlation of 0.01 is found always."""
    key = torch.tensor([2**40, 2**40 + 1])
    noise = uniform_noise(key, torch.tensor([[3, 4], [3, 4]]), 200_000)
    assert torch.equal(noise[:, 1:], uniform_noise(key, torch.tensor([[4], [4]]), 200_000))
    counts = torch.stack([torch.histc(row, 64, 0, 1) for row in noise.flatten(0, 1)])
    assert min(chisquare(row).pvalue for row in counts) > 1e-3
    assert noise.min() > 0
    assert noise.max() < 1
    rows = torch.cat([noise.flatten(0, 1), noise[:1, 0].roll(1, -1)])
    assert (torch.corrcoef(rows) - torch.eye(5)).abs().max() < 0.01


@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_groups_are_the_plain_ones(ranks):
    q, p = distributions(40, 20, seed=1, scale=0.7), distributions(40, 20, seed=2)
    codes = torch.randn(20, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 2
    x = torch.arange(40) % 20
    judged: Any = on_codes("gsd", codes, ranks=ranks, margin=0.02)
    found = group(q, x, judged.alike, judged.bounds)
    defined = plainly("gsd", codes, ranks=ranks, margin=0.02)
    accepted = judged.accepted_prob(q, p, torch.ones(40))
    for i in range(40):
        members = defined.group(q[i].tolist(), int(x[i]))
        assert sorted(found.ids[i][found.inside[i]].tolist()) == sorted(members)
        ratio = float(q[i, members].sum() / p[i, members].sum())
        assert float(found.mass(q)[i] / found.mass(p)[i]) == pytest.approx(ratio)
        for y in range(20):
            f = defined.probability(q[i].tolist(), p[i].tolist(), y, 1)
            assert float(accepted[i, y]) == pytest.approx(float(p[i, y]) * f)


def test_the_public_group_is_one_rank_shorter_above_and_leaves_low_ranks_alone():
    q = torch.arange(1.0, 21.0).double() / 210
    all_alike, x = torch.ones(20, 20, dtype=torch.bool), torch.arange(20)
    bounds = (Gsd(margin=1.0, variant=variant).bounds for variant in ("paper", "reference"))
    exact, public = (group(q.expand(20, -1), x, all_alike, b) for b in bounds)
    size = lambda found, i: sorted(found.ids[i][found.inside[i]].tolist())  # noqa: E731
    assert size(exact, 10) == list(range(3, 18))
    assert size(public, 10) == list(range(3, 17))
    assert size(exact, 3) == list(range(11))
    assert size(public, 3) == [3]
    assert size(public, 18) == list(range(11, 20))


def test_recursive_residuals_are_the_plain_ones():
    q, p = distributions(30, 4, seed=1, zeros=0.2), distributions(30, 4, seed=2, zeros=0.2)
    tokens = torch.stack(
        [torch.randperm(4, generator=torch.Generator().manual_seed(i))[:3] for i in range(30)]
    )
    stages = recursive_residuals(q, p, tokens)
    for i in range(30):
        target, draft = q[i].tolist(), p[i].tolist()
        for j in range(4):
            assert stages[0][i, j].tolist() == pytest.approx(target, abs=1e-12)
            assert stages[1][i, j].tolist() == pytest.approx(draft, abs=1e-12)
            if j < 3:
                x = int(tokens[i, j])
                target, draft = (
                    drafted(chain(1)).after_rejection(target, draft, x, 1),
                    without(draft, x),
                )
    u = uniforms(30, 3, seed=3)
    tests = sibling_tests(stages, tokens, u)
    ratio = [s[:, :-1].gather(-1, tokens[..., None])[..., 0] for s in stages]
    assert torch.equal(tests, (ratio[1] > 0) & (u < ratio[0] / ratio[1]))


def test_sibling_paths_by_hand():
    two = ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 0, 0, 0))
    assert sibling_paths(2, 3, 5) == two
    assert sibling_paths(3, 1, 3) == ((0,), (0, 0))


def test_context_follows_the_accepted_path_then_first_siblings_then_the_chain():
    # two siblings in columns 1 and 2, a chain to column 4: nodes 1, 2 | 3, 4 under 1 | 5, 6 under
    # 2 | 7 | 8
    target: Any = SimpleNamespace(device=torch.device("cpu"), vocab=3)
    columns = Columns.of(siblings=2, depth=3, window=4, target=target)
    path = torch.tensor([[0, 0, 0], [0, 2, 2], [0, 2, 6], [0, 1, 3]])
    found = columns.contexts(path, torch.tensor([0, 1, 2, 2]))
    assert found.tolist() == [[0, 1, 3, 7, 8], [0, 2, 5, 7, 8], [0, 2, 6, 7, 8], [0, 1, 3, 7, 8]]


def test_public_trees_take_the_longest_path_and_end_full_windows_with_a_uniform_token():
    fresh = torch.tensor([0.0, 0.5, 0.5])
    target: Any = SimpleNamespace(device=torch.device("cpu"), vocab=3)
    columns = Columns.of(siblings=2, depth=2, window=2, target=target)
    window = replace(PublicSiblingWindow.of(columns), fresh_law=fresh)
    assert columns.static.paths == ((0,), (1,), (0, 0))  # two siblings, a chain of one column more
    q = torch.zeros(1, 4, 3).scatter(-1, torch.tensor([[[1], [2], [0], [0]]]), 1.0)
    draft = Draft(torch.tensor([[0, 1, 1, 2]]), torch.full((1, 2, 3), 1 / 3), columns.static)
    u = Uniforms(torch.tensor([[0.9, 0.0, 0.0, 0.0]]), torch.full((1, 10), 0.9))
    result = window.verification(EXACT).verify(draft, q, u, standard, False)
    assert result.accepted.tolist() == [2]
    assert result.token.tolist() == [2]  # of the uniform law, though the target says 0
    state: Any = SimpleNamespace(warp=Warp(TARGETS_OWN))
    step = StepResult(draft, q, result, result.accepted, u, q)
    new = window.update(state, window_of(draft), step)
    assert torch.equal(new.p, fresh.expand(1, 2, -1))


def window_of(draft: Draft) -> Window:
    return Window(draft.tokens, draft.p, torch.tensor([2]))
