"""The run folder: a crash costs nothing that was finished, and nothing is ever overwritten."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from run_records import run_record
from safetensors.torch import load_file

from lanternbench import experiment as results
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample, sample_key
from lanternbench.experiment.environment import environment
from lanternbench.measure.run_record import Environment
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row, Summary, read_summary
from lanternbench.notes import Note
from lanternbench.utils.json_values import config_hash, differences

CONFIG = {"methods": [{"method": "ar"}, {"name": "cool-sd", "lam": 2.0}], "seed": 1}


def sample(prompt_id: str = "1", label: str = "ar", seed: int = 0, **changes) -> Sample:
    fields = {
        "key": sample_key(prompt_id, label, seed),
        "prompt_id": prompt_id,
        "prompt": "a 🦊 <b>",
        "label": label,
        "method": label.split()[0],
        "seed": seed,
        "tokens": 5,
        "steps": 2,
        "accept_lengths": [3, 2],
        "tree_depths": [4, 4],
        "decode_s": 0.5,
        "token_ids": [1, 2, 3, 4, 5],
    }
    return Sample(**(fields | changes))


def image(colour: str = "red") -> Image.Image:
    return Image.new("RGB", (4, 4), colour)


# --- storing ---


def test_a_stored_run_reads_back_as_it_was(tmp_path):
    with RunFolder.open(
        tmp_path, run_record("r", CONFIG, environment={"torch": "2"}, target={"name": "tiny"})
    ) as run:
        stored = run.append(sample(metrics={"clip-tiny": 0.3, "fid": float("nan")}), image())
        run.append(sample("2"))
        row = Row(
            label="ar",
            method="ar",
            n=2,
            figures={"fid": Estimate(float("inf"), n=2), "clip": Estimate(0.3, 0.2, 0.4, 2, 0.5)},
        )
        run.finish(Summary(rows=[row], notes=[Note("info", "fid", "few")], sets=["fid"]))
    assert results.read_samples(run.path) == [stored, sample("2", setting=stored.setting)]
    assert stored.metrics == {"clip-tiny": 0.3, "fid": None}
    assert Image.open(run.path / str(stored.image)).getpixel((0, 0)) == (255, 0, 0)
    recorded = results.read_run(run.path)
    assert recorded.run_id == "r"
    assert recorded.config.written() == CONFIG
    assert recorded.target.written() == {"name": "tiny"}
    assert recorded.config_hash == config_hash(CONFIG)
    tokens = load_file(run.path / "tokens.safetensors")
    assert set(tokens) == {"1|ar|0", "2|ar|0"}
    assert tokens["1|ar|0"].dtype == torch.int32
    assert tokens["1|ar|0"].tolist() == [1, 2, 3, 4, 5]
    written = json.loads((run.path / "summary.json").read_text())
    assert written["rows"][0]["figures"]["clip"] == {
        "value": 0.3,
        "lo": 0.2,
        "hi": 0.4,
        "n": 2,
        "p": 0.5,
    }
    (note,) = written["notes"]
    assert (note["kind"], note["metric"], note["text"]) == ("info", "fid", "few")
    read = read_summary(run.path)
    assert read.rows == [row]
    assert row.figure("fid") == Estimate(None, n=2)
    assert (read.notes, read.sets) == ([Note("info", "fid", "few")], ["fid"])
    assert not list(run.path.rglob("*.part"))


def test_a_finished_sample_is_on_disk_at_once_and_never_stored_twice(tmp_path):
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        run.append(sample())
        assert json.loads((run.path / "samples.jsonl").read_bytes())["key"] == "1|ar|0"
        with pytest.raises(ValueError, match="stored already"):
            run.append(sample())
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        assert run.samples.keys == {"1|ar|0"}
        assert list(run.samples) == [sample()]


@pytest.mark.parametrize(
    "prompt_id",
    [
        "../../etc/passwd",
        "/",
        "..",
        "",
        "a" * 500,
        "con",
        "日本語",
        "🦊",
        "a\nb",
        ".hidden",
        "a/b\\c:d*?",
    ],
)
def test_any_prompt_id_gives_a_file_name_inside_the_folder(tmp_path, prompt_id):
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        stored = run.append(sample(prompt_id, "cool-sd λ=2"), image())
        other = run.append(sample(prompt_id + "!", "cool-sd λ=2"), image())
    assert stored.image != other.image
    path = run.path / str(stored.image)
    assert path.resolve().parent == (run.path / "images").resolve()
    assert path.name.isascii()
    assert len(path.name) < 120
    assert path.is_file()


@pytest.mark.parametrize(
    "changes",
    [
        {"accept_lengths": [3, 3]},
        {"accept_lengths": [5]},
        {"tree_depths": [1]},
        {"decode_s": float("nan")},
        {"image": "images/../../x.png"},
        {"image": "/etc/passwd"},
    ],
)
def test_a_sample_that_breaks_the_format_is_refused(changes):
    with pytest.raises(ValidationError):
        sample(**changes)


def test_what_another_version_stored_is_kept(tmp_path):
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        run.append(sample())
    line = json.loads((run.path / "samples.jsonl").read_text()) | {"later": {"field": 1}}
    (run.path / "samples.jsonl").write_text(json.dumps(line) + "\n")
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        run.replace(run.samples)
    assert json.loads((run.path / "samples.jsonl").read_text())["later"] == {"field": 1}


@pytest.mark.parametrize(
    "spoilt",
    [{"environment": 3}, {"config": []}, {"methods": {}}, {"resumed": [1]}, {"prompts": "demo"}],
)
def test_a_run_json_of_wrong_kinds_is_one_sentence(tmp_path, spoilt):
    RunFolder.open(tmp_path, run_record("r", CONFIG)).close()
    path = tmp_path / "r" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | spoilt))
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        RunFolder.open(tmp_path, run_record("r", CONFIG))


# --- crashes ---


@pytest.mark.parametrize("torn", [b'{"key": "2|ar', b'{"key": \n', b"\0\0\0\0", b"\xff\n", b"{}"])
def test_a_torn_last_line_is_dropped_and_the_run_goes_on(tmp_path, torn):
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        run.append(sample())
    with open(run.path / "samples.jsonl", "ab") as file:
        file.write(torn)
    assert results.read_samples(run.path) == [sample()]
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        assert run.samples.keys == {"1|ar|0"}
        run.append(sample("2"))
    assert results.read_samples(run.path) == [sample(), sample("2")]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        for name in "123":
            run.append(sample(name))
    lines = (run.path / "samples.jsonl").read_bytes().splitlines(keepends=True)
    for bad in (b"{broken\n", b'{"key": "x"}\n', lines[0], b"[]\n"):
        (run.path / "samples.jsonl").write_bytes(lines[0] + bad + lines[2])
        with pytest.raises(UserError, match=r"samples\.jsonl line 2"):
            RunFolder.open(tmp_path, run_record("r", CONFIG))
    # the fix in the message works, the lock is free
    (run.path / "samples.jsonl").write_bytes(lines[0] + lines[2])
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        assert len(run.samples.keys) == 2


def test_a_killed_process_loses_no_finished_sample_and_leaves_no_lock(tmp_path):
    child = os.fork()
    if child == 0:
        try:
            run = RunFolder.open(tmp_path, run_record("r", CONFIG))
            run.append(sample(), image())
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        (stored,) = run.samples
        assert Image.open(run.path / str(stored.image)).size == (4, 4)


def test_a_full_disk_is_one_sentence_and_leaves_whole_lines_only(tmp_path, monkeypatch):
    run = RunFolder.open(tmp_path, run_record("r", CONFIG))
    run.append(sample())
    write = os.write

    def half(fd, data):
        return write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(UserError, match="No space left"):
        run.append(sample("2"))
    monkeypatch.undo()
    run.append(sample("3"))
    run.close()
    assert [s.prompt_id for s in results.read_samples(run.path)] == ["1", "3"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out"):
        RunFolder.open(tmp_path / "file", run_record("r", CONFIG))

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(UserError, match="Permission denied"):
        RunFolder.open(tmp_path, run_record("r", CONFIG))


# --- resuming ---


def test_another_configuration_is_refused_and_named(tmp_path):
    RunFolder.open(tmp_path, run_record("r", CONFIG, prompts={"hash": "aa"})).close()
    other = {"methods": ["ar"], "seed": 2}
    with pytest.raises(UserError, match=r"seed: 1 -> 2.*--fresh"):
        RunFolder.open(tmp_path, run_record("r", other))
    with pytest.raises(UserError, match=r"prompts\.hash: aa -> bb"):
        RunFolder.open(tmp_path, run_record("r", CONFIG, prompts={"hash": "bb"}))
    # order is no change
    RunFolder.open(
        tmp_path, run_record("r", dict(reversed(CONFIG.items())), prompts={"hash": "aa"})
    ).close()


def test_fresh_starts_beside_and_never_deletes(tmp_path):
    with RunFolder.open(tmp_path, run_record("r", CONFIG), fresh=True) as run:
        run.append(sample())
    names = []
    for _ in range(2):
        with RunFolder.open(tmp_path, run_record("r", {"seed": 9}), fresh=True) as again:
            names.append(again.path.name)
            assert again.samples.keys == set()
            assert again.run.run_id == again.path.name
    assert names == ["r-2", "r-3"]
    assert results.read_samples(tmp_path / "r") == [sample()]


def test_two_processes_cannot_write_one_run(tmp_path):
    with RunFolder.open(tmp_path, run_record("r", CONFIG)):
        with pytest.raises(UserError, match="in use by another process"):
            RunFolder.open(tmp_path, run_record("r", CONFIG))
        with pytest.raises(UserError, match="in use"):
            RunFolder.existing(tmp_path / "r")
    RunFolder.open(tmp_path, run_record("r", CONFIG)).close()


def test_somebody_elses_folder_is_left_alone(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match=r"no run folder \(it has thesis\.tex\)"):
        RunFolder.open(tmp_path, run_record("r", CONFIG))


@pytest.mark.parametrize("run_id", ["../x", "/abs", "..", "", "a/b", "a\\b", "a\nb", "a\0b"])
def test_a_run_name_cannot_leave_the_results_folder(tmp_path, run_id):
    with pytest.raises(UserError, match="no run name"):
        RunFolder.open(tmp_path / "results", run_record(run_id, CONFIG))
    assert not (tmp_path / "results").exists()


def test_resuming_elsewhere_is_recorded(tmp_path):
    RunFolder.open(tmp_path, run_record("r", CONFIG, environment={"cpu": "a"})).close()
    RunFolder.open(tmp_path, run_record("r", CONFIG, environment={"cpu": "a"})).close()
    # and made nothing
    RunFolder.open(tmp_path, run_record("r", CONFIG, environment={"cpu": "a", "gpus": []})).close()
    with RunFolder.open(tmp_path, run_record("r", CONFIG, environment={"cpu": "b"})) as folder:
        folder.append(sample())
        folder.append(sample("2"))
    run = results.read_run(tmp_path / "r")
    assert run.environment == Environment(cpu="a")
    assert [entry.environment for entry in run.resumed] == [None, None, Environment(cpu="b")]


def test_a_sample_names_the_setting_in_which_it_was_timed(tmp_path):
    for number, where in enumerate(
        [{"threads": 1}, {"threads": 1, "commit": "x"}, {"threads": 2}, {}]
    ):
        with RunFolder.open(tmp_path, run_record("r", CONFIG, environment=where)) as folder:
            folder.append(sample(str(number)))
    first, second, third, last = (s.setting for s in results.read_samples(tmp_path / "r"))
    assert first == second != third
    assert last is None


def test_a_clock_of_the_moment_is_no_other_environment(tmp_path):
    gpu = {"name": "A100", "sm_clock_mhz": "1200"}
    RunFolder.open(tmp_path, run_record("r", CONFIG, environment={"gpus": [gpu]})).close()
    with RunFolder.open(
        tmp_path, run_record("r", CONFIG, environment={"gpus": [gpu | {"sm_clock_mhz": "900"}]})
    ) as folder:
        folder.append(sample())
    assert results.read_run(folder.path).resumed[0].environment is None


def test_scoring_again_replaces_the_samples_as_a_whole(tmp_path):
    with RunFolder.open(tmp_path, run_record("r", CONFIG)) as run:
        run.append(sample())
    with RunFolder.existing(run.path) as run:
        run.replace([one.model_copy(update={"metrics": {"clip": 0.3}}) for one in run.samples])
        run.append(sample("2"))
    assert [s.metrics for s in results.read_samples(run.path)] == [{"clip": 0.3}, {}]


# --- finding ---


def test_the_latest_run_is_the_one_last_started_or_resumed(tmp_path):
    with pytest.raises(UserError, match="no run in"):
        results.latest(tmp_path)
    RunFolder.open(tmp_path, run_record("old", CONFIG)).close()
    RunFolder.open(tmp_path, run_record("new", CONFIG)).close()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    # not a run before it, without a word
    with pytest.raises(UserError, match=r"broken/run\.json is damaged"):
        results.latest(tmp_path)
    RunFolder.open(tmp_path, run_record("old", CONFIG)).close()
    assert results.find(tmp_path) == [tmp_path / "old"]
    assert results.find(tmp_path, ["new", str(tmp_path / "old")]) == [
        tmp_path / "new",
        tmp_path / "old",
    ]
    with pytest.raises(UserError, match="did you mean new"):
        results.find(tmp_path, ["nwe"])
    with pytest.raises(UserError, match="is damaged"):
        results.read_run(tmp_path / "broken")
    with pytest.raises(UserError, match="is no run folder"):
        results.read_run(tmp_path)


def test_the_configuration_hash_depends_on_values_only():
    assert config_hash({"a": 1, "b": (1, 2)}) == config_hash({"b": [1, 2], "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    assert differences({"a": {"b": 1}, "c": 0}, {"a": {"b": 2}, "d": True}) == [
        "a.b: 1 -> 2",
        "c: 0 -> null",
        "d: null -> true",
    ]


def test_the_environment_is_plain_and_names_nobody(monkeypatch):
    import getpass
    import platform

    found = environment()
    assert list(found) == list(environment())
    assert found["torch"] == torch.__version__
    text = json.dumps(found)
    for name in (platform.node(), os.environ.get("USER", "")):
        assert len(name) < 4 or name not in text
    assert len(getpass.getuser()) < 5 or getpass.getuser() not in text
    monkeypatch.setenv("PATH", "")  # neither git nor nvidia-smi
    assert environment()["commit"] is None
