"""A label is for people; samples are told apart by the exact options of their method."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from lanternbench import registry
from lanternbench.component import option
from lanternbench.errors import UserError
from lanternbench.experiment import iter_samples, worker
from lanternbench.experiment.config import expand
from lanternbench.experiment.runner import run
from lanternbench.methods.acceptance.exact import Exact
from lanternbench.methods.method import method
from lanternbench.settings import Sweep


def test_options_that_differ_in_the_eighth_digit_are_two_methods_with_two_labels():
    made = expand(
        Sweep(methods=[{"method": "cool-sd", "lambda": [2.0000001, 2.0000002]}], baseline=False)
    )
    assert [m.label for m in made] == ["cool-sd λ=2.0000001", "cool-sd λ=2.0000002"]
    assert len({m.key for m in made}) == 2


def test_a_key_is_that_of_the_exact_options_however_they_are_given():
    assert (
        method("cool-sd").key
        == method("cool-sd", lam=2).key
        == method("cool-sd", nu=0.7, lam="2.0").key
    )
    others = [
        method("cool-sd", lam=2.0000001),
        method("cool-sd", variant="reference"),
        method("uniform-rsd"),
    ]
    assert len({m.key for m in (method("cool-sd"), *others)}) == 4
    assert method("ar").key == "8adadefe87f4956a"  # in every process, on every machine
    assert len({method(name).key for name in registry.components("preset")}) == len(
        registry.components("preset")
    )


def test_labels_show_every_option_in_which_methods_of_one_preset_differ():
    specs = ["sjd", {"method": "sjd", "window": [4, 16]}, "eagle-1", "eagle-2"]
    made = expand(Sweep(methods=specs, baseline=False))
    assert [m.label for m in made] == ["sjd window=16", "sjd window=4", "eagle-1", "eagle-2"]
    assert [m.options.get("window") for m in made] == [16, 4, None, None]
    assert made[0].key == method("sjd").key
    assert [m.label for m in expand(Sweep(methods=["sjd"], baseline=False))] == ["sjd"]


def test_labels_that_are_equal_are_told_apart_by_the_key():
    class Spaced(Exact):
        spelling: Literal["a b", "ab"] = option("ab", "a text")

    spec = {"method": "eagle-1", "acceptance": "spaced"}
    with registry.temporary({"acceptance": {"spaced": Spaced}}):
        made = expand(Sweep(methods=[spec | {"spelling": "a b"}], baseline=False))
        both = expand(
            Sweep(
                methods=[spec | {"spelling": ["a b", "ab"]}, {"method": "eagle-1"}], baseline=False
            )
        )
    labels = [m.label for m in both]
    assert len(set(labels)) == 3
    assert made[0].key == both[0].key


@pytest.fixture(scope="module", autouse=True)
def small_images(shallow_8x8):
    """As in conftest, for all runs of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "load_with_drafter", lambda *_: shallow_8x8)
        yield


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A finished run of two prompts, and its settings."""
    config = Sweep(methods=["sjd"], baseline=False, num_prompts=2, metrics=[], name="keys")
    return config, run(config, tmp_path_factory.mktemp("results"))[0]


def test_samples_are_keyed_by_the_methods_key(stored):
    config, folder = stored
    (key,) = {m.key for m in expand(config)}
    assert [s.key for s in iter_samples(folder)] == [
        f"{s.prompt_id}|{key}|0" for s in iter_samples(folder)
    ]
    assert [m["key"] for m in json.loads((folder / "run.json").read_text())["methods"]] == [key]


def copied(folder, tmp_path, keep: int, methods) -> None:
    """The run with its first ``keep`` samples, ``methods`` (of one entry of run.json) as another
    version wrote it.
    """
    new = tmp_path / folder.name
    new.mkdir()
    about = json.loads((folder / "run.json").read_text())
    about["methods"] = [methods(m) for m in about["methods"]]
    (new / "run.json").write_text(json.dumps(about))
    (new / "images").symlink_to(folder / "images")
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        middle = about["methods"][0].get("key") or line["label"]
        line["key"] = f"{line['prompt_id']}|{middle}|{line['seed']}"
    (new / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:keep]))


def unkeyed(entry):
    return {name: value for name, value in entry.items() if name != "key"}


@pytest.mark.parametrize("keep", [1, 2])
def test_a_folder_without_keys_of_methods_is_not_continued(stored, tmp_path, keep):
    config, folder = stored
    copied(folder, tmp_path, keep, unkeyed)
    with pytest.raises(UserError, match="--fresh"):
        run(config, tmp_path)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_run_of_other_exact_options_under_the_same_label_is_not_continued(
    stored, tmp_path, keep
):
    config, folder = stored
    copied(folder, tmp_path, keep, lambda entry: entry | {"key": "0" * 16})
    with pytest.raises(UserError, match=r"sjd.*--fresh"):
        run(config, tmp_path)
