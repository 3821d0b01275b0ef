"""``make demo``: on a slow machine fewer images, and always a file to open and a command that
works.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, two_layers
from typer.testing import CliRunner

from lanternbench import experiment as results
from lanternbench.cli.main import app
from lanternbench.cli.output import program as program_name
from lanternbench.experiment import config, worker
from lanternbench.experiment import runner as sweeps
from lanternbench.models.target import Target

SWEEP = {
    "methods": ["cool-sd"],
    "num_prompts": 3,
    "metrics": [],
    "baseline": False,
    "target": "tiny",
}


@pytest.fixture(scope="module")
def shallow_4x4() -> Target:
    return two_layers(side=4)


@pytest.fixture
def smaller_images(shallow_4x4, monkeypatch):
    """Runs in this process load ``shallow_4x4``: many images are drawn here, and none is looked
    at.
    """
    monkeypatch.setattr(worker, "load_with_drafter", lambda *_: shallow_4x4)


@pytest.mark.slow
def test_a_time_budget_completes_one_prompt_of_one_method_and_the_same_command_goes_on(
    smaller_images, tmp_path
):
    asked = config.sweep(SWEEP | {"methods": ["eagle-1", "cool-sd"], "num_prompts": 2})
    stored = []
    for _ in range(4):
        path, summary = sweeps.run(asked, tmp_path, watch=sweeps.Callbacks(budget_s=0.0))
        stored.append([s.method for s in results.read_samples(path)])
        left_out = any(
            "Left out to keep the time budget: cool-sd" in note.text for note in summary.notes
        )
        assert left_out == (len(stored) < 3)
    assert stored[-1] == ["eagle-1", "eagle-1", "cool-sd", "cool-sd"]
    assert [len(methods) for methods in stored] == [1, 2, 3, 4]
    whole = sweeps.run(asked, tmp_path / "whole")[0]
    tokens = [{s.key: s.token_ids for s in results.read_samples(p)} for p in (path, whole)]
    assert tokens[0] == tokens[1]


def test_a_time_budget_completes_a_whole_batch(smaller_images, tmp_path):
    path, _ = sweeps.run(
        config.sweep(SWEEP | {"num_prompts": 4, "batch": 2}),
        tmp_path,
        watch=sweeps.Callbacks(budget_s=0.0),
    )
    assert len(results.read_samples(path)) == 2


@pytest.mark.slow
def test_an_unfinished_run_says_so_in_the_first_line_of_terminal_and_page(
    smaller_images, quick_pictures, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text("methods: [eagle-1]\nnum_prompts: 2\nmetrics: []\n")
    for budget, finished in ((["--time-budget", "0.001"], False), ([], True)):
        done = CliRunner().invoke(app, ["sweep", "small.yaml", *budget], catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        assert ("2 of 4 images are finished; the same command continues" in done.stderr) == (
            not finished
        )
        assert len([line for line in done.stderr.splitlines() if line.startswith("· ")]) <= (
            4 if finished else 5
        )
        shown = CliRunner().invoke(app, ["report"], catch_exceptions=False).stdout
        page = next((tmp_path / "results").glob("*/report/table.md")).read_text().splitlines()
        for first in (
            done.stdout.splitlines()[0],
            shown.splitlines()[0],
            page[2].removeprefix("- "),
        ):
            assert (
                "Preliminary, do not quote: the run is not finished (2 of 4 samples)" in first
            ) == (not finished)
        fastest = next(line for line in page if line.startswith("- Fastest lossless method"))
        assert finished or "(preliminary)" in fastest


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_demo_ends_with_the_page_and_a_command_that_works_here(tmp_path):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "Makefile", tmp_path)
    program = tmp_path / "bin" / "lanternbench"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom lanternbench.__main__ import main\nmain()\n")
    program.chmod(0o755)
    (tmp_path / ".installed").touch()
    command = ["make", "-o", "./.installed", "demo", "VENV=.", "MINUTES=0.001"]
    # a make that runs this test hands its own settings down, and then the inner one says which
    # folder it leaves
    outside = {
        k: v
        for k, v in os.environ.items()
        if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
    }
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=500, env=outside
    )
    assert done.returncode == 0, done.stderr
    page, then = done.stdout.splitlines()[-2:]
    assert (tmp_path / page.removeprefix("Open ").removesuffix(" in a browser.")).is_file()
    named = then.removeprefix("Then: ").split()
    assert named[1:] == ["run", "--method", "cool-sd", "--lambda", "2"]
    subprocess.run(
        [named[0], "run", "--help"], cwd=tmp_path, check=True, capture_output=True, timeout=120
    )
    assert "next: bin/lanternbench report" in done.stderr


def test_the_program_is_named_as_the_shell_finds_it(tmp_path, monkeypatch):
    script = tmp_path / "bin" / "lanternbench"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert program_name() == "bin/lanternbench"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program_name() == "lanternbench"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert program_name() == str(script)
    monkeypatch.setattr(sys, "argv", ["/somewhere/lanternbench/__main__.py"])
    assert program_name() == "python -m lanternbench"
