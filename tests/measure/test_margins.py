"""``--not-worse``: a method passes only if the data rule out a loss of the margin or more."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import mistake
from PIL import Image
from run_records import run_record
from typer.testing import CliRunner

from lanternbench import report
from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample
from lanternbench.measure.margins import (
    Difference,
    bootstrap_difference,
    detectable,
    judge_margins,
    paired_difference,
)
from lanternbench.measure.summary import summarise
from lanternbench.report.load import load_run, read_contents
from lanternbench.report.margins import margin_tests, planned
from lanternbench.settings import RunSpec, Sweep, checked

MARGIN = 0.01


def conclusions(mean: float, prompts: int, trials: int, methods: int = 1, spread: float = 0.03):
    """Conclusions [trials][methods] for differences of this mean; scores of prompts differ by far
    more than methods do.
    """
    rng = np.random.default_rng(7)
    found = []
    for _ in range(trials):
        old = rng.normal(0.7, 0.2, prompts)
        differences = []
        for number in range(methods):
            new = old + rng.normal(mean, spread, prompts)
            name = f"m{number}"
            differences.append(paired_difference("clip", name, "ar", new, old, 1))
        found.append([test.conclusion for test in judge_margins(differences, {"clip": MARGIN})])
    return found


def test_a_method_exactly_at_the_margin_passes_in_at_most_5_percent():
    # 500 trials: a test with an error rate of 7.5 % or more would fail here in 95 % of seeds
    passed = sum(c == ["not worse"] for c in conclusions(-MARGIN, 40, 500))
    assert passed <= 31  # of 25 expected, ± 4.9


def test_a_family_of_methods_at_the_margin_passes_one_in_at_most_5_percent():
    found = conclusions(-MARGIN, 40, 500, methods=4)
    assert sum("not worse" in each for each in found) <= 31


def test_the_prompts_that_would_decide_decide_in_four_of_five_runs():
    rng = np.random.default_rng(1)
    one = Difference("clip", "m", "ar", 40, 0.0, 0.03 / np.sqrt(40), 39)
    (test,) = judge_margins([one], {"clip": MARGIN})
    assert test.prompts_needed == 57
    decided = 0
    for _ in range(500):
        new = rng.normal(0.0, 0.03, test.prompts_needed)
        difference = paired_difference("clip", "m", "ar", new, np.zeros_like(new), 1)
        decided += judge_margins([difference], {"clip": MARGIN})[0].conclusion == "not worse"
    assert 0.74 <= decided / 500 <= 0.88


@pytest.mark.parametrize(
    ("mean", "says"), [(0.0, "not worse"), (0.01, "not worse"), (-0.05, "worse")]
)
def test_a_clear_case_is_decided(mean, says):
    assert conclusions(mean, 200, 1) == [[says]]


def test_an_unclear_case_is_undecided_and_names_the_prompts_that_would_decide():
    old = np.array([0.5, 0.7, 0.6, 0.8])
    new = old + np.array([0.03, -0.03, 0.02, -0.02])
    difference = paired_difference("clip", "m", "ar", new, old, 1)
    (test,) = judge_margins([difference], {"clip": MARGIN})
    assert test.conclusion == "undecided"
    assert test.sentence == f"undecided: about {test.prompts_needed} prompts would decide"
    assert test.low < -MARGIN
    assert test.high > 0


def test_lower_values_are_better_where_the_metric_says_so():
    old = np.full(30, 10.0)
    new = old + np.random.default_rng(0).normal(5, 0.5, 30)
    worse = paired_difference("fid", "m", "ar", new, old, -1)
    better = paired_difference("reward", "m", "ar", new, old, 1)
    assert judge_margins([worse], {"fid": 1.0})[0].conclusion == "worse"
    assert judge_margins([better], {"reward": 1.0})[0].conclusion == "not worse"


def test_equal_scores_are_not_worse_and_prompts_of_one_side_do_not_count():
    old = np.array([0.5, np.nan, 0.7, 0.9])
    new = np.array([0.5, 0.1, 0.7, np.nan])
    difference = paired_difference("clip", "m", "ar", new, old, 1)
    assert difference.prompts == 2
    assert judge_margins([difference], {"clip": MARGIN})[0].conclusion == "not worse"
    assert paired_difference("clip", "m", "ar", new[:2], old[:2], 1) is None


def test_a_bootstrap_gives_the_error_of_a_figure_of_whole_sets():
    values = np.array([-3.0, -2.0, -4.0, -3.0, -3.5, -2.5])
    difference = bootstrap_difference("fid", "m", "ar", values, 64)
    assert difference.value == -3.0
    assert difference.error == pytest.approx(np.std(values[1:], ddof=1))
    (test,) = judge_margins([difference], {"fid": 1.0})
    assert test.conclusion == "worse"


def test_the_detectable_difference_is_found_in_four_of_five_runs():
    size = detectable(0.03 / np.sqrt(100), 1)
    rng = np.random.default_rng(3)
    means = rng.normal(size, 0.003, 2000)
    assert (means > 1.96 * 0.003).mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("text", ["clip", "clip=x", "clip=0", "clip=-1", "clip=nan", "=1,", 3])
def test_margins_that_cannot_be_read_are_one_sentence(text):
    with pytest.raises(UserError, match=r"not_worse.*margin"):
        checked(RunSpec, {"not_worse": text})


def test_margins_are_read_from_a_text_and_from_a_mapping():
    wanted = {"clip": 0.01, "image-reward": 0.05}
    assert checked(RunSpec, {"not_worse": "clip=0.01, image-reward=0.05"}).not_worse == wanted
    assert checked(RunSpec, {"not_worse": wanted}).not_worse == wanted


# --- runs ---

NOISE = {"ar": 0.0, "noisy": 0.05}  # of scores, by method


def stored_run(folder, name: str, shifts: dict[str, float], prompts: int = 30):
    """A run of ``ar`` and methods whose CLIP-tiny differs from its by these shifts."""
    rng = np.random.default_rng(0)
    target = {"name": "tiny", "evaluators": "tiny"}
    record = run_record(name, {"name": name}, target=target)
    with RunFolder.open(folder, record) as opened:
        for i in range(prompts):
            base = rng.normal(0.7, 0.2)
            for label, shift in {"ar": 0.0, **shifts}.items():
                clip = base + shift + rng.normal(0, NOISE.get(label, 0.01))
                opened.append(
                    Sample(key=f"{i}|{label}|0", prompt_id=str(i), prompt=f"p {i}", label=label, method=label, seed=0,
                           tokens=4, steps=2, accept_lengths=[1, 3], decode_s=1.0, metrics={"clip-tiny": clip})
                )  # fmt: skip
        opened.finish(summarise(opened.figures, opened.run))
        return opened.path


@pytest.mark.usefixtures("quick_pictures")
def test_a_report_names_what_is_not_worse_what_is_worse_and_what_is_undecided(tmp_path):
    path = stored_run(tmp_path, "r", {"good": 0.0, "bad": -0.05, "noisy": -0.004})
    files = report([path], formats=["md", "csv", "json", "html"], not_worse={"clip": MARGIN}).files
    by_name = {file.name: file.read_text() for file in files}
    table = by_name["not-worse.md"]
    assert "not worse by more than 0.01 (95 %)" in table
    assert "undecided: about" in table
    said = json.loads(by_name["table.json"])["answers"]["r"]
    assert "Not worse than ar in CLIP-tiny by more than 0.01 (95 %): good." in said
    assert "Worse than ar in CLIP-tiny (95 %): bad." in said
    assert any(s.startswith("Undecided whether worse than ar in CLIP-tiny") for s in said)
    for text in (by_name["report.html"], by_name["table.md"]):
        assert "Worse than ar in CLIP-tiny (95 %): bad." in text
    assert "Not worse than ar" in by_name["report.html"]
    assert by_name["not-worse.csv"].count("\n") == 4


@pytest.mark.slow
def test_sets_of_images_are_compared_on_the_same_resampled_prompts(tmp_path):
    """FID-tiny of equal images differs by 0 in every resampling; that of grey images is worse."""
    path = stored_run(tmp_path, "r", {"same": 0.0, "grey": 0.0}, prompts=24)
    lines = []
    for line in (path / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        prompt = int(sample["prompt_id"])
        pixels = np.random.default_rng(prompt).integers(256, size=(64, 64, 3)).astype(np.uint8)
        if sample["label"] == "grey":
            pixels = np.full((64, 64, 3), 100 + prompt, np.uint8)
        sample["image"] = f"images/{prompt}-{sample['label']}.png"
        (path / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path / sample["image"])
        lines.append(json.dumps(sample) + "\n")
    (path / "samples.jsonl").write_text("".join(lines))
    run = load_run(path)
    found = {t.method: t for t in margin_tests(run, read_contents(path), {"fid": 5.0})}
    assert found["same"].difference == 0
    assert found["same"].conclusion == "not worse"
    assert found["grey"].difference < -5
    assert found["grey"].conclusion == "worse"


def test_a_metric_without_scores_is_named_with_the_command_that_scores_it(tmp_path):
    path = stored_run(tmp_path, "r", {"good": 0.0})
    run = load_run(path)
    with pytest.raises(UserError, match=r"score r --metrics fid-tiny"):
        margin_tests(run, read_contents(path), {"fid": 1.0})


def test_a_run_s_own_margin_without_scores_leaves_its_report_alone(tmp_path):
    path = stored_run(tmp_path, "r", {"good": 0.0}, prompts=1)
    record = json.loads((path / "run.json").read_text())
    record["config"]["not_worse"] = {"clip": MARGIN}
    (path / "run.json").write_text(json.dumps(record))
    assert report([path], formats=["md"])
    with pytest.raises(UserError, match="over two shared prompts"):
        report([path], formats=["md"], not_worse={"clip": MARGIN})


def test_a_plan_has_the_prompts_that_decide_by_the_latest_run_of_the_target(tmp_path):
    sweep = Sweep(methods=["eagle-1", "sjd"], not_worse={"clip": MARGIN, "fid": 1.0})
    assert [plan.prompts for plan in planned(sweep, tmp_path)] == [None, None]
    path = stored_run(tmp_path, "r", {"a": 0.0, "noisy": 0.0})
    clip, fid = planned(sweep, tmp_path)
    run = load_run(path)
    tests = margin_tests(run, read_contents(path), {"clip": MARGIN})
    one = max(tests, key=lambda test: test.prompts_needed)
    # four tests are planned, and two were made
    assert one.prompts_needed < clip.prompts < 1.5 * one.prompts_needed
    assert str(clip) == (
        f"Not worse in clip-tiny by more than 0.01: about {clip.prompts:,} prompts would decide,"
        " by the scores of r"
    )
    assert "known after a first run of this target" in str(fid)
    other = sweep.model_copy(update={"target": "anole-7b"})
    assert [plan.prompts for plan in planned(other, tmp_path)] == [None, None]


def test_a_dry_run_says_how_many_prompts_the_margins_need(small_images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored_run(tmp_path / "results", "r", {"a": 0.0})
    (tmp_path / "s.yaml").write_text("methods: [sjd]\nnum_prompts: 2\nnot_worse: {clip: 0.01}\n")
    said = CliRunner().invoke(app, ["sweep", "s.yaml", "--dry-run"], catch_exceptions=False)
    assert "Not worse in clip-tiny by more than 0.01: about " in said.stdout
    done = CliRunner().invoke(app, ["sweep", "s.yaml", "--dry-run", "--json"])
    (plan,) = json.loads(done.stdout)["not_worse"]
    assert plan["run"] == "r"


def compared(tmp_path, *options: str):
    return CliRunner().invoke(app, ["compare", "old", "new", "--results", str(tmp_path), *options])


def test_compare_fails_for_what_is_worse_and_passes_what_is_not(tmp_path):
    stored_run(tmp_path, "old", {"a": 0.0, "b": 0.0})
    stored_run(tmp_path, "new", {"a": 0.0, "b": -0.05})
    result = compared(tmp_path, "--not-worse", "clip=0.01")
    assert result.exit_code == 1
    assert "worse" in result.output
    assert max(map(len, result.output.splitlines())) <= 84
    assert compared(tmp_path, "--not-worse", "clip=0.2").exit_code == 0
    tests = json.loads(compared(tmp_path, "--not-worse", "clip=0.01", "--json").stdout)[
        "not_worse"
    ]
    assert {t["method"]: t["conclusion"] for t in tests} == {
        "ar": "not worse",
        "a": "not worse",
        "b": "worse",
    }


def test_compare_says_that_figures_of_whole_sets_are_not_judged(tmp_path, monkeypatch, capfd):
    stored_run(tmp_path, "old", {"a": 0.0})
    stored_run(tmp_path, "new", {"a": 0.0})
    options = ["old", "new", "--results", str(tmp_path), "--not-worse", "fid=1"]
    assert "fid-tiny" in mistake(monkeypatch, capfd, "compare", *options)
