"""Runs that differ in the seed alone are one result: a mean with an interval over the seeds."""

from __future__ import annotations

import numpy as np
import pytest
from run_records import run_record
from scipy.stats import t
from test_warnings import PROMPTS, sample, write_run
from typer.testing import CliRunner

from lanternbench import report
from lanternbench.cli.main import app
from lanternbench.report.load import differing, joined_rows, load_run

TIMES = {0: 1.0, 1: 1.1, 2: 1.3}  # seconds of ``sjd``, as parts of its usual ones


def make_run(root, seed: int, temperature: float = 1.0, **changes):
    folder = root / f"run-{seed}-{temperature:g}"
    (folder / "images").mkdir(parents=True)
    samples = [sample(folder, i, "ar", **changes) for i in range(PROMPTS)]
    for i in range(PROMPTS):
        one = sample(folder, i, "sjd", **changes)
        samples.append(one.model_copy(update={"decode_s": one.decode_s * TIMES[seed]}))
    record = run_record(
        folder.name,
        {"seed": seed, "temperature": temperature},
        environment={"cores": 2, "cpu": "C", "device": "cpu"},
        prompts={"source": "demo", "count": PROMPTS, "hash": f"{seed}" * 8},
        target={"name": "tiny", "grid": [2, 2], "evaluators": "tiny"},
        methods=[{"label": "ar", "lossless": True}, {"label": "sjd", "lossless": True}],
    )
    write_run(folder, record, samples)
    return folder


@pytest.fixture
def folders(tmp_path):
    return [make_run(tmp_path, seed) for seed in TIMES]


def test_the_figures_of_seeds_are_their_mean_with_student_s_interval(folders):
    runs = [load_run(folder) for folder in folders]
    ar, sjd = joined_rows(runs)
    assert (ar.run, sjd.run) == (None, None)
    assert sjd.seeds == (0, 1, 2)
    assert sjd.n == 3 * PROMPTS
    values = [run.rows[1].value("speedup") for run in runs]
    assert len(set(values)) == 3
    mean, lo, hi, n, p = sjd.figure("speedup")
    half = t.ppf(0.975, 2) * np.std(values, ddof=1) / np.sqrt(3)
    assert (mean, lo, hi) == pytest.approx((np.mean(values), mean - half, mean + half))
    assert (n, p) == (3 * PROMPTS, None)
    assert ar.figure("speedup")[:3] == (1.0, 1.0, 1.0)
    assert differing(runs) is None


@pytest.mark.usefixtures("quick_pictures")
def test_every_table_says_that_its_intervals_are_over_seeds(folders, tmp_path):
    report(folders, out=tmp_path / "out", formats=["md", "csv", "tex", "html", "json"])
    words = "Student's 95 % intervals over runs with the seeds 0, 1, 2, whose means these are"
    for name in ("table.md", "table.tex", "table.json", "report.html"):
        text = (tmp_path / "out" / name).read_text().replace("\\", "").replace("&#39;", "'")
        assert words in text, name
        assert "do not compare" not in text, name
    assert len((tmp_path / "out" / "table.csv").read_text().splitlines()) == 3
    args = ["report", *map(str, folders), "--format", "md", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, args)
    assert words in done.stdout
    assert "do not compare" not in done.stdout


def test_a_metric_that_one_seed_lacks_has_no_mean(tmp_path):
    folders = [make_run(tmp_path, 0), make_run(tmp_path, 1, metrics={})]
    _, sjd = joined_rows([load_run(folder) for folder in folders])
    assert sjd.value("clip-tiny") is None
    assert sjd.value("speedup") is not None


def test_seeds_of_two_temperatures_are_two_results_that_are_told_from_each_other(tmp_path):
    folders = [make_run(tmp_path, seed, heat) for heat in (1.0, 0.5) for seed in (0, 1)]
    runs = [load_run(folder) for folder in folders]
    rows = joined_rows(runs)
    assert [(row.run, row.label) for row in rows] == [
        ("run-0-1", "ar"), ("run-0-1", "sjd"), ("run-0-0.5", "ar"), ("run-0-0.5", "sjd")
    ]  # fmt: skip
    difference = differing(runs)
    assert difference is not None
    assert "temperature (1.0, 0.5)" in difference.text
    assert "seed" not in difference.text


def test_a_run_without_another_seed_keeps_its_figures_next_to_a_mean(tmp_path):
    folders = [make_run(tmp_path, 0), make_run(tmp_path, 1), make_run(tmp_path, 0, 0.5)]
    rows = joined_rows([load_run(folder) for folder in folders])
    assert [row.seeds for row in rows] == [(0, 1), (0, 1), (), ()]
    assert all(row.value("speedup") is not None for row in rows)


def test_the_same_seed_twice_is_no_mean(tmp_path):
    folders = [make_run(tmp_path / name, 0) for name in "ab"]
    assert [row.seeds for row in joined_rows([load_run(folder) for folder in folders])] == [()] * 4
