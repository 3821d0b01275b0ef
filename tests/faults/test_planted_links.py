"""No command writes through a link that somebody planted, outside its folder, or half a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from lanternbench.cli.results_cmd import folder_names
from lanternbench.errors import UserError
from lanternbench.experiment.scoring import Item, Journal
from lanternbench.measure.statistics import Estimate
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.metrics.images import export_dpg, export_geneval
from lanternbench.metrics.metric import ImageMetric, Setup
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.profile.step_profile import chrome_trace
from lanternbench.prompts.sources import GenEvalLine
from lanternbench.report.load import ReportRow
from lanternbench.report.plots import speed_pictures, write_pictures
from tools.train_tiny.evaluators import export_clip

pytestmark = pytest.mark.usefixtures("in_time")
ROWS = [
    ReportRow(
        label="ar",
        method="ar",
        n=2,
        figures={"speedup": Estimate(1.0), "clip-tiny": Estimate(0.3)},
    ),
    ReportRow(
        label="eagle-1",
        method="eagle-1",
        n=2,
        figures={"speedup": Estimate(1.4), "clip-tiny": Estimate(0.3)},
    ),
]
PLACES = ["speed.png", "speed.pdf", "00000/samples/0000.png", "00000/metadata.jsonl", "7.png",
          "trace.json", "target.safetensors", "clip.safetensors"]  # fmt: skip


def write_all(out: Path, source: Path, target) -> None:
    """Every command that writes a file of a name that is known beforehand."""
    Image.new("RGB", (8, 8)).save(source)
    write_pictures(speed_pictures(ROWS), out)
    line = GenEvalLine(prompt="a", tag="colors", include=[])
    export_geneval({"a": [source]}, [line], out)
    export_dpg({"a": [source]}, {"a": "7"}, out)
    chrome_trace(build(target, method("ar")), "a red circle", out / "trace.json")
    tiny.write(out / "target.safetensors", {"x": torch.zeros(1)})
    export_clip(torch.nn.Linear(1, 1), out, 1)


def test_what_is_planted_is_replaced_and_where_it_leads_is_untouched(tmp_path, shallow):
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("mine")
    for name in PLACES:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).symlink_to(victim)
    write_all(out, tmp_path / "image.png", shallow)
    assert victim.read_text() == "mine"
    assert not any((out / name).is_symlink() for name in PLACES)
    assert not list(out.rglob("*.part"))


def test_a_plot_that_is_stopped_leaves_the_old_one(tmp_path, monkeypatch):
    (path, *_) = write_pictures(speed_pictures(ROWS), tmp_path)
    whole = path.read_bytes()

    def stop(figure, file, **options) -> None:
        file.write_bytes(b"half") if isinstance(file, Path) else file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", stop)
    with pytest.raises(KeyboardInterrupt):
        write_pictures(speed_pictures(ROWS), tmp_path)
    assert path.read_bytes() == whole


def test_scores_are_not_appended_through_a_link_or_to_a_pipe(tmp_path):
    (tmp_path / "victim").write_text("mine\n")
    (tmp_path / "scores.jsonl").symlink_to(tmp_path / "victim")
    item = Item("1", tmp_path / "a.png", "a")
    with pytest.raises(UserError, match=r"cannot write .*scores\.jsonl"):
        Journal(tmp_path / "scores.jsonl").add(ImageMetric("m", Setup()), [item], [0.3], 0.0)
    assert (tmp_path / "victim").read_text() == "mine\n"


@pytest.mark.parametrize("name", ["../../../x", "/tmp/x", "a/b", "x" * 300])
def test_an_id_that_is_no_file_name_is_not_exported(name, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    with pytest.raises(UserError, match="is no file name"):
        export_dpg({"a": [tmp_path / "image.png"]}, {"a": name}, tmp_path / "deep" / "er" / "out")
    assert [p.name for p in tmp_path.rglob("*.png")] == ["image.png"]


def test_every_label_has_a_folder_of_its_own_inside(tmp_path):
    names = folder_names(["ar", "..", ".", "a b", "a-b", "a/b", "λ=2", "x" * 300, "", "../../x"])
    assert len(set(names.values())) == 10
    assert all((tmp_path / name).resolve().parent == tmp_path.resolve() for name in names.values())
    assert (names["ar"], names["λ=2"]) == ("ar", "λ=2")
    assert all(len(name.encode()) <= 255 for name in names.values())
