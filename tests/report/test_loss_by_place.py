"""Where left-out context costs: the loss of every row and column, from the decode to the report's
files.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_report import flat, make_run

from lanternbench import report
from lanternbench.engine.decode import generate
from lanternbench.engine.opening import teacher_forced
from lanternbench.experiment.worker import trace_fields
from lanternbench.lossless.tables import row_end_target
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.report.images import loss_figure, loss_records
from lanternbench.settings import Sampling

CAPTIONS = ["a large red star on the left", "a small green ring", "two dogs in the snow"]
ZIPAR, PJD = "zipar s=2", "pjd c=4"
ROWS = [
    flat(),
    *(flat(x, x.split()[0], 2.0, fidelity_loss=0.1, lossless=False) for x in (ZIPAR, PJD)),
]
# of the first prompt
LOST = {ZIPAR: ([0.0, 0.3], [0.1, 0.15, 0.2]), PJD: ([0.0, 0.1], [0.05, 0.05, 0.05])}


@pytest.fixture(autouse=True)
def no_other_pictures(monkeypatch):
    """A report writes the maps alone."""
    monkeypatch.setattr("lanternbench.report.write.write_pictures", lambda *_: [])


def by_place(
    rows: list[list[float]], columns: list[list[float]]
) -> list[tuple[list[float], list[float]]]:
    """The losses of a method's samples, each by row and by column."""
    return list(zip(rows, columns, strict=True))


def lossy_run(folder: Path, prompts: int = 3, **changes: tuple[list[float], list[float]]) -> Path:
    """Images of 2 × 3 tokens; prompt i has lost i / 10 more than the first, everywhere but in the
    first row.
    """
    made = make_run(folder, ROWS, prompts, run_id=folder.name)
    info = json.loads((made / "run.json").read_text())
    info["target"]["grid"] = [2, 3]
    (made / "run.json").write_text(json.dumps(info))
    lines = []
    for text in (made / "samples.jsonl").read_text().splitlines():
        one = json.loads(text)
        if (label := one["label"]) in LOST:
            by_row, by_column = changes.get(one["method"], LOST[label])
            more = int(one["prompt_id"]) / 10
            one["row_loss"] = [by_row[0], *(x + more for x in by_row[1:])]
            one["column_loss"] = [x + more / 2 for x in by_column]
        lines.append(json.dumps(one) + "\n")
    (made / "samples.jsonl").write_text("".join(lines))
    return made


def test_each_row_and_column_has_the_mean_over_samples_with_an_interval():
    losses = {"a": by_place([[0.0, 0.2], [0.0, 0.6], [0.0, 0.1]], [[0.1], [0.3], [0.2]])}
    records = loss_records(losses)
    found = [(r.method, r.axis, r.place, r.n) for r in records]
    assert found == [("a", "row", 0, 3), ("a", "row", 1, 3), ("a", "column", 0, 3)]
    assert [r.fidelity_loss for r in records] == pytest.approx([0.0, 0.3, 0.2])
    assert (records[0].lo, records[0].hi) == (0, 0)
    for one, least, most in ((records[1], 0.1, 0.6), (records[2], 0.1, 0.3)):
        assert least <= one.lo < one.fidelity_loss < one.hi <= most


def test_the_figure_has_a_curve_and_a_band_for_every_method_by_row_and_by_column():
    losses = {r"$\zipar$": by_place([[0.0, 0.2], [0.0, 0.6]], [[0.1, 0.3, 0.2]] * 2)}
    losses["pjd"] = by_place([[0.0, 0.1]] * 2, [[0.05] * 3] * 2)
    records = loss_records(losses)
    figure = loss_figure(records)
    figure.draw_without_rendering()  # a label that were read as mathematics would end here
    rows, columns = figure.axes
    assert (rows.get_xlabel(), columns.get_xlabel()) == ("row of the image", "column of the image")
    assert [list(line.get_xdata()) for line in columns.lines] == [[0, 1, 2]] * 2
    assert [list(line.get_ydata()) for line in rows.lines] == [
        [0, pytest.approx(0.4)],
        [0, pytest.approx(0.1)],
    ]
    assert [len(axes.collections) for axes in figure.axes] == [2, 2]
    assert [text.get_text() for text in columns.get_legend().get_texts()] == list(losses)
    assert rows.get_ylim()[0] == 0


