"""Methods against each other: differences are paired, and p-values are corrected for their number."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flat_rows import write_summary

from lanternbench import report
from lanternbench.measure.statistics import holm, paired_test, paired_tests
from lanternbench.report.findings import Pair, compared
from lanternbench.report.load import load_run, read_contents
from lanternbench.report.write import FORMATS


def make_run(folder, samples, labels=("ar", "a", "b")):
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"run_id": "r", "config": {}, "environment": {}}))
    rows = [{"label": label, "method": label, "n": 1} for label in labels]
    (folder / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))
    write_summary(folder, rows)
    return folder


def sample(label, prompt, seconds=1.0, lengths=(1, 2, 2), clip=0.3, seed=0, **more):
    lengths = list(lengths)
    return {"key": f"{prompt}|{label}|{seed}", "prompt": f"x {prompt}", "method": label, "label": label,
            "prompt_id": str(prompt), "seed": seed, "timed": True, "decode_s": seconds, "accept_lengths": lengths,
            "tokens": sum(lengths), "steps": len(lengths), "metrics": {"clip": clip}} | more  # fmt: skip


def pairs(folder) -> list[Pair]:
    run = load_run(folder)
    return compared(read_contents(folder).figures, [row.label for row in run.rows])


def test_differences_are_of_the_prompts_that_both_methods_have(tmp_path):
    hard = [1.0, 5.0, 2.0, 8.0]  # seconds: prompts differ more than methods do
    samples = [sample("ar", i, 2 * s) for i, s in enumerate(hard)]
    samples += [sample("a", i, s, [1, 3, 3]) for i, s in enumerate(hard)]
    samples += [sample("b", i, s / 2, [1, 4], clip=0.2) for i, s in enumerate(hard[:3])]
    rows = {(r.figure, r.method, r.against): r for r in pairs(make_run(tmp_path / "r", samples))}
    assert rows["speed", "a", "ar"].value == pytest.approx(2)
    assert rows["speed", "b", "a"].value == pytest.approx(2)
    assert (rows["speed", "b", "a"].lo, rows["speed", "b", "a"].hi) == (
        pytest.approx(2),
        pytest.approx(2),
    )
    assert rows["speed", "b", "a"].prompts == 3
    assert rows["accept_len", "b", "a"].value == pytest.approx(1)
    assert rows["clip", "b", "a"].value == pytest.approx(-0.1)
    # it is 1 by definition
    assert not any(figure == "accept_len" and "ar" in pair for figure, *pair in rows)


def test_seeds_of_a_prompt_count_once(tmp_path):
    samples = [sample(label, i, clip=c + 0.1 * s, seed=s) for label, c in (("a", 0.3), ("b", 0.1))
               for i in range(3) for s in range(4)]  # fmt: skip
    (row,) = (r for r in pairs(make_run(tmp_path / "r", samples)) if r.figure == "clip")
    assert row.prompts == 3
    assert row.value == pytest.approx(-0.2)
    assert row.p == 2 / 2**3  # of eight sign patterns, the two that keep all signs alike


@pytest.mark.usefixtures("quick_pictures")
def test_what_is_damaged_untimed_or_alone_has_no_row(tmp_path):
    samples = [sample("ar", i, decode_s="fast") for i in range(3)]
    samples += [sample("a", i, timed=False, metrics={}, lengths=[1]) for i in range(3)]
    samples += [sample("b", 0), {"label": None}]
    run = make_run(tmp_path / "r", samples)
    assert pairs(run) == []
    assert not any("pairs" in file.name for file in report([run], formats=[*FORMATS]).files)


@pytest.mark.usefixtures("quick_pictures")
def test_the_report_holds_the_comparison_and_escapes_it(tmp_path):
    evil = "<b>x</b>"
    samples = [sample(label, i, s) for label, s in (("ar", 2.0), (evil, 1.0)) for i in range(3)]
    files = {
        file.name: file
        for file in report(
            [make_run(tmp_path / "r", samples, ("ar", evil))], formats=[*FORMATS]
        ).files
    }
    assert "| 2.00× |" in files["pairs.md"].read_text()
    assert "run,figure,method,against,prompts,value" in files["pairs.csv"].read_text()
    page = files["report.html"].read_text()
    assert "Methods against each other" in page
    assert evil not in page


def test_many_tests_are_each_the_single_one():
    rng = np.random.default_rng(0)
    for prompts in (7, 40):
        columns = rng.normal(0.3, 1, (prompts, 5))
        columns[3:, 4] = 0  # prompts without a pair
        alone = [paired_test(c, np.zeros(prompts)) for c in columns.T]
        assert paired_tests(columns).tolist() == pytest.approx(alone)
    assert paired_test(columns[:3, 4], np.zeros(3)) == pytest.approx(alone[4], abs=0.02)


def test_holm_raises_each_p_by_the_tests_that_are_left():
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]).tolist() == [1.0, 1.0]
    assert holm([]).tolist() == []


def test_methods_that_do_not_differ_are_seldom_told_apart():
    """300 families of six pairs of four alike methods over 20 prompts: 5 % of them may have a p
    under 0.05.

    Without the correction about 20 % have one; a rate of 12 % would be seen with 99.7 % certainty.
    """
    rng = np.random.default_rng(1)
    found = raw = 0
    for _ in range(300):
        values = rng.normal(size=(20, 4)) + rng.normal(size=(20, 1))
        p = paired_tests(
            np.stack([values[:, i] - values[:, j] for i in range(4) for j in range(i)], 1), 2000
        )
        raw += p.min() < 0.05
        found += holm(p).min() < 0.05
    assert found <= 0.07 * 300
    assert raw > 0.12 * 300  # the test sees what it corrects
