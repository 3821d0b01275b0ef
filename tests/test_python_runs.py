"""``lanternbench.run``, ``compare`` and ``report`` do what the commands do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import DATA
from typer.testing import CliRunner

import lanternbench
from lanternbench.api import Model
from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.experiment import read_samples

RUN = DATA / "run_of_flat_figures"
NOTHING: Any = None
NUMBER: Any = 3


def test_run_continues_the_folder_that_the_command_began(small_images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ["run", "-m", "cool-sd", "--lambda", "2", "-n", "2", "--metrics", "clip", "--json"]
    done = CliRunner().invoke(app, args, catch_exceptions=False)
    before = Path(json.loads(done.stdout)["run"])
    stored = (before / "samples.jsonl").read_bytes()
    seen: list[tuple[int, int]] = []

    def note(done: int, of: int, what: str) -> None:
        seen.append((done, of))

    for methods, options in (("cool-sd", {"lam": 2}), ([{"method": "cool-sd", "lambda": 2}], {})):
        run = lanternbench.run(methods, progress=note, num_prompts=2, metrics="clip", **options)
        assert run.path == before
    assert (before / "samples.jsonl").read_bytes() == stored
    assert seen[-1] == (4, 4)
    assert list(run.summary["label"]) == ["ar", "cool-sd λ=2"]
    assert repr(run).startswith(f"{before.name}: 4 images of tiny; cool-sd λ=2 ")
    assert "\n" not in repr(run)


def test_a_list_of_an_option_is_a_grid_and_place_and_name_are_kept(small_images, tmp_path):
    run = lanternbench.run(
        {"method": "cool-sd", "lam": [1.1, 2]},
        num_prompts=1, metrics=[], baseline=False, out=tmp_path / "here", name="grid",
    )  # fmt: skip
    assert run.path.parent == tmp_path / "here"
    assert run.path.name.startswith("grid-")
    assert {sample.label for sample in read_samples(run.path)} == {"cool-sd λ=1.1", "cool-sd λ=2"}


def test_compare_gives_the_changes_the_gate_and_the_margins_of_the_command():
    found = lanternbench.compare(RUN, str(RUN), fail_if=["speedup<-5%"], not_worse={"clip": 0.1})
    args = ["compare", str(RUN), str(RUN), "--fail-if", "speedup<-5%", "--not-worse", "clip=0.1"]
    done = CliRunner().invoke(app, [*args, "--json"], catch_exceptions=False)
    said = json.loads(done.stdout)
    assert found.passed is said["gate"]["passed"] is (done.exit_code == 0)
    assert [change["figure"] for change in said["changes"]] == list(found.changes["figure"])
    assert [test["conclusion"] for test in said["not_worse"]] == ["not worse"] * 3
    assert found.changes["difference_lo"].notna().all()
    assert "gate: passed" in repr(found)
    assert "ar, clip-tiny: not worse by more than 0.1 (95 %)" in repr(found)


def test_report_writes_what_the_command_writes(tmp_path):
    written = lanternbench.report(RUN, out=tmp_path / "a", formats="md,csv", names={"ar": "AR"})
    (tmp_path / "names.yaml").write_text("ar: AR\n")
    args = ["report", str(RUN), "--format", "md,csv", "--names", str(tmp_path / "names.yaml")]
    CliRunner().invoke(app, [*args, "--out", str(tmp_path / "b")], catch_exceptions=False)
    for file in written.files:
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    assert len(written.files) == len(list((tmp_path / "b").iterdir()))
    assert isinstance(written.summary, pd.DataFrame)
    assert written.summary["label"].iloc[0] == "AR"
    assert repr(written).endswith(f"the last is {written.files[-1]}")


def test_report_is_callable_whether_its_package_is_imported_or_not():
    code = f"""
import sys, lanternbench
assert not {{"torch", "pandas"}} & sys.modules.keys()
first = lanternbench.report
for report in (first, first, None):
    try:
        (report or lanternbench.report)({str(RUN)!r}, formats="mp3")
    except lanternbench.errors.UserError as error:
        print(error)
assert lanternbench.report.write.FORMATS
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.count("no report format 'mp3'") == 3, done.stderr


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a misspelt setting": (
        lambda: lanternbench.run("ar", num_promts=3),
        "no setting 'num_promts': did you mean 'num_prompts'?",
    ),
    "no method": (lambda: lanternbench.run([]), "'methods' is wrong"),
    "methods None": (lambda: lanternbench.run(NOTHING), "must be a mapping"),
    "a number as method": (lambda: lanternbench.run([NUMBER]), "must be a mapping"),
    "an unknown method": (lambda: lanternbench.run("egle-1"), "did you mean 'eagle-1'?"),
    "a text as number": (lambda: lanternbench.run("ar", num_prompts="x"), "whole number"),
    "a number as list": (lambda: lanternbench.run("ar", metrics=3), "must be a list"),
    "a number as folder": (
        lambda: lanternbench.run("ar", out=3),
        "'out' is wrong (must be a path",
    ),
    "no workers": (lambda: lanternbench.run("ar", workers=0), "'workers' is wrong"),
    "an unknown metric of a margin": (
        lambda: lanternbench.run("ar", not_worse={"beauty": 1}),
        "no metric called 'beauty'",
    ),
    "run None": (lambda: lanternbench.compare(RUN, NOTHING), "None is no run"),
    "a misspelt gate": (lambda: lanternbench.compare(RUN, RUN, fail_iff=[]), "has no setting"),
    "a gate that is no list": (lambda: lanternbench.compare(RUN, RUN, fail_if=3), "a list"),
    "a report of a number": (lambda: lanternbench.report(NUMBER), "3 is no run"),
    "a misspelt option": (lambda: lanternbench.report(RUN, form="md"), "no setting 'form'"),
    "frames of None": (lambda: lanternbench.load_run(NOTHING), "None is no run"),
    "a number as target": (lambda: lanternbench.load(NUMBER), "'target' is wrong (must be text)"),
    "a number as device": (lambda: lanternbench.load(device=NUMBER), "'device' is wrong"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_a_sentence(case, tmp_path, monkeypatch):
    call, says = MISTAKES[case]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as told:
        call()
    assert says in str(told.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        ([], {}, "an empty list is no prompt"),
        (None, {}, "None is no prompt"),
        (3, {}, "3 is no prompt"),
        (["a red star", 3], {}, "3 is no prompt"),
        ("a red star", {"method": None}, "None is no method"),
        ("a red star", {"seed": "x"}, "'seed' is wrong (must be a whole number)"),
        ("a red star", {"sed": 1}, "has no option 'sed'"),
        ("a red star", {"temperature": "hot"}, "'temperature' is wrong (must be a number)"),
    ],
)
def test_a_wrong_argument_of_generate_is_a_sentence(prompt, options, says, shallow_8x8):
    with pytest.raises(UserError) as told:
        Model(shallow_8x8).generate(prompt, **options)
    assert says in str(told.value)


def test_a_model_and_its_images_have_a_short_repr(shallow_8x8):
    model = Model(shallow_8x8)
    assert repr(model) == "Model('tiny')"
    captions: Any = pd.Series(["a red star"])  # as a column of a table has them
    (image,) = model.generate(captions)
    assert repr(image).startswith("Result(64 tokens in 63 steps, τ = 1.00, decoded in ")
