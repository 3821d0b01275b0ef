"""Names of runs, of images and of drafters in labels tell apart what differs."""

from __future__ import annotations

import json
import shutil

import pytest

from lanternbench.errors import UserError
from lanternbench.experiment import iter_samples
from lanternbench.experiment.config import default_name, expand, read_sweeps
from lanternbench.experiment.runner import run
from lanternbench.measure.samples import Sample, image_name, sample_key
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_target
from lanternbench.settings import Sweep
from lanternbench.utils.files import WEIGHTS


def test_the_name_of_a_run_tells_coco_from_parti_and_one_target_from_another(tmp_path):
    assert default_name(["lantern++", "sjd"], {}) == "run-lantern+++sjd"
    assert default_name(["sjd"], {"prompts": "coco2017"}) == "run-sjd-coco2017"
    given = {"target": "anole-7b=/a/b", "prompts": "parti:/c/PartiPrompts.tsv"}
    assert default_name(["sjd"], given) == "run-sjd-anole-7b-parti"
    path = tmp_path / "plan.yaml"
    path.write_text("methods: [sjd]\nprompts: demo\n")
    names = [
        read_sweeps(path, given)[0].name
        for given in ({}, {"prompts": "parti"}, {"prompts": "coco2017"})
    ]
    assert names == ["plan", "plan+parti", "plan+coco2017"]
    assert read_sweeps(path, {"name": "mine", "prompts": "demo"})[0].name == "mine"


def test_the_pluses_of_a_method_are_in_the_names_of_its_images():
    names = {
        image_name(
            Sample(
                key=sample_key("7", label, 0), prompt_id="7", prompt="x", label=label, method=label, seed=0, tokens=1,
                steps=1, accept_lengths=[1], decode_s=1,
            )
        ).rpartition("-")[0]
        for label in ("lantern++", "lantern")
    }  # fmt: skip
    assert names == {"7-lantern++-0", "7-lantern-0"}


def test_a_drafter_is_in_the_label_and_in_the_key():
    own, other = method("eagle-1"), method("eagle-1", drafter="somewhere/mine")
    assert (own.label, other.label) == ("eagle-1", "eagle-1 drafter=mine")
    assert own.key != other.key
    assert method(other.preset, **other.options).key == other.key
    with pytest.raises(UserError, match="drafts without a drafter"):
        method("sjd", drafter="somewhere/mine")


def test_a_sweep_s_drafter_is_that_of_the_methods_that_can_use_it():
    given = {"drafter": "some/file", "methods": ["eagle-1", "sjd", "sd"], "baseline": False}
    assert [m.drafter for m in expand(Sweep(**given))] == ["some/file", None, None]
    given["drafter"] = "llamagen-b-c2i"
    assert [m.drafter for m in expand(Sweep(**given))] == [None, None, "llamagen-b-c2i"]
    with pytest.raises(UserError, match="eagle and eagle-3 at once"):
        expand(Sweep(drafter="some/file", methods=["eagle-1", "eagle-3"]))


def test_two_drafters_meet_in_one_interleaved_sweep(small_images, tmp_path):
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        place.mkdir()
        shutil.copy(WEIGHTS / "eagle.safetensors", place)
    spec = {"method": "eagle-1", "drafter": [str(place) for place in places]}
    config = Sweep(methods=[spec], baseline=False, num_prompts=1, metrics=[], name="two")
    folder, summary = run(config, tmp_path / "results")
    assert [row.label for row in summary.rows] == [
        "eagle-1 drafter=first",
        "eagle-1 drafter=second",
    ]
    assert len({s.key for s in iter_samples(folder)}) == 2
    weights = json.loads((folder / "run.json").read_text())["target"]["weights"]
    assert {part for part in weights if part.startswith("drafter")} == {
        f"drafter.{place}.eagle" for place in places
    }


def test_a_local_folder_does_not_shadow_a_target_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "target.safetensors").write_bytes(b"another model")
    assert load_target("tiny").weights == load_target(str(WEIGHTS)).weights
    with pytest.raises(UserError, match="cannot read"):
        load_target("./tiny")
