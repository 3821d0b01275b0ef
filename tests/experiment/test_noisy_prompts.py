"""``--remeasure-disturbed`` measures prompts with noisy timing once more."""

from __future__ import annotations

import pytest

from lanternbench.cli import run_cmd
from lanternbench.experiment import config, read_samples, runner
from lanternbench.measure.figures import Figures
from lanternbench.measure.run_notes import noisy_prompts
from lanternbench.measure.run_record import Environment
from lanternbench.measure.samples import Sample


def test_prompts_with_noisy_timing_are_measured_again_and_no_others(
    small_images, tmp_path, monkeypatch
):
    settings = config.sweep({"methods": ["sjd"], "num_prompts": 2, "metrics": ["clip", "fid"]})
    folder, _ = runner.run(settings, tmp_path)
    before = {sample.key: sample for sample in read_samples(folder)}
    noisy = next(iter(before.values())).prompt_id
    monkeypatch.setattr(runner, "noisy_prompts", lambda *_: {(noisy, 0)})
    again, summary = runner.run(settings, tmp_path, watch=runner.Callbacks(remeasure=True))
    after = {sample.key: sample for sample in read_samples(again)}
    assert (again, after.keys()) == (folder, before.keys())
    for key, sample in after.items():
        assert sample.token_ids == before[key].token_ids
        assert (sample.decode_s == before[key].decode_s) == (sample.prompt_id != noisy)
    assert [row.figure("fid-tiny").n for row in summary.rows] == [2, 2]
    assert [row.figure("clip-tiny").n for row in summary.rows] == [2, 2]


@pytest.mark.parametrize(("load", "warned"), [(9.0, True), (0.5, False), (None, False)])
def test_a_high_load_is_said_before_the_first_image_and_not_if_none_is_made(
    load, warned, small_images, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(run_cmd, "load_average", lambda: load)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    settings = config.sweep({"methods": ["ar"], "num_prompts": 1, "metrics": []})
    for made in (True, False):
        run_cmd.execute(settings, run_cmd.TimedExecution(out=tmp_path, device="cpu"))
        said = capfd.readouterr().err
        text = "The load is 9.0 on 2 cores before anything is measured"
        assert (text in said) == (warned and made)
        if warned and made:
            assert said.index(text) < said.index("[1/1]")


def test_noisy_prompts_are_those_with_a_high_load_slow_steps_or_little_cpu_time():
    quiet = {"decode_s": 1.0, "cpu_s": 1.0, "threads": 1, "load": 1.0, "step_s": [0.01] * 100}
    cases = {
        "quiet": {},
        "load": {"load": 9.0},
        "slow steps": {"step_s": [0.01] * 90 + [0.1] * 10},
        "little CPU time": {"cpu_s": 0.3},
        "unrecorded": dict.fromkeys(quiet.keys() - {"decode_s"}),
    }
    samples = [
        Sample(key=f"{name}|ar|3", prompt_id=name, prompt=name, label="ar", method="ar", seed=3,
               tokens=100, steps=100, accept_lengths=[1] * 100, **(quiet | changes))
        for name, changes in cases.items()
    ]  # fmt: skip
    found = noisy_prompts(Figures(samples), Environment(cores=2, device="cpu"))
    assert found == {(name, 3) for name in ("load", "slow steps", "little CPU time")}
    on_gpu = noisy_prompts(Figures(samples), Environment(cores=2, device="cuda"))
    assert found - on_gpu == {("little CPU time", 3)}
