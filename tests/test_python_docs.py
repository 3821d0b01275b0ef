"""The Python interface as docs/python.md shows it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

import lanternbench
from lanternbench.errors import UserError

DOC = Path(__file__).parents[1] / "docs" / "python.md"
RUN = Path(__file__).parent / "data" / "run_of_flat_figures"


def test_every_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    shutil.copytree(RUN, tmp_path / "results" / "demo")
    monkeypatch.chdir(tmp_path)
    known: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.S)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, str(DOC), "exec"), known)
    assert (tmp_path / "circle.png").is_file()
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {"table.md", "table.csv"}
    assert "guidance" not in capsys.readouterr().err


def test_the_frames_hold_what_the_folder_holds():
    run = lanternbench.load_run(RUN)
    assert isinstance(run.summary, pd.DataFrame)
    assert list(run.summary["label"]) == ["ar", "eagle-1", "lantern δ=0.1"]
    assert len(run.samples) == 6
    ours = run.samples[run.samples["label"] == "eagle-1"]
    theirs = run.samples[run.samples["label"] == "ar"]
    assert theirs["decode_s"].sum() / ours["decode_s"].sum() == pytest.approx(run.summary["speedup"][1])
    assert ours["clip-tiny"].mean() == pytest.approx(run.summary["clip-tiny"][1])


def test_no_such_run_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no run 'nothing'"):
        lanternbench.load_run("nothing")
