"""Simulated acceptance: the lengths have the mean that was asked for, everything else runs as
always.
"""

from __future__ import annotations

import pytest
import torch

from lanternbench.engine import decode as engine
from lanternbench.engine.simulation import level_rates, reach, simulate
from lanternbench.engine.tree import Draft, chain
from lanternbench.engine.verify import VerifyResult
from lanternbench.errors import UserError
from lanternbench.experiment import runner as sweeps
from lanternbench.experiment.config import sweep
from lanternbench.measure.figures import conditional_rates, joint_rates
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.report.load import ReportRow
from lanternbench.report.papers import differences, published_rows
from lanternbench.settings import ModelSpec, checked


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
    made = simulate(draft, result, reach(2.7, 5), u)
    assert float(made.accepted.float().mean()) + 1 == pytest.approx(2.7, abs=0.05)
    assert torch.equal(made.path, torch.minimum(torch.arange(6), made.accepted[:, None]))


def test_the_drawn_lengths_follow_rates_by_position():
    # 20,000 draws: the standard error of a joint rate is at most 0.0035, the window is more than
    # four of them
    count, asked = 20_000, [0.8, 0.7, 0.6]
    draft = Draft(torch.zeros(count, 6, dtype=torch.long), static=chain(5))
    zero = torch.zeros(count, 6, dtype=torch.long)
    u = torch.rand(count, generator=torch.Generator().manual_seed(2))
    made = simulate(draft, VerifyResult(zero, zero[:, 0], zero[:, 0], zero), reach(asked, 5), u)
    lengths = torch.bincount(made.accepted + 1, minlength=7).tolist()
    # the last rate holds for all deeper positions
    joint = torch.tensor([0.8, 0.56, 0.336, 0.2016, 0.12096])
    assert torch.tensor(joint_rates(lengths)).sub(joint).abs().max() < 0.015
    assert torch.tensor(conditional_rates(lengths)[:3]).sub(torch.tensor(asked)).abs().max() < 0.02


def test_the_product_of_conditional_rates_is_the_joint_rate():
    lengths = [0, 5, 3, 0, 2]
    product = 1.0
    for joint, conditional in zip(joint_rates(lengths), conditional_rates(lengths), strict=True):
        product *= conditional
        assert product == pytest.approx(joint)


@pytest.mark.parametrize("given", ["0.8,0.7,0.6", [0.8, 0.7, 0.6]])
def test_rates_are_given_as_text_or_as_a_list(given):
    assert ModelSpec(simulate_acceptance=given).simulate_acceptance == [0.8, 0.7, 0.6]
    assert ModelSpec(simulate_acceptance="2.7").simulate_acceptance == 2.7


@pytest.mark.parametrize("given", ["0.8,1.2", "0.5", "a,b", "0.8,nan", "65", [], [True], "0.8,"])
def test_rates_that_are_none_are_refused(given):
    with pytest.raises(UserError, match="'simulate_acceptance' is wrong"):
        checked(ModelSpec, {"simulate_acceptance": given})


@pytest.mark.parametrize("name", ["eagle-1", "eagle-2", "adt-tree", "sjd", "cool-sd"])
def test_every_kind_of_draft_can_be_simulated(shallow_8x8, name):
    decoder = build(shallow_8x8, method(name), simulate_acceptance=2.0)
    made = engine.generate(decoder, ["a small red circle in the center"], seed=3)[0]
    assert sum(made.accept_lengths) == shallow_8x8.length - 1
    assert 1.5 < (shallow_8x8.length - 1) / made.steps < 2.5


def test_what_means_nothing_is_not_measured(small_images, tmp_path):
    given = {
        "methods": ["eagle-1"],
        "num_prompts": 1,
        "simulate_acceptance": 2.0,
        "metrics": ["clip", "fid"],
    }
    _, summary = sweeps.run(sweep(given, "test"), tmp_path)
    ar, eagle = summary.rows
    assert (ar.lossless, eagle.lossless, eagle.simulated) == (True, None, True)
    assert not any("clip" in key or "fid-" in key for key in eagle.figures)
    assert eagle.value("fidelity_loss") is None
    assert any("no metric is computed" in note.text for note in summary.notes)
    by_position = sweep(given | {"simulate_acceptance": "0.9,0.5", "baseline": False}, "test")
    _, summary = sweeps.run(by_position, tmp_path)
    assert any(
        "simulated to rates of [0.9, 0.5] by position" in note.text for note in summary.notes
    )
    assert (
        "acceptance (simulated)"
        in differences(ReportRow(**vars(eagle)), published_rows()[0]).values()
    )


def test_autoregressive_decoding_is_not_touched(target):
    decoder = build(target, method("ar"), simulate_acceptance=2.0)
    assert decoder.rates is None
