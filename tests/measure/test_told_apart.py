"""A headline decides: prompts suffice for the tests, and two copies of one method are seldom told
apart.
"""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ROOT

from lanternbench.errors import UserError
from lanternbench.experiment import config, read_run, read_samples, runner
from lanternbench.experiment.config import expand, read_sweeps
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.samples import Sample
from lanternbench.measure.statistics import (
    LOOKS,
    holm_in_two,
    look_sizes,
    paired_test,
    prompts_needed,
)
from lanternbench.measure.summary import all_told_apart
from lanternbench.methods.method import method
from lanternbench.report.findings import SPEED, compared

SPEEDS = {"ar": 1.0, "a": 0.7, "copy of a": 0.7, "b": 0.6, "c": 0.65, "d": 0.8, "e": 0.75}


def sample(label: str, prompt: int, seconds: float) -> Sample:
    return Sample(key=f"{prompt}|{label}|0", prompt_id=str(prompt), prompt=f"x {prompt}", label=label, method=label, seed=0,
                  tokens=4, steps=2, accept_lengths=[1, 3], decode_s=seconds)  # fmt: skip


def run(seed: int, prompts: int) -> Figures:
    """Seven methods on prompts of unequal length, with 10 % of noise."""
    rng = np.random.default_rng(seed)
    hard = rng.lognormal(0, 0.3, prompts)
    return Figures(
        sample(label, i, hard[i] * seconds * rng.lognormal(0, 0.1))
        for i in range(prompts)
        for label, seconds in SPEEDS.items()
    )


@pytest.mark.slow
def test_two_copies_of_a_method_are_told_apart_in_at_most_5_of_100_runs_and_methods_from_ar_in_most():
    prompts = prompts_needed(len(SPEEDS) - 1)
    told: list[set[tuple[str, str]]] = []
    for seed in range(100):
        pairs = [
            pair for pair in compared(run(seed, prompts), list(SPEEDS)) if pair.figure == SPEED
        ]
        told.append({(pair.method, pair.against) for pair in pairs if pair.p < 0.05})
    assert sum(("copy of a", "a") in found for found in told) <= 5
    assert sum(sum(BASELINE in pair for pair in found) for found in told) >= 0.9 * 100 * (
        len(SPEEDS) - 1
    )


def test_each_family_is_corrected_for_its_number_of_tests_alone():
    p = [0.01, 0.02, 0.03, 0.01, 0.5]
    assert holm_in_two(p, [True, True, False, False, False]) == pytest.approx(
        [0.02, 0.02, 0.06, 0.03, 0.5]
    )
    assert holm_in_two(p, [True, True, False, False, False], looks=2) == pytest.approx(
        [0.04, 0.04, 0.12, 0.06, 1.0]
    )


@pytest.mark.parametrize("methods", [1, 6, 9])
def test_the_prompts_needed_tell_a_difference_that_one_prompt_contradicts(methods):
    n = prompts_needed(methods)
    for prompts, enough in ((n, True), (n - 1, False)):
        apart = np.ones(prompts)
        apart[0] = -1
        signs = 2 * (prompts + 1) / 2**prompts  # the test's p of so many equal differences
        assert (methods * signs < 0.05) == enough
        if prompts <= 12:
            assert paired_test(apart, np.zeros(prompts)) == pytest.approx(signs)


def test_every_shipped_sweep_and_run_has_the_prompts_that_its_first_family_needs():
    for file in sorted((ROOT / "configs").glob("*.yaml")):
        for sweep in read_sweeps(file):
            needed = prompts_needed(len(expand(sweep)) - 1)
            assert sweep.num_prompts is None or sweep.num_prompts >= needed, file.name
    assert config.sweep({"methods": ["eagle-1"]}).num_prompts == prompts_needed(1)


