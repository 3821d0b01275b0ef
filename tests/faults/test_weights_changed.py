"""Two models of one name are never mixed: a run knows the content of its weights."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from run_records import run_record
from safetensors.torch import load_file, save_file

from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, read_run
from lanternbench.experiment.worker import Worker
from lanternbench.measure.summary import Row
from lanternbench.models import entries
from lanternbench.models.catalogue import load_target, with_drafter
from lanternbench.models.entries import fingerprints
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.report.comparison import compared_runs, notes_on
from lanternbench.report.load import Run, differing, joined_rows
from lanternbench.settings import Sweep
from lanternbench.training import drafter
from lanternbench.tune import tuning
from lanternbench.tune.result import Tune
from lanternbench.utils.files import WEIGHTS

pytestmark = pytest.mark.usefixtures("in_time")


def copied(folder: Path, scale: float = 1.0) -> Path:
    """The embedded target in ``folder``, with its EAGLE drafter's largest matrix scaled."""
    folder.mkdir(parents=True)
    for path in WEIGHTS.glob("*.safetensors"):
        (folder / path.name).symlink_to(path)
    if scale != 1:
        change(folder, scale)
    return folder


def change(folder: Path, scale: float) -> None:
    path = folder / "eagle.safetensors"
    state = load_file(path)
    path.unlink()
    save_file({k: v * scale if k == "fc.weight" else v for k, v in state.items()}, path)


def facts(folder: Path) -> dict[str, Any]:
    """What a run records of the target in ``folder``."""
    config = Sweep(methods=["eagle-1"], target=str(folder))
    return Worker(config, "cpu").facts().target.written()


def test_weights_changed_in_place_are_not_mixed(tmp_path):
    folder = copied(tmp_path / "tiny")
    first = facts(folder)
    assert set(first["weights"]) >= {"target", "eagle", "vq", "text"}
    assert facts(folder) == first
    RunFolder.open(tmp_path, run_record("r", {}, target=first)).close()
    RunFolder.open(
        tmp_path, run_record("r", {}, target=first)
    ).close()  # the same files: it is resumed
    change(folder, 1.5)
    with pytest.raises(UserError, match=r"begun with other weights \(eagle: .*--fresh"):
        RunFolder.open(tmp_path, run_record("r", {}, target=facts(folder)))
    RunFolder.open(tmp_path, run_record("r", {}, target=facts(folder)), fresh=True).close()


def test_a_run_that_does_not_record_its_weights_is_resumed_and_compared(tmp_path):
    RunFolder.open(tmp_path, run_record("r", {}, target={"name": "tiny"})).close()
    RunFolder.open(
        tmp_path, run_record("r", {}, target={"name": "tiny", "weights": {"eagle": "1"}})
    ).close()
    assert read_run(tmp_path / "r").target.weights == {}
    RunFolder.open(
        tmp_path, run_record("s", {}, target={"name": "tiny", "weights": {"eagle": "1"}})
    ).close()
    assert differing([as_report(tmp_path / name) for name in "rs"]) is None


def as_report(path: Path) -> Run:
    return Run(path, read_run(path), [Row(label="ar", method="ar", n=1, figures={})], [])


def test_two_folders_of_one_name_are_told_apart(tmp_path):
    for name, weights in (("r", "1"), ("s", "2"), ("t", "1")):
        RunFolder.open(
            tmp_path, run_record(name, {}, target={"name": "tiny", "weights": {"eagle": weights}})
        ).close()
    runs = [as_report(tmp_path / name) for name in "rst"]
    assert "the weights of eagle" in str(differing(runs))
    assert [row.setup for row in joined_rows(runs)] == [1, 2, 1]
    assert differing([runs[0], runs[2]]) is None
    notes = notes_on(compared_runs(tmp_path, "r", "s", []))
    assert any("the weights of eagle" in note for note in notes)


def test_runs_scored_by_other_weights_of_a_metric_are_not_compared(tmp_path):
    by_run = ({"clip": "1", "fid": "1"}, {"clip": "2"}, {"clip": "1"}, {})
    for name, weights in zip("rstu", by_run):
        with RunFolder.open(tmp_path, run_record(name, {})) as folder:
            folder.record(metric_weights=weights)
    runs = [as_report(tmp_path / name) for name in "rstu"]
    assert "differ in the weights of the metric clip:" in str(differing(runs))
    assert differing([runs[0], *runs[2:]]) is None


