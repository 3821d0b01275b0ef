"""Published accepted lengths: used as data, named in every row, and the advice that follows."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping

import pytest
from conftest import mistake
from run_records import run_record
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.costs.roofline import Operators, device_model
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder
from lanternbench.measure.samples import Sample
from lanternbench.methods.presets import Preset
from lanternbench.predict import predict, published, replay
from lanternbench.predict.advice import DRAFTED, PLAIN, RELAXED, advice_of
from lanternbench.predict.machines import Roofline
from lanternbench.predict.published import published_cases
from lanternbench.predict.replay import MEASURED, PUBLISHED, SIMULATED, TOY, sketch
from lanternbench.registry import components
from lanternbench.report.papers import published_rows
from lanternbench.settings import Sweep
from lanternbench.utils.json_values import plain

A100 = Roofline(device_model("a100-40g"), "bfloat16")
SJD = "SJD arXiv:2410.01699"


@pytest.fixture(autouse=True, scope="module")
def operators():
    """Counting them takes decodes."""
    counted = Operators(layer=16.0, forward=27.0, level=50.0, rest=40.0)
    with pytest.MonkeyPatch.context() as patch:
        for module in (published, replay):
            patch.setattr(module, "count_operators", lambda *_: counted)
        yield


@pytest.fixture(scope="module")
def anole():
    return sketch("anole-7b", every=False)


@pytest.fixture(scope="module")
def every_batch(anole):
    found = published_cases(anole, 1.0, {SJD: "3.0"})
    return predict.predict(A100, found.cases, predict.BATCHES)


@pytest.fixture(scope="module")
def rows(every_batch):
    return [row for row in every_batch if row.batch == 1]


def sample(label: str, lengths: list[int]) -> Sample:
    """An image of the toy model: the prefill, then these accepted lengths."""
    nodes = [6] * len(lengths)
    return Sample(
        key=f"demo-0|{label}|0",
        prompt_id="demo-0",
        prompt="a red star",
        label=label,
        method=label,
        options={},
        seed=0,
        decode_s=1.0,
        tokens=256,
        steps=1 + len(lengths),
        accept_lengths=[1, *lengths],
        tree_depths=[0, *[5] * len(lengths)],
        tree_nodes=[1, *nodes],
        fidelity_loss=0.04,
    )


def toy_run(folder, **settings) -> str:
    config = Sweep(num_prompts=1, methods=[{"method": "sjd"}, {"method": "scd"}]).record()
    config |= {"guidance": 3.0, "device": "cpu", **settings}
    with RunFolder.open(folder, run_record("toy", config, target={"name": "tiny"})) as run:
        for label in ("sjd", "scd", "eagle-3"):
            run.append(sample(label, [3] * 85))
    return str(folder / "toy")


def predicted(*args: str) -> dict:
    found = CliRunner().invoke(app, ["predict", *args, "--json"], catch_exceptions=False)
    return json.loads(found.stdout)


def test_the_papers_accepted_length_is_the_one_that_is_used(rows):
    papers = [paper for paper in published_rows() if paper["target"] == "anole-7b"]
    wanted = sorted(
        float(paper["accept_len"] or paper["step_compression"])
        for paper in papers
        if paper["temperature"] == "1" and paper["method"] != "ar" and paper["speedup"]
    )
    methods = [row for row in rows if row.method != "ar"]
    assert [round(tau, 2) for tau in sorted(row.tau for row in methods)] == pytest.approx(
        wanted, abs=0.011
    )
    assert {row.acceptance for row in methods} == {PUBLISHED}
    jacobi = next(row for row in rows if row.method == "jacobi" and "table 1 and 4" in row.source)
    assert jacobi.source == f"{SJD}, table 1 and 4 (coco2017-val, A100, T 1, guidance 3.0)"
    assert jacobi.published_speedup == 1.03
    assert 1.0 < jacobi.speedup < 1.1
    eagle = [row for row in rows if row.method == "eagle-2"]
    assert all("guidance not reported" in row.source for row in eagle)
    assert all(row.low < row.speedup < row.high for row in methods)


def test_rows_are_sorted_by_speedup_and_lossless_ones_are_marked(rows):
    first, *methods = rows
    assert first.method == "ar"
    speedups = [row.speedup for row in methods]
    assert speedups == sorted(speedups, reverse=True)
    presets: Mapping[str, Preset] = components("preset")
    for row in methods:
        is_lossless = presets[row.method].lossless and "lantern" not in row.label
        assert row.lossless == is_lossless
        assert predict.cells(row)["lossless"] == ("✓" if is_lossless else "")


def test_relaxed_rows_have_the_quality_of_the_papers_table(rows):
    lantern = next(r for r in rows if r.label == "lantern" and "table I " in r.source)
    assert lantern.quality == "clip 0.3005 (ar 0.3042)"


def test_drafters_that_nobody_published_are_left_out_in_one_line_unless_asked_for():
    target = sketch("llamagen-xl-c2i", every=False)
    found = published_cases(target, 1.0, {})
    assert not found.cases
    assert found.notes == [
        "left out, because nobody published their drafter for llamagen-xl-c2i: adt-tree"
    ]
    every = published_cases(sketch("llamagen-xl-c2i"), 1.0, {})
    assert {case.method.preset for case in every.cases} == {"adt-tree"}


def test_a_row_without_an_accepted_length_says_so(monkeypatch, anole):
    paper = dict(
        published_rows()[0], target="anole-7b", method="gsd", speedup="2.2", accept_len=""
    )
    monkeypatch.setattr(published, "published_rows", lambda: (paper | {"temperature": "1"},))
    found = published_cases(anole, 1.0, {})
    assert not found.cases
    (note,) = found.notes
    assert note.startswith("no accepted length is published for gsd: ")
    assert note.endswith("has a speedup of 2.2×")


def test_a_row_of_the_toy_model_has_the_published_row_next_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "save", lambda *_, **__: None)
    out = tmp_path / "out"
    asked = [toy_run(tmp_path), "--target", "anole-7b", "--device", "a100", "--batch", "1,8"]
    document = predicted(*asked, "--out", str(out))
    for batch in (1, 8):
        rows = [row for row in document["rows"] if row["batch"] == batch]
        kinds = [row["acceptance"] for row in rows if row["method"] == "sjd"]
        assert kinds == [PUBLISHED, TOY, PUBLISHED, PUBLISHED, PUBLISHED]
        toy = [row for row in rows if row["acceptance"] == TOY]
        assert {row["method"] for row in toy} == {"sjd", "scd"}
        assert all(row["warning"] for row in toy)
    left_out = "left out, because nobody published their drafter for anole-7b: eagle-3"
    assert left_out in document["notes"]
    assert any("no accepted length is published for anole-7b: scd" in n for n in document["notes"])
    with open(out / "predictions.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["acceptance"] for line in lines] == [r["acceptance"] for r in document["rows"]]
    assert [line["warning"] for line in lines] == [r["warning"] for r in document["rows"]]
    table = (out / "predictions.md").read_text(encoding="utf-8")
    for row in document["rows"]:
        assert f"| {row['acceptance']}" in table
        assert row["warning"] in table


@pytest.mark.parametrize(
    ("settings", "kind"), [({}, MEASURED), ({"simulate_acceptance": 2.0}, SIMULATED)]
)
def test_a_run_on_the_target_itself_is_measured_unless_its_acceptance_was_simulated(
    tmp_path, settings, kind
):
    rows = predicted(toy_run(tmp_path, **settings), "--batch", "1")["rows"]
    assert {row["acceptance"] for row in rows if row["method"] != "ar"} == {kind}
    assert {row["quality"] for row in rows if row["method"] == "sjd"} == {"fidelity loss 0.040"}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["predict"], "give a run, or --published and --target with a target"),
        (["predict", "--published"], "give a run, or --published and --target with a target"),
        (["advise"], "give a run, or --published and --target with a target"),
        (
            ["advise", "--target", "llamagen-b-c2i"],
            "no accepted length is published for 'llamagen-b-c2i' at T 1: measure one with",
        ),
        (
            ["predict", "--published", "--target", "anole-7b", "--temperature", "0.5"],
            "no accepted length is published for 'anole-7b' at T 0.5",
        ),
        (
            ["predict", "--published", "--target", "anole-7b", "--device", "this"],
            "--device this probes the target of a run: give a run",
        ),
    ],
)
def test_what_cannot_be_predicted_or_advised_is_one_sentence(monkeypatch, capfd, args, sentence):
    assert sentence in mistake(monkeypatch, capfd, *args)


@pytest.fixture(scope="module")
def advice(anole, every_batch):
    return advice_of(anole, 1, every_batch)


def test_advice_is_the_fastest_of_each_group_by_its_slowest_row(advice):
    best = advice.best
    assert best[PLAIN].method == "sjd"
    assert best[DRAFTED].lossless
    assert best[DRAFTED].drafter == "eagle"
    assert not best[RELAXED].lossless
    assert "clip" in best[RELAXED].quality
    # of 1.97 and 2.11, which two papers' tables have
    assert best[PLAIN].tau == pytest.approx(1.97, abs=0.01)


def test_advice_as_json_has_the_origin_of_each_accepted_length(advice):
    record = plain(advice)
    assert list(record) == ["title", "best", "changes"]
    assert {row["acceptance"] for row in record["best"].values()} == {PUBLISHED}


def test_without_a_method_whose_accepted_length_is_known_there_is_no_advice(anole, rows):
    toy = [row._replace(acceptance=TOY) for row in rows]
    with pytest.raises(UserError, match="no method of 'anole-7b' has a known accepted length"):
        advice_of(anole, 1, toy)


def test_advice_says_what_would_change_it_in_25_lines_of_80_columns(advice):
    lines = advice.lines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "Batch size, relaxed: lantern from 1, ar from 4." in text
    assert "in papers it takes 47.1 to 47.8" in text
    for name in ("medusa", "eagle-3", "dflash"):
        assert name in text.partition("which nobody published for this target:")[2]
    assert "scd" in text.partition("because no accepted length is published:")[2]


def test_every_family_with_a_spread_is_a_family_of_methods():
    families = {preset.family for preset in components("preset").values()}
    for kind in ("published", "toy"):
        of_kind = predict.spreads()[kind]
        assert of_kind.keys() - {"all"} <= families
        assert all(low < high for low, high in of_kind.values())
