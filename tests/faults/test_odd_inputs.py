"""Inputs that once ended in a traceback, in silence or in a wrong result: one sentence each."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from itertools import product

import pytest
import torch
from conftest import mistake, slow_but
from test_run_folder_faults import sample

from lanternbench import load as load_api
from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.experiment import read_run
from lanternbench.measure.figures import AGAINST_BASELINE, of_sample
from lanternbench.measure.samples import FIGURES, Sample
from lanternbench.methods.method import method
from lanternbench.models import catalogue
from lanternbench.registry import plugin_errors
from lanternbench.training import loop
from lanternbench.utils.files import WEIGHTS

pytestmark = pytest.mark.usefixtures("in_time")
DIGITS = "9" * 400


@pytest.mark.parametrize(
    ("args", "says"),
    [
        *(
            (["tune", "-m", "eagle-1", "--simulate-acceptance", x], "'simulate_acceptance'")
            for x in ("0", "100", "nan")
        ),
        (["tune", "-m", "eagle-1", "--guidance", "1e30"], "'guidance' is wrong"),
        (["tune", "-m", "eagle-1", "--temperature", "1e-9"], "'temperature' is wrong"),
        (["tune", "-m", "eagle-1", "-n", DIGITS], "'num_prompts' is wrong"),
        (["tune", "-m", "eagle-1", "--recorded", DIGITS], "'recorded' is wrong"),
        (["tune", "-m", "eagle-1", "--set", "name=x"], "has no option 'name'"),
        (["run", "-m", "eagle-1", "--set", "name=x"], "has no option 'name'"),
        (["tune", "-m", "eagle-1", "--set", "tree=3"], "there is no tree called '3'"),
        (["verify", "eagle-1", "--set", "name=x"], "has no option 'name'"),
        (["profile", "ar", "--temperature", "1e300"], "'temperature' is wrong"),
        (["profile", "ar", "--simulate-acceptance", "nan"], "'simulate_acceptance' is wrong"),
        (["run", "-m", "cool-sd", "--set", f"lambda={DIGITS}"], "option 'lambda' = 99999"),
        (["run", "-m", "ar", "--temperature", DIGITS], "'temperature' is wrong"),
        (["prompts", "demo", "-n", DIGITS], "lower --num-prompts"),
        (["train", "drafter", "--steps", DIGITS], "--steps"),
        (["train", "drafter", "--batch", DIGITS], "--batch"),
        (["verify", "eagle-2", "--set", "depth=3", "--set", "total_nodes=1"], "total_nodes"),
        (["codebook", "tiny", "--k", DIGITS], "--k"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_what_is_out_of_range_is_one_sentence(args, says, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    said = mistake(monkeypatch, capfd, *args)
    assert says in said
    assert len(said) < 400
    assert not list(tmp_path.iterdir())


def test_a_method_s_option_may_not_be_called_name():
    with pytest.raises(UserError, match="has no option 'name'"):
        method("eagle-1", name="x")


@pytest.mark.parametrize(
    "options", [{"temperature": 1e300}, {"temperature": 1e-9}, {"guidance": 1e30}]
)
def test_python_has_the_limits_of_the_command_line(options):
    with pytest.raises(UserError, match="is wrong"):
        load_api("tiny").generate("a red circle", **options)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", '[{"prompt": "a", "prompt": "b"}]', "'prompt' is given twice"),
        ("a.json", '{"prompts": ["a"], "prompts": ["b"]}', "'prompts' is given twice"),
        (
            "a.jsonl",
            '{"prompt": "a"}\n{"prompt": "b", "id": 1, "id": 2}\n',
            "line 2 .*'id' is given twice",
        ),
        ("a.json", "[" + "9" * 5000 + "]", "not valid JSON"),
    ],
)
def test_a_prompt_file_that_contradicts_itself_is_named(name, text, says, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=says) as error:
        prompts.load(str(tmp_path / name))
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "config", [{"seed": [1]}, {"drafter": 3}, {"target": {}}, {"batch": "1"}, {"seed": -6e16}]
)
def test_a_run_whose_configuration_has_other_kinds_of_values_is_damaged(config, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"config": config}))
    with pytest.raises(UserError, match=rf"damaged \(config\.{next(iter(config))} must"):
        read_run(tmp_path)


def test_a_metric_named_like_a_figure_is_a_damaged_line():
    for changes in ({"metrics": {"latency_s": 1.0}}, {"stats": {"accept_len": 1.0}}, {"metrics": {"log_prob": 1.0}},
                    {"drafter": {"tv": 0.1}, "metrics": {"drafter_tv": 1.0}}):  # fmt: skip
        with pytest.raises(ValueError, match="two figures have the same name"):
            sample(**changes)


def test_the_figures_of_a_sample_are_known_by_name():
    whole: Sample = sample(
        step_s=[0.2, 0.3], cpu_s=0.5, threads=1, load=1.0, peak_memory_mb=1.0, fidelity_loss=0.0, stats={},
        first_token_acceptance=0.5, phases={"draft_s": 0.1, "verify_s": 0.2}, stated_s=1.0,
    )  # fmt: skip
    against_baseline = AGAINST_BASELINE.keys() | {"token_agreement"}
    assert {name for name, *_ in of_sample(whole)} | against_baseline == FIGURES


def test_a_lack_of_a_gpu_s_memory_reaches_those_who_make_batches_smaller():
    part = type("Part", (), {"__module__": "theirs"})()
    with pytest.raises(torch.OutOfMemoryError), plugin_errors(part):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(MemoryError), plugin_errors(part):
        raise MemoryError


def test_a_folder_does_not_stand_for_a_target_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    shutil.copy(WEIGHTS / "target.safetensors", tmp_path / "tiny")
    assert "vq" in catalogue.load_unpacked("tiny").weights
    with pytest.raises(UserError, match=r"tiny/"):
        catalogue.load_unpacked("./tiny")


def test_a_target_says_whether_its_prompts_are_classes():
    for name, labels in (("llamagen-b-c2i", True), ("llamagen-xl-stage1", False)):
        row = catalogue.entry(name)
        own = catalogue.family(row.family)
        row = row.model_copy(update={"name": "mine"})
        assert own.random_target(row, "meta").labels is labels
    assert prompts.captions_for(True, 2) == [p.text for p in prompts.load("imagenet", 2)]


@pytest.mark.parametrize("written", [0, 100, 3000, 100_000])
def test_a_disk_that_is_full_during_a_checkpoint_is_one_sentence(written, tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, content) -> int:
            if self.tell() + len(content) > written:
                raise OSError(28, "No space left on device")
            return super().write(content)

    monkeypatch.setattr("builtins.open", lambda *args, **kwargs: Full())
    with pytest.raises(
        UserError,
        match=r"cannot write .*net\.pt \(No space left on device\): free some space or choose",
    ):
        loop.save_atomically({"model": torch.zeros(50_000)}, tmp_path / "net.pt")
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


PRINTING = (["prompts", "demo", "-n", "2"], ["prompts", "demo", "--json"], ["--version"])


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    slow_but([*zip(PRINTING, ["", "1", ""], strict=True)], product(PRINTING, ["", "1"])),
)
def test_an_output_that_is_lost_is_an_error(command, unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lanternbench", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "lanternbench: the output is lost (No space left on device): free some space or write elsewhere\n"
    )
