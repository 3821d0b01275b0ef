"""A setting is named once: options, sweep files, Python, run.json and reports derive from it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from conftest import mistake
from pydantic import BaseModel, ValidationError
from typer.testing import CliRunner

import lanternbench
from lanternbench.api import Model
from lanternbench.cli.main import app
from lanternbench.engine.sampling import Warp
from lanternbench.errors import UserError, reason
from lanternbench.experiment import read_run
from lanternbench.experiment.config import read_sweeps
from lanternbench.measure.run_record import RunRecord
from lanternbench.measure.samples import Sample
from lanternbench.measure.summary import Summary
from lanternbench.methods.build import build
from lanternbench.methods.method import PARTS, method
from lanternbench.models.entries import Entry
from lanternbench.models.huggingface.checkpoint import Settings as FolderSettings
from lanternbench.prompts.sources import CocoCaptions, GenEvalLine
from lanternbench.registry import components
from lanternbench.report.load import Run
from lanternbench.settings import ModelSpec, PromptSpec, RunSpec, Sampling, Sweep, Tune, checked
from lanternbench.suite.protocol import Submission

PACKAGE = Path(lanternbench.__file__).parent


def test_a_sampling_setting_is_named_by_settings_and_by_the_warp_alone():
    naming = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "min_p" in path.read_text(encoding="utf-8")
    }
    assert naming == {"settings.py", "engine/sampling.py", "lossless/plain/__init__.py"}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("min_p", [0.03, 0.3, 1.0])
def test_min_p_keeps_tokens_of_a_share_of_the_largest_probability(temperature, min_p):
    logits = 3 * torch.randn(5, 50, generator=torch.Generator().manual_seed(0)).double()
    whole = (logits / temperature).softmax(-1)
    kept = whole * (whole >= min_p * whole.amax(-1, keepdim=True))
    expected = kept / kept.sum(-1, keepdim=True)
    warped = Warp(Sampling(temperature=temperature, min_p=min_p))(logits)
    assert torch.allclose(warped, expected)
    assert (warped == 0).any()


def test_min_p_and_top_p_keep_what_both_keep():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    both = Warp(Sampling(top_p=0.9, min_p=0.5))(logits)
    assert both.tolist() == pytest.approx([0.625, 0.375, 0, 0])


def test_a_target_s_own_sampling_holds_where_nothing_is_set():
    row = Entry(name="x", family="llamagen", about="", min_p=0.03)
    own = row.part(Sampling)
    assert own.updated(Sampling(temperature=0.5)) == own.model_copy(update={"temperature": 0.5})
    assert own.updated(Sampling(min_p=0.0)).min_p == 0.0


def test_a_setting_reaches_the_decoder_from_python(shallow_8x8, monkeypatch):
    asked: list[Sampling] = []

    def building(target, one, sampling):
        asked.append(sampling)
        return build(target, one, sampling)

    monkeypatch.setattr("lanternbench.api.build", building)
    Model(shallow_8x8).generate("a red star", method="ar", min_p=0.2, temperature=None)
    assert [sampling.model_dump(exclude_unset=True) for sampling in asked] == [{"min_p": 0.2}]
    with pytest.raises(UserError, match="'min_p' is wrong \\(must be at most 1\\)"):
        Model(shallow_8x8).generate("a red star", min_p=2)


def test_a_setting_reaches_run_json_and_the_report_from_the_command_line(
    small_images, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    recipes = {}
    for name, options in {"plain": [], "cut": ["--min-p", "0.2"]}.items():
        args = ["run", "-m", "sjd", "-n", "1", "--metrics", "", "--name", name, *options, "--json"]
        done = CliRunner().invoke(app, args, catch_exceptions=False)
        folder = Path(json.loads(done.stdout)["run"])
        recipes[name] = Run(folder, read_run(folder), [], []).recipe
        written = json.loads((folder / "run.json").read_text())["config"]
        assert ("min_p" in written) == (name == "cut")
    assert recipes["cut"].keys() - recipes["plain"].keys() == {"min-p"}
    assert recipes["cut"]["min-p"] == "0.2"
    plain = recipes["plain"]
    assert (float(plain["temperature"]), int(plain["top-k"])) == (1.0, small_images.sampling.top_k)
    assert plain["version"].startswith(f"{lanternbench.__version__}, commit ")


def test_a_sweep_file_may_list_any_setting_that_is_no_list_itself(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("methods: [ar]\nmin_p: [0, 0.1]\nnum_prompts: 2\n")
    assert [(run.name, run.min_p) for run in read_sweeps(path)] == [
        ("plan+min_p-0", 0.0),
        ("plan+min_p-0.1", 0.1),
    ]
    path.write_text("methods: [ar]\nmetrics: [clip]\nsimulate_acceptance: [0.8, 0.7]\n")
    assert len(read_sweeps(path)) == 1


def test_settings_that_are_off_leave_a_run_s_record_as_it_was():
    record = Sweep(methods=[{"method": "ar"}]).record()
    assert set(record) == {
        *("target", "prompts", "num_prompts", "caption", "seed"),
        *("temperature", "top_k", "top_p", "guidance"),
        *("batch", "metrics", "baseline", "methods"),
    }
    assert record["top_k"] is None


@pytest.mark.parametrize("kind", [Sampling, ModelSpec, PromptSpec, RunSpec, Tune])
def test_every_option_says_what_it_is_in_a_sentence(kind):
    for name, field in kind.model_fields.items():
        text = field.description
        if name in ("suite", "method", "options"):
            assert text is None
        else:
            assert text.endswith("."), name
            assert text[0].isupper() or text.split()[0].strip(",:") in ("demo", "graphs"), name


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"name": "-x"}, "must begin with a letter or digit"),
        ({"dtype": "float8"}, "must be 'float32'"),
        ({"seed": "x"}, "must be a whole number"),
        ({"seed": -1}, "must be at least 0"),
        ({"top_p": 0}, "must be more than 0"),
        ({"temperature": math.nan}, "must be"),
        ({"batch": True}, "must not be true or false"),
        ({"methods": []}, "has too few entries"),
        ({"target": 3}, "must be text"),
    ],
)
def test_a_wrong_setting_is_explained_in_plain_english(values, says):
    with pytest.raises(UserError) as told:
        checked(Sweep, {"methods": ["ar"]} | values)
    assert says in str(told.value)
    for foreign in ("Input should", "String should", "Value error", "pattern"):
        assert foreign not in str(told.value)


WRONG = (
    *("no such value", "x" * 300, "a\nb", "", b"x", -1e9, 1e99, math.nan, 0, -1, 2.5, True, None),
    *([], {}, [[]], ["a"], [-1], {"a": 1}, object()),
)
FOREIGN = re.compile(
    r"should (be|have|match)|Value error|[Rr]equired|instances? (of|are)|pattern|valid (int|num|str)"
    r"|validation error|_type\b|cannot be used"
)


def every_model() -> list[type[BaseModel]]:
    """Return the models of what users set or hand in: settings, components, files."""
    kinds = [Sampling, PromptSpec, ModelSpec, RunSpec, Sweep, Tune, FolderSettings]
    for part in PARTS:
        kinds += {kind for kind in components(part).values() if issubclass(kind, BaseModel)}
    return [*kinds, RunRecord, Sample, Summary, Submission, GenEvalLine, CocoCaptions]


def test_no_wrong_value_of_any_setting_is_answered_in_pydantics_words():
    refused = 0
    for kind in every_model():
        for name, field in kind.model_fields.items():
            for value in WRONG:
                try:
                    kind.model_validate({field.alias or name: value})
                except ValidationError as error:
                    reasons = [reason(details) for details in error.errors()]
                    refused += len(reasons)
                    assert not any(map(FOREIGN.search, reasons)), (kind, name, value, reasons)
    assert refused > 5000


def test_pydantics_own_words_would_be_found():
    with pytest.raises(ValidationError) as told:
        RunSpec(name="-x")
    assert FOREIGN.search(told.value.errors()[0]["msg"])


def test_the_command_line_explains_a_wrong_name_in_plain_english(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = mistake(monkeypatch, capfd, "run", "-m", "ar", "--name", "a b")
    assert "'name' is wrong (must begin with a letter or digit" in said


def test_decoders_of_one_target_differ_by_sampling_alone(shallow_8x8):
    plain = build(shallow_8x8, method("ar"))
    cut = build(shallow_8x8, method("ar"), Sampling(min_p=0.5))
    assert plain.warp.sampling.updated(Sampling(min_p=0.5)) == cut.warp.sampling