def test_methods_that_do_not_fit_are_left_out_from_the_last_and_ar_stays():
    job = lambda label: runner.Job(label, [None])  # noqa: E731
    units = [[job("b"), job("ar"), job("a")] for _ in range(10)]
    seconds = {"ar": 1.0, "a": 0.5, "b": 0.1}
    for budget, labels in ((17, {"ar", "a", "b"}), (15.5, {"ar", "a"}), (3, {"ar", "a"})):
        fitting, left_out = runner.within_budget(units, ["ar", "a", "b"], seconds, budget)
        assert {job.label for unit in fitting for job in unit} == labels
        assert len(fitting) == 10
        assert left_out == [label for label in ("ar", "a", "b") if label not in labels]
    # nothing is known of their times
    assert runner.within_budget(units, ["ar", "a", "b"], {}, 0)[1] == []


def test_a_run_goes_on_until_its_methods_are_told_apart_and_does_not_start_again(tmp_path):
    asked = config.sweep({"methods": ["eagle-1"], "metrics": [], "until_told_apart": True})
    assert asked.num_prompts == look_sizes(1)[-1]
    made_by = Pretended({"ar": 1.0, "eagle-1": 0.5})
    counts: list[tuple[int, int]] = []
    watch = runner.Callbacks(lambda done, of, what: counts.append((done, of)))
    path, summary = runner.run(asked, tmp_path, executor=made_by, watch=watch)
    assert counts[-1] == (2 * look_sizes(1)[0],) * 2  # no more are to come
    assert len(read_samples(path)) == 2 * look_sizes(1)[0]
    assert read_run(path).told_apart_after == look_sizes(1)[0]
    assert not any("not finished" in note.text for note in summary.notes)
    runner.run(asked, tmp_path, executor=made_by)
    assert made_by.made == 2 * look_sizes(1)[0]


@pytest.mark.slow
def test_copies_of_ar_are_told_apart_in_at_most_5_of_100_runs_however_often_they_are_looked_at():
    def told(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        samples = [
            sample(label, i, rng.lognormal(0, 0.1))
            for i in range(look_sizes(1)[-1])
            for label in ("ar", "a")
        ]
        return any(all_told_apart(Figures(samples[: 2 * n]), ["ar", "a"]) for n in look_sizes(1))

    assert sum(told(seed) for seed in range(100)) <= 5
    assert len(look_sizes(1)) == LOOKS


class Pretended:
    """An executor whose samples take the given times, with 5 % of noise."""

    def __init__(self, seconds: dict[str, float]):
        self.costs, self.made = {}, 0
        self.seconds, self.noise = seconds, np.random.default_rng(0)

    def start(self, asked, device, units):
        from lanternbench.experiment.worker import Facts
        from lanternbench.measure.run_record import Environment, MethodRecord, TargetRecord
        from lanternbench.settings import Sampling

        methods = [
            MethodRecord(label=label, key=method(label).key, method=label, lossless=True)
            for label in self.seconds
        ]
        target = TargetRecord(name="tiny", evaluators="tiny")
        return Facts(device, Sampling(), methods, target, Environment(device="cpu"))

    def memory_rate(self):
        return None

    def estimate(self, units):
        return self.seconds

    def samples(self, units, caption, say, on_step=None):
        from lanternbench.experiment.worker import Finished

        for job in (job for unit in units for job in unit):
            self.made += 1
            seconds = self.seconds[job.label] * self.noise.lognormal(0, 0.05)
            made = sample(job.label, 0, seconds).model_dump()
            prompt = job.prompts[0].id
            yield Finished(
                Sample(
                    **made
                    | {
                        "key": f"{prompt}|{method(job.label).key}|0",
                        "prompt_id": prompt,
                        "prompt": prompt,
                    }
                ),
                None,
            )

    def notes(self):
        return []

    def close(self):
        pass


@pytest.mark.parametrize(
    "wrong", [{"batch": 2}, {"repeats": 2}, {"baseline": False}, {"methods": ["ar"]}]
)
def test_what_has_no_speed_beside_ar_cannot_be_told_apart_from_it(wrong):
    with pytest.raises(UserError, match="--until-told-apart"):
        config.sweep({"methods": ["eagle-1"], "until_told_apart": True} | wrong)
