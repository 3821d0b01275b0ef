"""The suite: its protocols are frozen, a run of one says so, and nothing else may."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from conftest import mistake

from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.experiment import config, worker
from lanternbench.experiment.config import expand, read_sweeps
from lanternbench.experiment.runner import run
from lanternbench.measure.run_record import RunRecord
from lanternbench.models.catalogue import load_target
from lanternbench.models.entries import catalogue
from lanternbench.report.load import load_run
from lanternbench.suite import protocol

FROZEN = {  # a change of one of these is another suite, under another version
    "v1/anole-7b": "1469fa5f11c9c112",
    "v1/emu3-gen": "6e32416623c03b28",
    "v1/janus-pro-7b": "cd307b758e9e3b0b",
    "v1/llamagen-xl-stage1": "de8c75af548c5b5b",
    "v1/lumina-mgpt-7b-768": "eb4954e49a15fae9",
    "v1/tiny": "3a469314efc7fc20",
}


def test_the_protocols_are_frozen():
    assert dict(protocol.protocol(name).stamp.split() for name in protocol.names()) == FROZEN


def test_the_methods_of_a_protocol_may_grow_without_another_hash():
    found = protocol.protocol("tiny")
    assert found._replace(methods=["sjd"]).stamp == found.stamp
    assert found._replace(settings=found.settings | {"seed": 1}).stamp != found.stamp
    assert protocol.of_stamp(found.stamp) == found
    assert protocol.of_stamp("v1/tiny 0000000000000000") is None


@pytest.mark.parametrize("name", FROZEN)
def test_a_protocol_names_what_there_is(name):
    found = protocol.protocol(name.partition("/")[2])
    frozen = {k: v for k, v in found.settings.items() if k not in ("prompts_hash", "weights")}
    made = config.sweep(frozen | {"methods": found.methods})
    assert made.target in catalogue()
    assert next(m.label for m in expand(made)) == "ar"


def test_the_frozen_prompts_are_the_official_ones(shared):
    files = {"coco2017": "coco/captions_val2017.json", "parti": "prompts/PartiPrompts.tsv"}
    for name in protocol.names():
        s = protocol.protocol(name).settings
        spec = (
            f"{s['prompts']}:{shared / files[s['prompts']]}"
            if s["prompts"] in files
            else s["prompts"]
        )
        assert (
            prompts.load(spec, s["num_prompts"], s["seed"], s["caption"]).hash == s["prompts_hash"]
        )


def test_other_prompts_and_other_targets_are_refused(tmp_path, monkeypatch, capfd):
    path = tmp_path / "mine.txt"
    path.write_text("a red circle\n" * 32)
    said = mistake(monkeypatch, capfd, "suite", "tiny", "--prompts", str(path))
    assert "are not those of v1/tiny" in said
    assert "did you mean 'tiny'" in mistake(monkeypatch, capfd, "suite", "tinny")


def test_a_sweep_file_cannot_claim_to_follow_a_suite(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"methods: [eagle-1]\nsuite: {protocol.protocol('tiny').stamp}\n")
    with pytest.raises(UserError, match="'suite' is set by `lanternbench suite` alone"):
        read_sweeps(path)


@pytest.fixture(scope="module")
def short(shallow_8x8, tmp_path_factory):
    """The tiny protocol on two prompts, and a run of it on small images of two layers of the
    target.
    """
    found = protocol.protocol("tiny")
    s = found.settings | {
        "num_prompts": 2,
        "metrics": [],
        "prompts_hash": prompts.load("demo", 2).hash,
    }
    found = found._replace(settings=s, methods=["eagle-1"])
    with pytest.MonkeyPatch.context() as patch:
        target = replace(shallow_8x8, weights=load_target("tiny").weights)
        patch.setattr(worker, "load_with_drafter", lambda *_: target)
        return found, run(found.sweep({}), tmp_path_factory.mktemp("results"))[0]


def test_a_run_of_the_suite_says_so_in_every_result(short):
    found, folder = short
    about, summary = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("run", "summary")
    )
    assert (about["config"]["suite"], summary["suite"]) == (found.stamp, found.stamp)
    assert load_run(folder).recipe["suite"] == found.stamp
    assert folder.name.startswith("suite-v1-tiny-")


def test_what_departs_from_the_protocol_is_named(short):
    found, folder = short
    about = json.loads((folder / "run.json").read_text())
    assert list(found.deviations(RunRecord.model_validate(about))) == []
    config = about["config"]
    for changes, says in (
        ({"config": config | {"seed": 1}}, "seed is 1, not 0"),
        ({"config": config | {"temperature": 0.5}}, "temperature is 0.5, not 1.0"),
        ({"config": config | {"random_weights": True}}, "it draws noise"),
        ({"prompts": about["prompts"] | {"hash": "ab"}}, "prompts_hash is ab, not"),
        ({"target": about["target"] | {"name": "anole-7b"}}, "target is anole-7b, not tiny"),
        ({"target": about["target"] | {"weights": {}}}, "weights is"),
        ({"methods": about["methods"][1:]}, "it has no baseline ar"),
    ):
        changed = RunRecord.model_validate(about | changes)
        assert [reason for reason in found.deviations(changed) if says in reason], says
