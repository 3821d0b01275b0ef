"""Run folders that were edited, planted or deleted under a run: one sentence, no hang, no file
elsewhere touched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import mistake, slow_but
from run_records import run_record

from lanternbench.cli.main import main
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample, read_run
from lanternbench.experiment.run_folder import Device
from lanternbench.measure.figures import Figures
from lanternbench.measure.samples import sample_key
from lanternbench.measure.summary import summarise
from lanternbench.prompts import load as load_prompts

LINK = re.compile(r"(?<!\\)\]\(javascript:")  # in Markdown
pytestmark = pytest.mark.usefixtures("in_time")


def sample(prompt_id: str = "1", label: str = "ar", **changes: Any) -> Sample:
    fields = {
        "key": sample_key(prompt_id, label, 0), "prompt_id": prompt_id, "prompt": f"a fox {prompt_id}", "label": label,
        "method": label, "seed": 0, "tokens": 5, "steps": 2, "accept_lengths": [3, 2], "tree_depths": [4, 4],
        "decode_s": 0.5, "token_ids": [1, 2, 3, 4, 5], "stats": {"log_prob": -1.0},
    }  # fmt: skip
    return Sample(**(fields | changes))


def made(root: Path, name: str = "r") -> Path:
    """A finished run of two methods and three prompts."""
    methods = [{"label": "ar", "method": "ar"}, {"label": "eagle-1", "method": "eagle-1"}]
    with RunFolder.open(
        root, run_record(name, {"seed": 0}, target={"name": "tiny"}, methods=methods)
    ) as run:
        for prompt in "123":
            for label in ("ar", "eagle-1"):
                run.append(sample(prompt, label))
        run.finish(summarise(Figures(run.samples), run.run))
    return run.path


def said(monkeypatch, capfd, *args: str) -> tuple[int, str, str]:
    """Exit code and output of a command, which must say one sentence or succeed."""
    monkeypatch.setattr(sys, "argv", ["lanternbench", *args])
    with pytest.raises(SystemExit) as exit_:
        main()
    out, err = capfd.readouterr()
    code = int(exit_.value.code or 0)
    assert code in (0, 2), err
    assert "Traceback" not in err
    assert code == 0 or len(err.strip().splitlines()) == 1
    return code, out, err


# --- writing ---


def test_a_deleted_lock_lets_no_second_writer_in(tmp_path):
    with RunFolder.open(tmp_path, run_record("r", {})) as run:
        (run.path / ".lock").unlink()
        with pytest.raises(UserError, match="in use by another process"):
            RunFolder.open(tmp_path, run_record("r", {}))
        with pytest.raises(UserError, match="in use by another process"):
            RunFolder.existing(run.path)
    RunFolder.open(tmp_path, run_record("r", {})).close()


@pytest.mark.parametrize("how", ["deleted", "replaced", "folder deleted"])
def test_samples_deleted_under_a_run_end_it_with_a_sentence(how, tmp_path):
    with RunFolder.open(tmp_path, run_record("r", {})) as run:
        run.append(sample("1"))
        if how == "folder deleted":
            shutil.rmtree(run.path)
        else:
            (run.path / "samples.jsonl").unlink()
        if how == "replaced":
            (run.path / "samples.jsonl").write_text("")
        for act in (lambda: run.append(sample("2")), lambda: run.finish(None)):
            with pytest.raises(UserError, match="deleted or replaced"):
                act()


@pytest.mark.parametrize(
    "name", ["run.json.part", "samples.jsonl", "devices.jsonl", "summary.json.part", ".lock"]
)
def test_a_planted_link_is_not_followed(name, tmp_path):
    (tmp_path / "victim").write_text("precious")
    path = made(tmp_path)
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(tmp_path / "victim")
    with suppress(UserError), RunFolder.open(tmp_path, run_record("r", {"seed": 0})) as run:
        run.append(sample("9"), where=Device(key="9|ar|0", node="x"))
    assert (tmp_path / "victim").read_text() == "precious"


# --- reading ---


@pytest.mark.parametrize("name", ["run.json", "samples.jsonl", "summary.json"])
@pytest.mark.parametrize(
    "args", [("report",), ("report", "r"), ("compare", "r", "r"), ("score", "r"), ("score",)]
)
def test_a_pipe_in_a_run_folder_keeps_nobody_waiting(name, args, tmp_path, monkeypatch, capfd):
    path = made(tmp_path / "results")
    (path / name).unlink()
    os.mkfifo(path / name)
    monkeypatch.chdir(tmp_path)
    if args[0] == "report":
        args = (*args, "--format", "md")
    said(monkeypatch, capfd, *args)
    if name != "summary.json":
        with pytest.raises(UserError):
            RunFolder.open(tmp_path / "results", run_record("r", {"seed": 0}))


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "folder"])
def test_prompts_that_are_no_file_keep_nobody_waiting(kind, tmp_path, monkeypatch, capfd):
    path = tmp_path / "prompts.txt"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    spec = "/dev/zero" if kind == "device" else str(path)
    with pytest.raises(UserError):
        load_prompts(spec)
    with pytest.raises(UserError):
        load_prompts(f"coco2017:{path}")
    assert mistake(monkeypatch, capfd, "prompts", spec)


SAMPLES: dict[str, dict[str, Any]] = {
    "a token of 2^40": {"token_ids": [2**40, 2, 3, 4, 5]},
    "a negative token": {"token_ids": [-1, 2, 3, 4, 5]},
    "a log-probability of -1e6": {"stats": {"log_prob": -1e6}},
    "a log-probability of 1e6": {"stats": {"log_prob": 1e6}},
    "a key of another prompt": {"prompt_id": "2"},
    "a key of another method": {"label": "sjd"},
    "a key of another seed": {"seed": 7},
    "a seed of 2^70": {"seed": 2**70, "key": f"1|ar|{2**70}"},
    "an absurd accepted length": {"accept_lengths": [2**50, 2], "tokens": 2**50 + 2},
    "a negative accepted length": {"accept_lengths": [-3, 8]},
    "an absurd depth": {"tree_depths": [2**62, 1]},
    "an absurd size": {"tree_nodes": [10**30, 1]},
    "a latency of 1e308": {"decode_s": 1e308},
    "a negative latency": {"decode_s": -1.0},
    "a latency of nothing": {"decode_s": 0.0},
    "a step of 1e308 s": {"step_s": [1e308, 1e308]},
    "negative steps": {"step_s": [-1.0, -1.0]},
    "a metric of 1e308": {"metrics": {"clip-tiny": 1e308}},
    "a metric of -1e308": {"metrics": {"clip-tiny": -1e308}},
    "a metric with an odd name": {"metrics": {"=HYPERLINK(1)\x1b[2J": 1.0}},
    "a loss of 1e308": {"fidelity_loss": 1e308},
    "a phase of 1e308": {"phases": {"draft_s": 1e308, "verify_s": 1e308}},
    "memory of 1e308": {"peak_memory_mb": 1e308},
    "options nested deep": {"options": {"a": [[[[[{"b": [1]}]]]]]}},
    "a number as prompt": {"prompt": 3},
    "an image elsewhere": {"image": "images/../../x.png"},
}


QUICK = ("a token of 2^40", "a key of another prompt", "a latency of 1e308", "options nested deep")


@pytest.mark.parametrize("fault", slow_but(QUICK, SAMPLES))
def test_an_edited_sample_is_a_sentence_or_a_report(fault, tmp_path, monkeypatch, capfd):
    path = made(tmp_path / "results")
    lines = (path / "samples.jsonl").read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | SAMPLES[fault])
    (path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    code, _, _ = said(monkeypatch, capfd, "report", "--format", "md,csv,tex,json,html")
    said(monkeypatch, capfd, "compare", "r", "r")
    with (
        suppress(UserError),
        RunFolder.open(tmp_path / "results", run_record("r", {"seed": 0})) as run,
    ):
        run.finish(summarise(Figures(run.samples), run.run))
    written = (path / "summary.json").read_text()
    assert "Infinity" not in written
    assert "NaN" not in written
    if "key" in fault or "2^40" in fault or "2^70" in fault:
        page = (path / "report" / "table.md").read_text()
        assert "1 damaged line" in page, code


RUNS: dict[str, Any] = {
    "an identity of markup": {"run_id": "<script>alert(1)</script>[x](javascript:alert(1))"},
    "an identity of escapes": {"run_id": "\x1b[2J\x1b]0;owned\x07"},
    "an identity that is a number": {"run_id": 3},
    "a config of 1e308": {"config": {"guidance": 1e308, "temperature": 10**400}},
    "labels that are numbers": {"methods": [{"label": 3}, {"label": None}, {}]},
    "labels that are lists": {"methods": [{"label": [1]}, {"label": {"a": 1}}]},
    "an environment of words": {
        "environment": {"cores": "many", "workers": "two", "gpus": 3, "device": 4}
    },
    "resumed in nothing": {"resumed": [{"at": None, "environment": 5}]},
    "a target of lists": {
        "target": {"name": [1], "grid": [[1], -5], "weights": [1], "evaluators": 3}
    },
    "an absurd grid": {"target": {"name": "tiny", "grid": [10**9, 10**9]}},
    "prompts of words": {"prompts": {"count": "many", "notes": 5, "hash": 3, "source": 4}},
    "times that are objects": {"created": {"a": 1}},
    "nested deep": {
        "config": json.loads("[" * 500 + "]" * 500) and {"a": json.loads("[" * 500 + "]" * 500)}
    },
}


@pytest.mark.parametrize("fault", slow_but(["an absurd grid", "nested deep"], RUNS))
def test_an_edited_run_is_a_sentence_or_a_report(fault, tmp_path, monkeypatch, capfd):
    path = made(tmp_path / "results")
    run = read_run(path).written() | RUNS[fault]
    (path / "run.json").write_text(json.dumps(run))
    monkeypatch.chdir(tmp_path)
    _, out, err = said(monkeypatch, capfd, "report", "r", "--format", "md,csv,html")
    assert "\x1b" not in out + err
    said(monkeypatch, capfd, "report", "r", "r", "--format", "md", "--out", "x")
    said(monkeypatch, capfd, "compare", "r", "r")
    for page in path.glob("report/*"):
        if page.suffix in (".md", ".html"):
            text = page.read_text()
            assert "<script>alert" not in text
            assert page.suffix == ".html" or not LINK.search(text)
            assert "\x1b" not in text


SUMMARIES: dict[str, Any] = {
    "a figure of 1e308": {"figures": {"speedup": {"value": 1e308, "lo": -1e308, "hi": 1e308}}},
    "an accepted length of 1e308": {
        "figures": {"accept_len": {"value": 1e308}, "fidelity_loss": {"value": 1e308}}
    },
    "a number of 400 digits": {"figures": {"accept_len": {"value": 10**400, "n": 10**400}}},
    "images without number": {"n": 1e308},
    "an absurd histogram": {"accept_histogram": [1e308, -1, None, "x"] * 10},
    "positions of 1e308": {"accept_len_by_position": [1e308, None, "x", [1]]},
    "figures in a list": {"figures": [1, 2]},
    "a label of escapes": {"label": "\x1b[2J=1+1|<b>", "method": "\x1b]0;x\x07"},
    "options in a list": {"options": [1]},
    "phases of 1e308": {"phases": {"draft": 1e308, "verify": -1e308}},
    "a temperature of 1e308": {"temperature": 1e308},
}


@pytest.mark.parametrize("fault", slow_but(["a figure of 1e308", "a label of escapes"], SUMMARIES))
def test_an_edited_summary_is_a_sentence_or_a_report(
    fault, quick_pictures, tmp_path, monkeypatch, capfd
):
    path = made(tmp_path / "results")
    summary = json.loads((path / "summary.json").read_text())
    for row in summary["rows"]:
        row |= SUMMARIES[fault]
    summary["notes"].append(
        {"kind": "info", "metric": None, "text": "[x](javascript:alert(1)) <img src=x> \x1b[2J"}
    )
    summary["notes"].append({"kind": ["info"], "metric": None, "text": "a kind that is none"})
    (path / "summary.json").write_text(json.dumps(summary))
    monkeypatch.chdir(tmp_path)
    _, out, err = said(monkeypatch, capfd, "report", "r")
    assert "\x1b" not in out + err
    table = path / "report" / "table.csv"
    if table.exists():
        assert "\n=" not in table.read_text()
        assert not LINK.search((path / "report" / "table.md").read_text())
        page = (path / "report" / "report.html").read_text()
        assert "<img src=x>" not in page
        assert 'href="javascript:' not in page
