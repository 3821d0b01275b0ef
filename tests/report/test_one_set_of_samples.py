"""Everything on a page, and in a frame, rests on the same samples, whenever the run was summed up
or stopped.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from run_records import run_record

from lanternbench.experiment import RunFolder, Sample, read_run
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import summarise
from lanternbench.report.frames import run_frames
from lanternbench.report.load import load_run
from lanternbench.report.write import report


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


def test_a_run_that_went_on_after_its_summary_is_reported_as_it_is_now(tmp_path):
    folder = going_on(tmp_path, 2, 2, sets=True)
    files = {
        file.name: file.read_text()
        for file in report([folder], formats=["md", "csv", "json", "tex", "html"])
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
    known = json.loads((folder / "summary.json").read_text())
    del known["samples"]  # of an older version
    (folder / "summary.json").write_text(json.dumps(known))
    assert load_run(folder) == before
    assert re.fullmatch(r"\d+", str(read_run(folder).prompts.count))
