"""Simulated acceptance: the lengths have the mean that was asked for, everything else runs as always."""

from __future__ import annotations

import pytest
import torch

from lanternbench.engine import decode as engine
from lanternbench.engine.simulation import level_rates, simulate
from lanternbench.engine.tree import Draft, chain
from lanternbench.engine.verify import VerifyResult
from lanternbench.errors import UserError
from lanternbench.experiment import config
from lanternbench.experiment import runner as sweeps
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.report.load import ReportRow
from lanternbench.report.papers import differences, published_rows


@pytest.mark.parametrize(("tau", "depth"), [(1.0, 3), (2.7, 5), (4.0, 3), (3.5, 7)])
def test_the_rates_give_the_mean_that_was_asked_for(tau, depth):
    rate = float(level_rates(tau, depth)[-1])
    assert 1 + sum(rate**d for d in range(1, depth + 1)) == pytest.approx(tau, abs=1e-4)


def test_a_mean_that_no_draft_can_reach_is_refused():
    with pytest.raises(UserError, match="between 1 and 4"):
        level_rates(4.5, 3)


def test_the_drawn_lengths_follow_the_rates():
    # 20,000 draws: the standard error of the mean is 0.012, the window is more than four of them
    static = chain(5)
    count = 20_000
    draft = Draft(torch.zeros(count, 6, dtype=torch.long), static=static)
    zero = torch.zeros(count, 6, dtype=torch.long)
    result = VerifyResult(zero, zero[:, 0], zero[:, 0], zero)
    u = torch.rand(count, generator=torch.Generator().manual_seed(1))
    made = simulate(draft, result, level_rates(2.7, 5), u)
    assert float(made.accepted.float().mean()) + 1 == pytest.approx(2.7, abs=0.05)
    assert torch.equal(made.path, torch.minimum(torch.arange(6), made.accepted[:, None]))


@pytest.mark.parametrize("name", ["eagle-1", "eagle-2", "adt-tree", "sjd", "cool-sd"])
def test_every_kind_of_draft_can_be_simulated(shallow_8x8, name):
    decoder = build(shallow_8x8, method(name), simulate_acceptance=2.0)
    made = engine.generate(decoder, ["a small red circle in the center"], seed=3)[0]
    assert sum(made.accept_lengths) == shallow_8x8.length - 1
    assert 1.5 < (shallow_8x8.length - 1) / made.steps < 2.5


def test_what_means_nothing_is_not_measured(tmp_path):
    given = {"methods": ["eagle-1"], "num_prompts": 1, "simulate_acceptance": 2.0, "metrics": ["clip", "fid"]}
    _, summary = sweeps.run(config.sweep(given, "test"), tmp_path)
    ar, eagle = summary.rows
    assert (ar.lossless, eagle.lossless, eagle.simulated) == (True, None, True)
    assert not any("clip" in key or "fid-" in key for key in eagle.figures)
    assert eagle.value("fidelity_loss") is None
    assert any("no metric is computed" in note.text for note in summary.notes)
    assert "acceptance (simulated)" in differences(ReportRow(**vars(eagle)), published_rows()[0]).values()


def test_autoregressive_decoding_is_not_touched(target):
    decoder = build(target, method("ar"), simulate_acceptance=2.0)
    assert decoder.rates is None
