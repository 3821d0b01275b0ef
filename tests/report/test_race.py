"""A race draws every cell of an image once, in the recorded order and time, or says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_rows import write_summary
from PIL import Image, ImageSequence
from pydantic import ValidationError
from test_report import flat, make_run, sample
from typer.testing import CliRunner

from lanternbench import report
from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.measure.samples import Sample
from lanternbench.report import race as races
from lanternbench.report.images import image_grid
from lanternbench.report.race import COVER, Lane, Race, race_of, stage_of, write_gif
from lanternbench.report.write import Report, read_report
from lanternbench.settings import ReportSpec

ROWS = [
    flat(),
    flat("eagle-1", "eagle-1", 3.0, fidelity_loss=0.0),
    flat("zipar", "zipar", 2.0, lossless=False, fidelity_loss=0.1),
]
DECODES: dict[str, dict[str, Any]] = {
    "ar": {
        "steps": 4,
        "accept_lengths": [1, 1, 1, 1],
        "tree_depths": [0, 0, 0, 0],
        "step_s": [1.0, 1.0, 1.0],
        "decode_s": 3.0,
    },
    "eagle-1": {
        "steps": 2,
        "accept_lengths": [1, 3],
        "tree_depths": [0, 5],
        "step_s": [1.0],
        "decode_s": 1.0,
    },
    "zipar": {  # the lower row is complete before the upper one
        "steps": 3,
        "accept_lengths": [1, 2, 1],
        "tree_depths": [0, 0, 0],
        "step_s": [1.0, 0.5],
        "decode_s": 1.5,
        "commit_steps": [0, 2, 1, 1],
    },
}
COLOURS = {"ar": (180, 30, 30), "eagle-1": (30, 140, 60), "zipar": (40, 60, 200)}


def race_run(folder: Path, prompts: int = 1, **changes: dict[str, Any]) -> Path:
    """A run of 2 × 2 tokens an image; ``changes``: fields of samples, by method."""
    make_run(folder, ROWS, prompts=prompts)
    lines = []
    for text in (folder / "samples.jsonl").read_text().splitlines():
        one = json.loads(text)
        label = one["label"]
        fields = DECODES[label] | changes.get(label.replace("-", "_"), {})
        lines.append(json.dumps(one | fields))
        Image.new("RGB", (64, 64), COLOURS[label]).save(folder / one["image"])
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")
    write_summary(folder, ROWS)
    return folder


def content_of(folder: Path, **chosen: Any) -> Report:
    return read_report([folder], ReportSpec(**chosen))


def race_in(folder: Path, **chosen: Any) -> Race:
    content = content_of(folder, **chosen)
    (run,) = content.runs
    return race_of(run, content.view)


def test_a_cell_appears_when_its_token_was_committed_in_the_recorded_order(tmp_path):
    race = race_in(race_run(tmp_path / "run"))
    times = {lane.name: lane.times.tolist() for lane in race.lanes}
    assert times == {
        "ar": [[0.0, 1.0], [2.0, 3.0]],
        "eagle-1": [[0.0, 1.0], [1.0, 1.0]],
        "zipar": [[0.0, 1.5], [1.0, 1.0]],
    }
    assert [lane.name for lane in race.lanes] == ["ar", "eagle-1", "zipar"]  # by their seconds
    assert (race.seconds, race.lanes[1].result) == (3.0, "1.00 s, 2 steps")
    zipar = race.lanes[2]
    assert not zipar.drawn(0.0).any()
    assert zipar.drawn(1.2).tolist() == [[True, False], [True, True]]
    assert zipar.drawn(1.5).all()


def test_tokens_of_an_earlier_grid_take_their_time_and_no_cell(tmp_path):
    folder = race_run(tmp_path / "run")
    record = json.loads((folder / "run.json").read_text())
    record["target"] |= {"grid": [1, 2], "tokens_before": 2}
    (folder / "run.json").write_text(json.dumps(record))
    assert race_in(folder).lanes[0].times.tolist() == [[2.0, 3.0]]


def test_steps_without_recorded_times_are_equally_long_and_the_race_says_so(tmp_path):
    race = race_in(race_run(tmp_path / "run", ar={"step_s": None, "decode_s": 6.0}))
    assert race.lanes[0].times.tolist() == [[0.0, 2.0], [4.0, 6.0]]
    assert race.notes == [
        "ar: steps of equal length, because the run does not record the time of each."
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"timed": False}, "images of a batch share their seconds"),
        ({"method": "imported"}, "imported images have no recorded steps"),
        ({"image": None}, "the image is missing"),
        (
            {"commit_steps": None},
            "the run does not record which step committed each token",
        ),
        (
            {"tokens": 3, "steps": 2, "accept_lengths": [1, 2], "tree_depths": [0, 5]}
            | {"step_s": [1.0], "commit_steps": None},
            "run.json does not give the grid of these tokens",
        ),
    ],
)
def test_an_image_without_recorded_steps_is_left_out_with_the_reason(tmp_path, changes, reason):
    race = race_in(race_run(tmp_path / "run", zipar=changes))
    assert [lane.name for lane in race.lanes] == ["ar", "eagle-1"]
    assert race.left_out == [f"zipar: {reason}."]


@pytest.mark.usefixtures("quick_pictures")
def test_no_race_is_invented_and_one_that_was_asked_for_is_refused(tmp_path):
    batch = {"timed": False}
    folder = race_run(tmp_path / "run", ar=batch, eagle_1=batch)
    assert race_in(folder).lanes == []
    gif = tmp_path / "race.gif"
    with pytest.raises(UserError, match="ar, eagle-1: images of a batch share their seconds"):
        report([folder], race=gif)
    with pytest.raises(UserError, match=r"give a name such as race\.gif"):
        report([folder], race=tmp_path / "race.png")
    other = race_run(tmp_path / "other")
    with pytest.raises(UserError, match="name one run"):
        report([folder, other], race=gif)
    assert not gif.exists()
    assert '<div class="race">' not in report([folder], formats=["html"]).files[-1].read_text()


def test_chosen_methods_race_in_their_order_and_at_most_six(tmp_path, monkeypatch):
    folder = race_run(tmp_path / "run")
    race = race_in(folder, methods=["zipar", "ar"])
    assert [lane.name for lane in race.lanes] == ["zipar", "ar"]
    monkeypatch.setattr(races, "MOST_LANES", 2)
    race = race_in(folder)
    assert [lane.name for lane in race.lanes] == ["ar", "eagle-1"]
    assert race.left_out == [f"zipar: {races.NO_ROOM}."]


def test_a_gif_begins_empty_and_ends_with_the_images(tmp_path, monkeypatch):
    monkeypatch.setattr(races, "FRAMES", 13)  # a quarter of a second apart
    folder = race_run(tmp_path / "run")
    path = tmp_path / "race.gif"
    assert report([folder], race=path, formats=["csv"]).race == path
    stage = stage_of(race_in(folder), [])
    pixels, ends = [], []
    elapsed = 0
    with Image.open(path) as gif:
        assert gif.info["loop"] == 0
        for one in ImageSequence.Iterator(gif):
            elapsed += one.info["duration"]
            ends.append(elapsed)
            pixels.append(np.asarray(one.convert("RGB")))
    assert ends == sorted(set(ends))
    assert ends[-1] == 12 * races.FRAME_MS + races.LAST_MS

    def cells(at: int, number: int) -> list[tuple[int, ...]]:
        """The middle of each cell of an image, ``at`` milliseconds after the beginning."""
        frame = pixels[next(i for i, end in enumerate(ends) if at < end)]
        left, top = stage.corners[number]
        width, height = stage.pictures[number].size
        middles = [
            (y, x) for y in (height // 4, 3 * height // 4) for x in (width // 4, 3 * width // 4)
        ]
        return [tuple(frame[top + y, left + x].tolist()) for y, x in middles]

    cover = tuple(bytes.fromhex(COVER.removeprefix("#")))
    for number, (label, colour) in enumerate(COLOURS.items()):
        assert cells(0, number) == [cover] * 4
        assert cells(ends[-1] - 1, number) == [colour] * 4, label
    halfway = 6 * races.FRAME_MS  # 1.5 s
    assert [cells(halfway, number).count(cover) for number in range(3)] == [2, 0, 0]
    after_a_step = 4 * races.FRAME_MS  # 1 s
    assert cells(after_a_step, 2) == [COLOURS["zipar"], cover, COLOURS["zipar"], COLOURS["zipar"]]


def test_the_command_writes_the_gif_that_is_named_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(races, "FRAMES", 3)
    folder = race_run(tmp_path / "run")
    gif = tmp_path / "race.gif"
    wanted = ["--race", str(gif), "--methods", "ar,zipar", "--format", "csv"]
    done = CliRunner().invoke(app, ["report", str(folder), *wanted], catch_exceptions=False)
    assert done.stderr.splitlines()[-1] == str(gif)
    assert gif.read_bytes().startswith(b"GIF89a")


@pytest.mark.slow
def test_a_gif_of_six_large_images_is_under_4_mb(tmp_path):
    rng = np.random.default_rng(0)
    lanes = []
    for number in range(6):
        noise = rng.integers(0, 255, (384, 384, 3), dtype=np.uint8)  # nothing is harder to pack
        times = np.sort(rng.random(24 * 24)).reshape(24, 24)
        lanes.append(Lane(f"m{number}", Image.fromarray(noise), times, 576, False))
    path = write_gif(Race("noise", lanes, []), tmp_path / "race.gif", ["few prompts"])
    assert path.stat().st_size < 4_000_000


def test_steps_of_tokens_that_contradict_the_accepted_lengths_are_damage(tmp_path):
    (tmp_path / "images").mkdir()
    fields = sample(tmp_path, 0, flat("zipar", "zipar")) | DECODES["zipar"]
    assert Sample.model_validate(fields).step_of_each_token() == [0, 2, 1, 1]
    for wrong in ([0, 1, 1], [0, 1, 2, 2], [0, 1, 1, 3]):
        with pytest.raises(ValidationError, match="commit_steps"):
            Sample.model_validate(fields | {"commit_steps": wrong})


@pytest.mark.parametrize("commit_steps", [[0, 2, 1, 1], None])
def test_rows_drawn_at_once_have_no_map_of_raster_order(tmp_path, commit_steps):
    """Also at temperature 0, at which no loss of rows says that there are several."""
    folder = race_run(tmp_path / "run", zipar={"commit_steps": commit_steps, "row_loss": None})
    (run,) = content_of(folder).runs
    ((_, cells),) = image_grid(run).lines
    maps = {cell.label: cell.maps.get("accept") for cell in cells if cell is not None}
    assert maps["zipar"] is None
    assert maps["eagle-1"] is not None
