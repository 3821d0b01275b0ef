"""``compare`` tells a real change from chance, and fails a build for the first only."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import mistake
from run_records import run_record
from scipy.special import stdtrit
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.experiment import RunFolder, Sample
from lanternbench.measure.change import changes, condition, judge
from lanternbench.measure.figures import Figures
from lanternbench.measure.statistics import student_t


def samples(factor: float, seed: int, prompts: int = 24) -> list[Sample]:
    """``ar`` and ``eagle-1`` on the same prompts; eagle-1's latency is multiplied by ``factor``,
    with 5 % of noise.
    """
    rng, made = np.random.default_rng(seed), []
    for i in range(prompts):
        for label, seconds in (("ar", 2.0), ("eagle-1", factor)):
            made.append(
                Sample(key=f"{i}|{label}|0", prompt_id=str(i), prompt=f"p {i}", label=label, method=label, seed=0, tokens=4,
                       steps=2, accept_lengths=[1, 3], decode_s=seconds * rng.normal(1, 0.05), fidelity_loss=0.0)
            )  # fmt: skip
    return made


@pytest.fixture
def stored(tmp_path):
    for name, factor, seed in (("old", 1.0, 1), ("same", 1.0, 2), ("slower", 1.15, 3)):
        with RunFolder.open(tmp_path, run_record(name, {"name": name})) as folder:
            for sample in samples(factor, seed):
                folder.append(sample)
    return tmp_path


def test_the_interval_of_a_change_covers_it_as_often_as_it_says():
    covered = 0
    for seed in range(100):
        old, new = Figures(samples(1.0, 2 * seed)), Figures(samples(1.25, 2 * seed + 1))
        (change,), _ = changes(old, new, ["speedup"])
        covered += change.relative[1] < -0.2 < change.relative[2]
    assert 88 <= covered <= 100  # of 95 expected, ± 2.2


def test_prompts_that_differ_do_not_widen_the_interval_of_a_change():
    """Prompts take one to ten seconds, each 20 % longer in the new run."""

    def figures(factor: float) -> Figures:
        rows = samples(1.0, 0)
        for i, sample in enumerate(rows):
            sample.decode_s = factor * (1 + 9 * (i // 2 % 3))
        return Figures(rows)

    (change, *_), _ = changes(figures(1.0), figures(1.2), ["latency_s"])
    assert change.relative == pytest.approx((0.2, 0.2, 0.2))
    assert change.difference[0] > 0
    assert change.difference[2] - change.difference[1] < change.difference[0]


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.05 / 300])
def test_students_t_is_that_of_scipy(alpha):
    for df in (*range(1, 40), 299, 4999):
        assert student_t(df, alpha) == pytest.approx(stdtrit(df, 1 - alpha / 2), rel=1e-9)


def test_a_slower_method_fails_and_chance_does_not(stored):
    def exit_code(new: str, *conditions: str) -> int:
        options = [x for c in conditions for x in ("--fail-if", c)]
        return (
            CliRunner()
            .invoke(app, ["compare", "old", new, "--results", str(stored), *options])
            .exit_code
        )

    assert exit_code("slower", "speedup<-5%") == 1
    assert exit_code("slower", "speedup<-30%") == 0
    assert exit_code("slower") == 0
    assert exit_code("same", "speedup<-5%", "latency_s>5%") == 0
    assert exit_code("slower", "fidelity_loss>0.1", "latency_s>0.05") == 1
    assert exit_code("slower", "tau<-1%") == 0


def test_the_last_line_is_the_verdict_and_a_disturbed_clock_is_named(tmp_path):
    for name, load in (("old", 0.5), ("new", 40.0)):
        with RunFolder.open(
            tmp_path, run_record(name, {"name": name}, environment={"cores": 2, "device": "cpu"})
        ) as folder:
            for sample in samples(1.0, 1):
                folder.append(
                    sample.model_copy(
                        update={"load": load, "step_s": [0.5, 0.5], "cpu_s": sample.decode_s}
                    )
                )
    done = CliRunner().invoke(
        app, ["compare", "old", "new", "--results", str(tmp_path), "--fail-if", "tau<-5%"]
    )
    assert done.exit_code == 0
    assert (
        done.stdout.splitlines()[-1]
        == "gate: passed; judged eagle-1 by accept_len over 24 prompts"
    )
    assert "new: Timing was noisy (the load was 40.0 on 2 cores)" in done.stderr
    assert "robust_speedup" in done.stdout
    timed = CliRunner().invoke(
        app, ["compare", "old", "new", "--results", str(tmp_path), "--fail-if", "speedup<-5%"]
    )
    assert "timing was noisy" in timed.stdout.splitlines()[-1]


METHODS = ["eagle-1", "sjd", "cool-sd"]


def run(
    seed: int, prompts: int, methods: list[str] = METHODS, timed: bool = True, **slower: float
) -> Figures:
    """A run on prompts of unequal length, with 10 % of noise; all are equally fast but those that
    are ``slower``.
    """
    hard, rng = np.random.default_rng(0).lognormal(0, 0.3, prompts), np.random.default_rng(seed)
    return Figures(
        Sample(key=f"{i}|{label}|0", prompt_id=str(i), prompt=f"p {i}", label=label, method=label, seed=0, tokens=4, steps=2,
               accept_lengths=[1, 3], decode_s=hard[i] * rng.lognormal(0, 0.1) * slower.get(label, 1), timed=timed)
        for i in range(prompts) for label in ("ar", *methods)
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [2, 4, 8, 16])
def test_a_gate_between_two_runs_of_one_code_fails_at_most_once_in_twenty(prompts):
    """200 pairs, three methods, two conditions; a rate of 10 % would pass with a chance of 0.8 %."""
    conditions = [condition("speedup<-5%"), condition("latency_s>5%")]
    verdicts = [
        judge(run(2 * pair, prompts), run(2 * pair + 1, prompts), conditions)
        for pair in range(200)
    ]
    # latencies of four, speedups of three
    assert all(len(verdict.judged) == 7 for verdict in verdicts)
    assert sum(not verdict.passed for verdict in verdicts) <= 10


def test_a_gate_sees_a_method_that_became_a_quarter_slower():
    """The power at 16 prompts is about 92 %."""
    gate = [condition("speedup<-5%")]
    verdicts = [
        judge(run(2 * pair, 16), run(2 * pair + 1, 16, sjd=1.25), gate) for pair in range(50)
    ]
    failed = [{change.label for change in verdict.failed} for verdict in verdicts]
    assert sum("sjd" in labels for labels in failed) >= 41
    assert sum(labels > {"sjd"} for labels in failed) <= 3


def scored(value: float, spread: float = 0.01, loss: float = 0.0) -> Figures:
    rng = np.random.default_rng(0)
    return Figures(
        Sample(key=f"{i}|{label}|0", prompt_id=str(i), prompt=f"p {i}", label=label, method=label, seed=0, tokens=4, steps=2,
               accept_lengths=[1, 3], decode_s=1, metrics={"clip-tiny": value + spread * rng.normal()},
               fidelity_loss=0.0 if label == "ar" else loss)
        for i in range(12) for label in ("ar", "eagle-1")
    )  # fmt: skip


def test_a_relative_bound_holds_for_figures_that_are_negative_or_zero():
    lower = condition("clip-tiny<-5%")
    assert not judge(scored(-0.03), scored(-0.93), [lower]).passed
    assert judge(scored(-0.93), scored(-0.03), [lower]).passed  # it rose
    assert not judge(scored(-0.93), scored(-0.03), [condition("clip-tiny>5%")]).passed
    assert not judge(scored(0.3), scored(0.3, loss=0.3), [condition("fidelity_loss>5%")]).passed
    assert judge(scored(0.3), scored(0.3), [condition("fidelity_loss>5%")]).passed


def test_a_run_that_lost_a_method_fails_and_what_is_not_judged_is_named():
    gate = [condition("speedup<-5%")]
    whole = run(1, 8)
    lost = judge(whole, run(2, 8, ["eagle-1", "sjd"]), gate)
    assert not lost.passed
    assert lost.sentence().startswith(
        "gate: failed (cool-sd is lost (not in the new run)); judged eagle-1, sjd by speedup"
    )
    new = judge(run(1, 8, ["eagle-1"]), run(2, 8, ["eagle-1", "sjd"]), gate)
    assert new.sentence() == (
        "gate: passed; judged eagle-1 by speedup over 8 prompts; not judged: sjd (not in the old run)"
    )
    untimed = judge(whole, run(2, 8, timed=False), gate)
    assert untimed.sentence() == (
        "gate: failed (nothing could be judged); not judged: "
        + ", ".join(f"{label} (speedup: not measured in the new run)" for label in METHODS)
    )
    few = judge(whole, run(2, 1), gate)
    assert not few.passed
    assert "cool-sd (speedup: one shared prompt)" in few.sentence()
    # ar alone, whose speedup is 1 by definition
    assert not judge(whole, run(2, 8, []), gate).passed


def test_json_has_every_change_with_its_interval(stored):
    done = CliRunner().invoke(
        app, ["compare", "old", "slower", "--results", str(stored), "--json"]
    )
    found = {(c["label"], c["figure"]): c for c in json.loads(done.stdout)["changes"]}
    value, lo, hi = found["eagle-1", "latency_s"]["relative"]
    assert lo < 0.15 < hi
    assert value == pytest.approx(0.15, abs=0.05)
    assert found["eagle-1", "speedup"]["prompts"] == 24


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["old", "same", "--fail-if", "speedup"], "cannot be read"),
        (["old", "same", "--fail-if", "beauty<0"], "neither run has such a figure"),
        (["old", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_comparison_is_one_sentence(stored, monkeypatch, capfd, args, says):
    assert says in mistake(monkeypatch, capfd, "compare", *args, "--results", str(stored))


def run_of(root, name: str, label: str, config=None, **changes) -> None:
    facts = {"environment": {"cores": 2, "device": "cpu"}}
    with RunFolder.open(
        root, run_record(name, {"name": name, **(config or {})}, **facts)
    ) as folder:
        for sample in samples(1.0, 1):
            shown = label if sample.label == "eagle-1" else "ar"
            key = sample.key.replace(sample.label, shown)
            folder.append(sample.model_copy(update={"key": key, "label": shown, **changes}))


def test_methods_that_have_other_names_in_two_runs_are_mapped(tmp_path, monkeypatch, capfd):
    run_of(tmp_path, "old", "sjd")
    run_of(tmp_path, "new", "sjd window=16")
    args = ["compare", "old", "new", "--results", str(tmp_path), "--json"]
    alone = json.loads(CliRunner().invoke(app, args).stdout)
    assert {one["label"] for one in alone["unjudged"]} == {"sjd", "sjd window=16"}
    mapped = json.loads(CliRunner().invoke(app, [*args, "--map", "sjd=sjd window=16"]).stdout)
    changed = {one["figure"]: one for one in mapped["changes"] if one["label"] == "sjd window=16"}
    assert changed["speedup"]["difference"][0] == 0
    assert changed["accept_len"]["prompts"] == 24
    assert mapped["unjudged"] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sjd=gsd", "a method of the old run (ar, sjd) = one of the new (ar, sjd window=16)"),
        ("sjd", "--map sjd: give a method of the old run"),
        ("sjd=ar", "two methods of the old run become 'ar'"),
    ],
)
def test_a_map_of_methods_that_are_not_there_is_refused(text, said, tmp_path, monkeypatch, capfd):
    run_of(tmp_path, "old", "sjd")
    run_of(tmp_path, "new", "sjd window=16")
    args = ["compare", "old", "new", "--results", str(tmp_path), "--map", text]
    assert said in mistake(monkeypatch, capfd, *args)


def test_the_warnings_of_both_runs_stand_before_their_comparison(tmp_path):
    run_of(tmp_path, "old", "sjd", {"random_weights": True})
    run_of(tmp_path, "new", "sjd", {"simulate_acceptance": 3.0}, load=40.0)
    done = CliRunner().invoke(app, ["compare", "old", "new", "--results", str(tmp_path)])
    notes = done.output.partition("method")[0]
    for words in ("old: Random weights", "new: Timing was noisy", "new: Accepted lengths are"):
        assert words in notes


def test_clip_in_a_gate_means_the_bundled_clip_where_that_alone_was_measured(tmp_path):
    for name, score in (("old", 0.9), ("new", 0.5)):
        run_of(tmp_path, name, "sjd", metrics={"clip-tiny": score})
    args = ["compare", "old", "new", "--results", str(tmp_path), "--fail-if", "clip<-5%"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 1
    assert "sjd by its clip-tiny" in done.stdout.splitlines()[-1]
