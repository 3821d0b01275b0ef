"""A run whose methods share noise: agreement with ``ar``'s images, said in words in comparisons."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.experiment import iter_samples
from lanternbench.experiment.scoring import score_run
from lanternbench.measure.figures import Figures
from lanternbench.measure.summary import read_summary
from lanternbench.metrics.baseline_distance import EQUAL
from lanternbench.report.findings import pair_intro
from lanternbench.report.load import load_run


def run(name, *options):
    methods = ["-m", "sjd", "-m", "zipar"]
    args = [
        "run",
        *methods,
        "--window",
        "2",
        "-n",
        "2",
        "--metrics",
        "",
        "--name",
        name,
        *options,
        "--json",
    ]
    done = CliRunner().invoke(app, args, catch_exceptions=False)
    return Path(json.loads(done.stdout)["run"])


@pytest.fixture
def shared(small_images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return run("shared", "--noise", "shared")


def test_a_run_with_shared_noise_counts_the_tokens_of_ar(shared):
    assert json.loads((shared / "run.json").read_text())["config"]["noise"] == "shared"
    share = {row.label: row.value("token_agreement") for row in read_summary(shared).rows}
    assert share["ar"] == 1
    assert share["sjd window=2"] == 1
    samples = {(one.label, one.prompt_id): one.token_ids for one in iter_samples(shared)}
    equal = [
        token == of_ar
        for (label, prompt), tokens in samples.items()
        if label.startswith("zipar")
        for token, of_ar in zip(tokens, samples["ar", prompt], strict=True)
    ]
    zipar = next(value for label, value in share.items() if label.startswith("zipar"))
    assert 0 < zipar < 1
    assert zipar == pytest.approx(sum(equal) / len(equal))


def test_the_order_of_samples_does_not_matter(shared):
    samples = list(iter_samples(shared))
    values = []
    for order in (samples, samples[::-1]):
        figures = Figures(order)
        values.append(
            [figures.ratio("token_agreement", figures.of(x)) for x in ("ar", "sjd window=2")]
        )
    assert values == [[1, 1], [1, 1]]


def test_comparisons_say_whether_noise_was_shared(shared):
    again = run("again", "--noise", "shared")
    alone = run("alone")
    assert read_summary(alone).rows[0].value("token_agreement") is None

    def said(*names):
        args = ["compare", *names, "--results", str(shared.parent)]
        return " ".join(CliRunner().invoke(app, args, catch_exceptions=False).output.split())

    assert "Both runs drew with the same noise" in said(shared.name, again.name)
    assert "same noise" not in said(shared.name, alone.name)
    assert "noise (shared" in said(shared.name, alone.name)
    assert pair_intro([load_run(shared)]).endswith("differences are of paired images.")
    assert "noise of its own" in pair_intro([load_run(alone)])


def test_psnr_compares_each_image_with_the_baseline_s_of_its_prompt_and_seed(shared):
    rows = {row.label: row for row in score_run(shared, ["psnr"]).rows}
    assert rows["ar"].value("psnr") is None
    assert rows["sjd window=2"].value("psnr") == EQUAL
    (zipar,) = [row for label, row in rows.items() if label.startswith("zipar")]
    pictures = {}
    for sample in iter_samples(shared):
        with Image.open(shared / sample.image) as image:
            pictures[sample.label, sample.prompt_id] = np.asarray(image.convert("RGB"), float)
    ratios = []
    for prompt in {prompt for _, prompt in pictures}:
        error = np.mean((pictures[zipar.label, prompt] - pictures["ar", prompt]) ** 2)
        ratios.append(10 * np.log10(255**2 / error) if error else EQUAL)
    assert zipar.value("psnr") == pytest.approx(np.mean(ratios))
    assert zipar.value("psnr") < EQUAL


def test_psnr_without_a_readable_image_of_the_baseline_is_left_out(shared):
    for sample in iter_samples(shared):
        if sample.label == "ar":
            (shared / sample.image).write_bytes(b"no image")
    summary = score_run(shared, ["psnr"])
    assert [row.value("psnr") for row in summary.rows] == [None] * len(summary.rows)
    assert any("cannot be read" in note.text for note in summary.notes)


def test_a_run_that_is_asked_for_psnr_names_the_command_that_computes_it(shared):
    (note,) = [
        x for x in read_summary(run("asked", "--metrics", "psnr")).notes if x.metric == "psnr"
    ]
    assert note.kind == "missing"
    assert "lanternbench score RUN --metrics psnr" in note.text
