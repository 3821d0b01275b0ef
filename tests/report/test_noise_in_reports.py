"""A run whose methods share noise: agreement with ``ar``'s images, said in words in comparisons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.experiment import iter_samples
from lanternbench.measure.figures import Figures
from lanternbench.measure.summary import read_summary
from lanternbench.report.findings import pair_intro


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
    assert pair_intro(["shared"]).endswith("differences are of paired images.")
    assert "noise of its own" in pair_intro(["independent"])
