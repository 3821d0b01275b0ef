"""Everything on a page, and in a frame, rests on the same samples, whenever the run was summed up
or stopped.
"""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest
from run_records import run_record

from lanternbench import report
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample, read_run
from lanternbench.experiment.run_folder import samples_digest
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import summarise
from lanternbench.report.frames import run_frames
from lanternbench.report.load import load_run
from lanternbench.report.write import write_text


def sample(label: str, prompt: int, seconds: float) -> Sample:
    key, metrics = f"{prompt}|{label}|0", {"clip-tiny": 0.1 * prompt}
    return Sample(key=key, prompt_id=str(prompt), prompt=f"x {prompt}", label=label, method=label, seed=0, tokens=4, steps=2,
                  accept_lengths=[1, 3], decode_s=seconds, metrics=metrics)  # fmt: skip


def going_on(root: Path, finished: int, more: int, sets: bool = False) -> Path:
    """A run that went on after it was summed up, and was killed; eagle-1 is twice, then four times
    as fast.
    """
    methods = [{"label": label, "method": label, "lossless": True} for label in ("ar", "eagle-1")]
    with RunFolder.open(
        root, run_record("r", {}, prompts={"count": 8}, methods=methods)
    ) as folder:
        for prompt in range(finished + more):
            for label, seconds in (("ar", 1.0), ("eagle-1", 0.5 if prompt < finished else 0.25)):
                folder.append(sample(label, prompt, seconds))
            if prompt + 1 == finished:
                whole = {
                    label: {"fid-tiny": Estimate(30.0, n=finished)} for label in ("ar", "eagle-1")
                }
                folder.finish(summarise(folder.figures, folder.run, whole if sets else None))
    return folder.path


@pytest.mark.usefixtures("quick_pictures")
def test_a_run_that_went_on_after_its_summary_is_reported_as_it_is_now(tmp_path):
    folder = going_on(tmp_path, 2, 2, sets=True)
    files = {
        file.name: file.read_text()
        for file in report([folder], formats=["md", "csv", "json", "tex", "html"]).files
    }
    rows = {row["label"]: row for row in csv.DictReader(files["table.csv"].splitlines())}
    assert rows["eagle-1"]["n"] == "4"
    total = 4 / (2 * 0.5 + 2 * 0.25)
    assert float(rows["eagle-1"]["speedup"]) == pytest.approx(total)
    shown = f"{total:.2f}×"
    assert all(shown in files[name] for name in ("table.md", "pairs.md", "report.html"))
    assert "images 8 (2 methods)" in files["table.md"]
    assert "fid-tiny" not in rows["eagle-1"]  # of fewer images than the row
    assert "8 of 16" in files["table.md"]
    assert json.loads(files["table.json"])["rows"][1]["n"] == 4


def test_frames_agree_with_each_other(tmp_path):
    frames = run_frames(going_on(tmp_path, 2, 1))
    assert (
        frames.summary.set_index("label")["n"].to_dict()
        == frames.samples.groupby("label").size().to_dict()
    )


def test_scores_that_a_killed_command_stored_are_in_the_table(tmp_path):
    folder = going_on(tmp_path, 2, 0)
    with RunFolder.existing(folder) as opened:  # ``score`` stores samples first, then the summary
        opened.replace(
            [s.model_copy(update={"metrics": {"clip-tiny": 0.5}}) for s in opened.samples]
        )
    assert load_run(folder).rows[0].value("clip-tiny") == pytest.approx(0.5)


def test_a_summary_of_the_samples_that_are_there_is_read_as_it_stands(tmp_path):
    folder = going_on(tmp_path, 2, 0, sets=True)
    before = load_run(folder)
    assert before.rows[0].value("fid-tiny") == 30.0
    assert [note for note in before.notes if "does not sum up" in note.text] == []
    assert re.fullmatch(r"\d+", str(read_run(folder).prompts.count))


def test_a_summary_of_an_older_version_is_computed_anew_and_keeps_figures_of_whole_sets(tmp_path):
    folder = going_on(tmp_path, 2, 0, sets=True)
    before = load_run(folder).rows
    known = json.loads((folder / "summary.json").read_text())
    del known["seal"]
    known["rows"][1]["figures"]["speedup"]["value"] = 99.0
    (folder / "summary.json").write_text(json.dumps(known))
    assert load_run(folder).rows == before


@pytest.mark.usefixtures("quick_pictures")
@pytest.mark.parametrize("how", ["edited", "edited with its samples"])
def test_an_edited_summary_is_never_shown(how, tmp_path):
    folder = going_on(tmp_path, 2, 0, sets=True)
    known = json.loads((folder / "summary.json").read_text())
    known["rows"][1]["figures"]["speedup"]["value"] = 99.0
    known["rows"][1]["figures"]["fid-tiny"]["value"] = 99.0
    if how == "edited with its samples":
        known["samples"] = samples_digest(folder)
    (folder / "summary.json").write_text(json.dumps(known))
    run = load_run(folder)
    assert run.rows[1].value("speedup") == pytest.approx(2.0)
    assert run.rows[1].value("fid-tiny") is None
    assert any("does not sum up" in note.text for note in run.notes)
    tables = report([folder], formats=["md", "csv", "json", "tex", "html"]).files
    assert not [file.name for file in tables if "99.0" in file.read_text()]


@pytest.mark.usefixtures("quick_pictures")
def test_a_repeated_line_counts_once_and_is_named(tmp_path):
    folder = going_on(tmp_path, 2, 0)
    before = load_run(folder).rows
    lines = (folder / "samples.jsonl").read_text().splitlines()
    again = json.loads(lines[1]) | {"accept_lengths": [1, 1, 1, 1], "steps": 4}
    (folder / "samples.jsonl").write_text("\n".join([*lines, json.dumps(again), ""]))
    run = load_run(folder)
    assert [row.figures for row in run.rows] == [row.figures for row in before]
    said = (
        "1 damaged line(s) of samples.jsonl were left out (line 5: '0|eagle-1|0' is there twice)."
    )
    assert said in [note.text for note in run.notes]
    page = next(file for file in report([folder], formats=["html"]).files)
    assert "is there twice" in page.read_text()


@pytest.mark.parametrize("seconds", [0.0, 1e-300])
def test_a_decode_in_no_time_is_left_out_and_named(seconds, tmp_path):
    folder = going_on(tmp_path, 2, 0)
    lines = (folder / "samples.jsonl").read_text().splitlines()
    lines[3] = json.dumps(json.loads(lines[3]) | {"decode_s": seconds})
    (folder / "samples.jsonl").write_text("\n".join([*lines, ""]))
    run = load_run(folder)
    assert run.rows[1].value("speedup") == pytest.approx(2.0)
    assert any(f"line 4: decode_s is {seconds:g} s" in note.text for note in run.notes)


@pytest.mark.parametrize("how", ["emptied", "deleted"])
def test_samples_that_are_gone_are_noticed(how, tmp_path):
    folder = going_on(tmp_path, 2, 0)
    (folder / "samples.jsonl").unlink()
    if how == "emptied":
        (folder / "samples.jsonl").touch()
    with pytest.raises(UserError, match=r"holds no samples \(samples\.jsonl is missing or empty"):
        report([folder])


def test_two_reports_at_once_write_whole_files(tmp_path, monkeypatch):
    """The second begins and ends while the first writes a file."""
    text = "first"
    sync = os.fsync

    def other_report(file: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        write_text(tmp_path / "table.md", "second")

    monkeypatch.setattr(os, "fsync", other_report)
    write_text(tmp_path / "table.md", text)
    assert (tmp_path / "table.md").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]
