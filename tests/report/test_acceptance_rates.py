"""Acceptance by position: conditional and joint rates, and the names of serving engines."""

from __future__ import annotations

import json
import math
import random

import pytest
from run_records import record_of, run_record
from test_report import flat, make_run, row

from lanternbench import experiment as results
from lanternbench import report
from lanternbench.errors import UserError
from lanternbench.measure import summary as measure
from lanternbench.measure.figures import Figures, acceptance, conditional_rates, joint_rates
from lanternbench.measure.run_record import RunRecord
from lanternbench.measure.samples import Sample
from lanternbench.measure.summary import read_summary
from lanternbench.report.plots import panels
from lanternbench.report.style import WIDE
from lanternbench.report.tables import acceptance_table


def made(label: str, lengths: list[list[int]], depth: int) -> list[Sample]:
    """Samples of a method with these accepted lengths after the prefill."""
    return [
        Sample(key=f"{i}|{label}|0", prompt_id=str(i), prompt=f"x {i}", label=label, method=label, seed=0,
               tokens=1 + sum(one), steps=1 + len(one), accept_lengths=[1, *one], tree_depths=[0, *[depth] * len(one)],
               decode_s=1.0)
        for i, one in enumerate(lengths)
    ]  # fmt: skip


def test_the_product_of_conditional_rates_is_the_joint_rate():
    rng = random.Random(0)
    for _ in range(50):
        histogram = [0, *(rng.randint(0, 20) for _ in range(rng.randint(1, 17)))]
        joint, conditional = joint_rates(histogram), conditional_rates(histogram)
        for i, rate in enumerate(joint):
            assert math.prod(conditional[: i + 1]) == pytest.approx(rate)
        assert all(0 < rate <= 1 for rate in conditional)


def test_rates_are_counts_of_samples_by_hand():
    lengths = [[3, 1, 4, 2], [1, 1, 4]]
    rows = measure.summarise(Figures(made("eagle-1", lengths, 3)), RunRecord()).rows
    steps = [n for one in lengths for n in one]
    # without the bonus token, or the one drawn after a rejection
    accepted = [n - 1 for n in steps]
    found = rows[0].acceptance
    assert found["per_position"] == [sum(a >= i for a in accepted) / len(steps) for i in (1, 2, 3)]
    assert found["conditional_per_position"] == [
        sum(a >= i for a in accepted) / sum(a >= i - 1 for a in accepted) for i in (1, 2, 3)
    ]
    assert found["acceptance_histogram"] == [accepted.count(n) for n in range(4)]
    assert found["mean_acceptance_length"] == pytest.approx(sum(steps) / len(steps))
    assert found["mean_acceptance_length"] == pytest.approx(rows[0].value("accept_len"))
    assert rows[0].value("acceptance_rate") == pytest.approx(sum(accepted) / (3 * len(steps)))


def test_a_method_that_drafts_nothing_has_no_acceptance():
    (ar,) = measure.summarise(Figures(made("ar", [[1, 1, 1]], 0)), RunRecord()).rows
    assert (ar.acceptance, ar.value("acceptance_rate")) == ({}, None)
    assert (
        acceptance([])
        == acceptance([0, 0, 0])
        == acceptance([0, 5])
        == acceptance([0, 5, 0, 0])
        == {}
    )
    assert acceptance_table([row()]) == ""
    assert panels([row()], WIDE) is None


@pytest.mark.usefixtures("quick_pictures")
def test_the_summary_the_tables_and_the_page_have_the_rates(tmp_path):
    rows = [flat(), flat("sjd", "sjd", 1.5, accept_histogram=[0, 2, 4, 2])]
    folder = make_run(tmp_path / "r", rows)
    report([folder], formats=["md", "csv", "json", "html"])
    out = folder / "report"
    document = json.loads((out / "table.json").read_text())
    assert document["rows"][1]["acceptance"]["per_position"] == [0.75, 0.25]
    assert (
        "| sjd | – | 2.00 | 75.0% (75.0%) | 25.0% (33.3%) |" in (out / "acceptance.md").read_text()
    )
    assert "sjd,2,0.25,0.333" in (out / "acceptance.csv").read_text()
    assert 'data-key="acceptance"' in (out / "report.html").read_text()
    made = panels([row(**fields) for fields in rows], WIDE)
    assert made is not None
    first, second, *_ = made.figure.axes[0].patches
    assert second.get_height() / first.get_height() == pytest.approx(1 / 3)


def test_the_summary_of_a_run_has_the_rates_in_its_json(tmp_path):
    with results.RunFolder.open(tmp_path, run_record("r", {})) as run:
        for one in made("sjd", [[3, 1], [2, 2]], 4):
            run.append(one)
        run.finish(measure.summarise(run.figures, run.run))
    (kept,) = json.loads((run.path / "summary.json").read_text())["rows"]
    assert kept["acceptance"]["per_position"] == [0.75, 0.25]
    assert kept["figures"]["acceptance_rate"]["value"] == pytest.approx(4 / 16)
    assert read_summary(run.path).rows[0].acceptance == kept["acceptance"]


def test_an_impossible_histogram_breaks_nothing_and_one_of_words_is_one_sentence(tmp_path):
    negative = flat("x", "x", 2.0, accept_histogram=[-3, 10**300, -1, 2])
    folder = make_run(tmp_path / "negative", [flat(), negative])
    report([folder])
    assert (folder / "report" / "acceptance.md").is_file()
    words = flat("x", "x", 2.0, accept_histogram=[-3, "a", None], acceptance={})
    folder = make_run(tmp_path / "words", [flat(), words])
    with pytest.raises(UserError, match=r"rows\.1\.accept_histogram\.1 must be a whole number"):
        report([folder])


@pytest.mark.parametrize(("target", "dataset", "warned"), [
    ("tiny", "coco2017", True), ("tiny", "parti", True), ("tiny", "demo", False), ("tiny", "mine.txt", False),
    ("anole-7b", "coco2017", False),
])  # fmt: skip
def test_captions_of_photographs_on_the_embedded_target_are_warned_of(target, dataset, warned):
    info = {"target": {"name": target}, "prompts": {"dataset": dataset}}
    notes = measure.summarise(Figures(made("sjd", [[3, 1]], 3)), record_of(info)).notes
    assert (
        any("draws coloured shapes" in note.text and note.kind == "warning" for note in notes)
        == warned
    )