def test_a_report_writes_the_map_and_its_table_for_methods_that_drew_several_rows(tmp_path):
    files = {file.name: file for file in report([lossy_run(tmp_path / "r")]).files}
    assert {f"loss-by-place.{kind}" for kind in ("png", "svg", "pdf", "csv")} <= files.keys()
    assert files["loss-by-place.png"].read_bytes()[:4] == b"\x89PNG"
    with files["loss-by-place.csv"].open() as file:
        table = list(csv.DictReader(file))
    assert {line["method"] for line in table} == {ZIPAR, PJD}
    assert {line["n"] for line in table} == {"3"}
    for label, (by_row, by_column) in LOST.items():
        for axis, first in (("row", by_row), ("column", by_column)):
            mine = [line for line in table if (line["method"], line["axis"]) == (label, axis)]
            assert [int(line["place"]) for line in mine] == list(range(len(first)))
            # of the middle prompt
            more = [0.0] + [0.1] * (len(first) - 1) if axis == "row" else [0.05] * len(first)
            assert [float(line["fidelity_loss"]) for line in mine] == pytest.approx(
                np.add(first, more).tolist()
            )
            assert all(float(x["lo"]) <= float(x["fidelity_loss"]) <= float(x["hi"]) for x in mine)


def test_each_run_has_a_map_of_its_own_and_one_without_such_methods_has_none(
    tmp_path, quick_pictures
):
    runs = [
        lossy_run(tmp_path / "a"),
        make_run(tmp_path / "b", run_id="b"),
        lossy_run(tmp_path / "c", 2),
    ]
    names = {file.name for file in report(runs, out=tmp_path / "out").files}
    assert {name for name in names if name.endswith(".csv") and "loss" in name} == {
        "loss-by-place-1.csv",
        "loss-by-place-3.csv",
    }


def test_losses_of_another_grid_than_the_run_s_are_left_out(tmp_path, quick_pictures):
    damaged = lossy_run(tmp_path / "r", zipar=([0.0, 0.3, 0.1], [0.1, 0.1, 0.1]))
    files = {file.name: file for file in report([damaged]).files}
    with files["loss-by-place.csv"].open() as file:
        assert {line["method"] for line in csv.DictReader(file)} == {PJD}


@pytest.mark.parametrize(
    ("name", "options"), [("zipar", {"window": 2}), ("pjd", {"c": 2, "window": 3})]
)
def test_a_sample_s_rows_and_columns_are_the_means_of_its_tokens_losses(name, options):
    target = row_end_target()
    decoder = build(target, method(name, **options))
    made = generate(decoder, CAPTIONS, seed=1, trace=True)
    trace, drawn = made[0].trace, torch.stack([g.tokens for g in made])
    assert trace is not None
    prefix = target.prefix(CAPTIONS, decoder.guidance)
    for i, one in enumerate(trace_fields(decoder, made)):
        assert len(one["row_loss"]) == len(one["column_loss"]) == 4
        assert one["row_loss"][0] < 1e-5  # nothing is left out of the first row
        assert max(one["row_loss"]) > 0.05
        means = [sum(one[axis]) / 4 for axis in ("row_loss", "column_loss")]
        assert means == pytest.approx([one["fidelity_loss"]] * 2, abs=1e-5)
        if name == "zipar":  # without drafts a token's loss is the distance of two distributions
            q = teacher_forced(target, prefix, drawn, decoder.guidance, decoder.warp)[i]
            by_hand = (0.5 * (trace.seen[i] - q).abs().sum(-1)).view(4, 4)
            assert one["row_loss"] == pytest.approx(by_hand.mean(1).tolist(), abs=1e-5)
            assert one["column_loss"] == pytest.approx(by_hand.mean(0).tolist(), abs=1e-5)


def test_raster_order_and_temperature_0_have_no_such_maps():
    target = row_end_target()
    for name, temperature in (("sjd", 1.0), ("zipar", 0.0)):
        decoder = build(target, method(name), Sampling(temperature=temperature))
        (one,) = trace_fields(decoder, generate(decoder, CAPTIONS[:1], trace=True))
        assert "row_loss" not in one