def test_any_byte_of_a_small_file_and_both_ends_of_a_large_one_count(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "a.bin"
    seen = set()
    for limit, places in ((2**26, [5, 500_000, 999_999]), (1000, [5, 999_999])):
        monkeypatch.setattr(entries, "WHOLE", limit)
        for place in places:
            content = bytearray(1_000_000)
            content[place] = 1
            path.write_bytes(content)
            entries._content.cache_clear()
            seen.add(fingerprints(tmp_path)["model"])
    assert len(seen) == 5
    before = fingerprints(tmp_path)
    (folder / "notes.txt").write_text("x")
    assert fingerprints(tmp_path) == before
    (folder / "config.json").write_text("{}")
    assert fingerprints(tmp_path) != before
    os.truncate(path, 10)
    assert set(fingerprints(path)) == {"a"}
    assert fingerprints(tmp_path / "nothing") == {}


def test_a_drafter_from_elsewhere_is_recorded_apart(tmp_path, target):
    net = target.drafters["eagle"]
    save_file(load_file(WEIGHTS / "eagle.safetensors"), tmp_path / "mine.safetensors")
    made, kind = with_drafter(load_target("tiny"), str(tmp_path / "mine.safetensors"))
    assert (kind, net.config) == ("eagle", made.drafters["eagle"].config)
    assert set(made.weights) - set(load_target("tiny").weights) == {"drafter.mine"}


def lighter(folder: Path) -> Path:
    """The embedded target in ``folder`` with two of its layers."""
    folder.mkdir()
    for path in WEIGHTS.glob("*.safetensors"):
        shutil.copy(path, folder)
    state, meta = tiny.read(WEIGHTS / "target.safetensors")
    meta["config"]["n_layer"] = 2
    kept = {
        k: v for k, v in state.items() if not k.startswith("layers.") or int(k.split(".")[1]) < 2
    }
    tiny.write(folder / "target.safetensors", kept, **meta)
    return folder


def scale_target(folder: Path) -> None:
    state, meta = tiny.read(folder / "target.safetensors")
    scaled = {k: v * 1.01 if k == "norm.weight" else v for k, v in state.items()}
    tiny.write(folder / "target.safetensors", scaled, **meta)


def test_a_training_begun_on_other_weights_is_not_resumed(tmp_path):
    folder = lighter(tmp_path / "tiny")
    plan = drafter.Plan(str(folder), prompts.load("demo", 3), steps=1, batch=1, lr=3e-3, seed=0)
    where = "cpu", tmp_path / "work", tmp_path / "out"
    assert drafter.train(plan, *where, log=str) == drafter.train(plan, *where, log=str)
    change(folder, 1.5)  # the drafter that comes with the target plays no part
    drafter.train(plan, *where, log=str)
    scale_target(folder)
    with pytest.raises(
        UserError, match=r"out belongs to a training with other settings \(weights\)"
    ):
        drafter.train(plan, *where, log=str)
    recipe = tmp_path / "out" / "recipe.json"
    assert set(json.loads(recipe.read_text())["settings"]["weights"]) >= {"target", "vq", "text"}


def test_a_search_begun_on_other_weights_or_settings_is_not_resumed(tmp_path):
    folder = lighter(tmp_path / "tiny")
    config = Tune(method="eagle-1", target=str(folder), num_prompts=1)

    def begun(**options: bool) -> Path:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tuning.tune(config, tmp_path / "out", progress=stop, **options)
        return max((tmp_path / "out").glob("*/tune.json"), key=lambda path: path.parent.name)

    path = begun()
    assert begun() == path
    whole = path.read_text()
    path.write_text(whole.replace('"few": 3', '"few": 2'))
    with pytest.raises(UserError, match=r"other settings \(few: 2 -> 3\).*--fresh"):
        begun()
    path.write_text(whole)
    scale_target(folder)
    with pytest.raises(UserError, match=r"begun with other weights \(target: .*--fresh"):
        begun()
    assert begun(fresh=True) != path
