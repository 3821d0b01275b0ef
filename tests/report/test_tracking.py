"""``--tracker``: a finished run arrives in the tracker, and no tracker costs a run its results."""

from __future__ import annotations

import sys

import pytest
from conftest import DATA, mistake

import lanternbench
from lanternbench.errors import UserError
from lanternbench.report import tracking
from lanternbench.settings import Sweep

RUN = DATA / "run_of_flat_figures"
SWEEP = Sweep(methods=[{"method": "ar"}])


def test_what_is_logged_are_settings_figures_of_every_method_and_plots():
    found = tracking.logged(RUN)
    assert found.settings["target"] == "tiny"
    labels = {name.partition("/")[2] for name in found.figures}
    assert labels == {"ar", "eagle-1", "lantern δ=0.1"}
    rows = lanternbench.load_run(RUN).summary.set_index("label")
    for name in ("speedup", "accept_len", "clip-tiny"):
        assert found.figures[f"{name}/eagle-1"] == rows[name]["eagle-1"]
    assert {"Images", "Acceptance by position of the draft"} <= found.plots.keys()


def test_tensorboard_reads_back_settings_figures_and_plots(small_images, tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TENSORBOARD IS NOT INSTALLED, so this promise was not checked",
    )
    run = lanternbench.run(
        "cool-sd", num_prompts=2, metrics="clip", out=tmp_path, tracker="tensorboard"
    )
    rows = run.summary.set_index("label")
    events = accumulator.EventAccumulator(str(run.path / "tensorboard")).Reload()
    for name in ("accept_len", "clip-tiny"):
        (event,) = events.Scalars(f"{name}/ar")
        assert event.value == pytest.approx(rows[name]["ar"], rel=1e-6)
    assert "Images" in events.Tags()["images"]
    (text,) = events.Tensors("settings/num_prompts/text_summary")
    assert text.tensor_proto.string_val == [b"2"]


def test_wandb_offline_stores_a_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="WANDB IS NOT INSTALLED, so this promise was not checked")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    started = tracking.started("wandb", SWEEP)
    assert isinstance(started.client, tracking.WandB)
    stored = started.client._run
    finish = stored.finish
    summary: dict[str, object] = {}

    def finish_and_keep() -> None:  # a finished run cannot be asked offline
        summary.update(stored.summary)
        finish()

    monkeypatch.setattr(stored, "finish", finish_and_keep)
    assert started.log(RUN) == []
    assert stored.name == RUN.name
    assert stored.config["target"] == "tiny"
    expected = tracking.logged(RUN)
    assert summary["accept_len/eagle-1"] == expected.figures["accept_len/eagle-1"]
    pictures = tmp_path.glob("wandb/offline-run-*/files/media/images/*.png")
    assert len(list(pictures)) == len(expected.plots)


@pytest.mark.parametrize("name", tracking.CLIENTS)
def test_a_missing_package_is_one_sentence_before_anything_is_computed(
    name, tmp_path, monkeypatch, capfd
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.chdir(tmp_path)
    said = mistake(monkeypatch, capfd, "run", "-m", "ar", "-n", "1", "--tracker", name)
    assert f"pip install 'lanternbench[{name}]'" in said
    assert not list(tmp_path.iterdir())


class Failing:
    """A client that fails where it is told to."""

    def __init__(self, sweep: Sweep):
        if sweep.name == "refused":
            raise OSError("no network")

    def log(self, run: tracking.Logged) -> None:
        raise RuntimeError("the connection was lost")


def test_a_tracker_that_does_not_start_is_one_sentence(monkeypatch):
    monkeypatch.setitem(tracking.CLIENTS, "wandb", Failing)
    with pytest.raises(UserError, match=r"wandb does not start \(no network\)"):
        tracking.started("wandb", SWEEP.model_copy(update={"name": "refused"}))


def test_a_tracker_that_fails_at_the_end_is_a_warning_of_a_complete_run(
    small_images, tmp_path, monkeypatch
):
    monkeypatch.setitem(tracking.CLIENTS, "wandb", Failing)
    run = lanternbench.run("ar", num_prompts=1, metrics=[], out=tmp_path, tracker="wandb")
    (note,) = (note for note in run.notes if "tracker" in note.text)
    assert "the connection was lost" in note.text
    assert (run.path / "summary.json").is_file()
    assert len(run.samples) == 1
