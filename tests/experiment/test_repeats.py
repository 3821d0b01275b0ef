"""Repeats: every prompt with several seeds, each stored once, paired with the baseline of its
seed.
"""

from __future__ import annotations

import pytest

from lanternbench.errors import UserError
from lanternbench.experiment import config as settings
from lanternbench.experiment import read_run, read_samples, runner, worker
from lanternbench.settings import MAX_SEED, Sweep


def test_every_prompt_gets_each_seed_once_and_a_stopped_run_goes_on(small_images, tmp_path):
    config = Sweep(methods=["sjd"], num_prompts=1, seed=5, repeats=2, metrics=[])
    counts: list[tuple[int, int]] = []
    # stops after the first unit
    first = runner.Callbacks(lambda done, of, what: counts.append((done, of)), budget_s=0)
    path, summary = runner.run(config, tmp_path, watch=first)
    assert {s.seed for s in read_samples(path)} == {5}
    assert counts[-1] == (2, 4)  # the rest is to come
    assert "2 of 4" in " ".join(map(str, summary.notes))
    path, summary = runner.run(config, tmp_path)
    found = read_samples(path)
    assert sorted((s.label, s.seed) for s in found) == [
        ("ar", 5),
        ("ar", 6),
        ("sjd", 5),
        ("sjd", 6),
    ]
    assert len({tuple(s.token_ids) for s in found if s.label == "ar"}) == 2
    assert [row.n for row in summary.rows] == [2, 2]
    assert summary.rows[1].figure("speedup").n == 2  # each with the baseline of its own seed


def test_a_run_that_is_started_again_does_not_time_the_memory_again(
    small_images, tmp_path, monkeypatch
):
    rates = iter([100.0])
    monkeypatch.setattr(worker, "memory_rate", lambda device: next(rates))
    config = Sweep(methods=["ar"], num_prompts=1, metrics=[])
    for _ in range(2):
        path, _ = runner.run(config, tmp_path)
        assert read_run(path).environment.memory_gb_per_s == 100.0


def test_one_repeat_is_the_run_it_was_before():
    assert "repeats" not in Sweep(methods=["ar"]).record()
    assert Sweep(methods=["ar"], repeats=3).record()["repeats"] == 3
    assert Sweep(methods=["ar"], seed=MAX_SEED, repeats=2).seeds == [MAX_SEED, 0]
    for wrong in (0, -1, 10**9, True, "many"):
        with pytest.raises(UserError, match="'repeats' is wrong"):
            settings.sweep({"methods": ["ar"], "repeats": wrong})
