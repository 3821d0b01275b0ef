"""A race: the images of one prompt next to each other, drawn in the recorded time of their steps.

A cell of a final image appears when its token was committed.  Time begins after the prefill, as
that of ``decode_s`` does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.run_record import IMPORTED
from lanternbench.measure.samples import Sample
from lanternbench.models.grids import size
from lanternbench.report import style
from lanternbench.report.findings import ShownRun
from lanternbench.report.images import images_figure, open_image, picture_uri
from lanternbench.report.load import Run, View
from lanternbench.utils.files import replacing
from lanternbench.utils.text import one_line

ELSEWHERE = "choose another file with --race"
EVENLY = "steps of equal length, because the run does not record the time of each"
NO_ROOM = "left out, because six methods fit; choose others with --methods"
MOST_LANES = 6
PICTURE_BYTES = 50_000  # of an image on the page
FRAMES, FRAME_MS, LAST_MS, DPI = 160, 50, 3000, 110  # of a GIF
COVER = "#e4e5e3"


class Lane(NamedTuple):
    """The image of one method."""

    name: str
    picture: Image.Image
    times: NDArray[np.float64]  # [rows, columns] seconds until each cell's token is committed
    steps: int
    spread_evenly: bool  # over the decode's seconds, because the time of each was not recorded

    @property
    def seconds(self) -> float:
        return float(self.times.max())

    @property
    def result(self) -> str:
        return f"{self.seconds:.2f} s, {self.steps} steps"

    @property
    def uri(self) -> str:
        return picture_uri(self.picture, PICTURE_BYTES)

    @property
    def milliseconds(self) -> str:
        """The time of each cell, row by row."""
        return " ".join(f"{1000 * seconds:.1f}" for seconds in self.times.flat)

    def drawn(self, seconds: float) -> NDArray[np.bool_]:
        """Return which cells are drawn after so many seconds: none at 0."""
        return (self.times <= seconds) & (seconds > 0)


class Race(NamedTuple):
    """``lanes``: none if fewer than two methods can be drawn; ``left_out``: why others are not."""

    caption: str
    lanes: list[Lane]
    left_out: list[str]

    @property
    def seconds(self) -> float:
        return max(lane.seconds for lane in self.lanes)

    @property
    def notes(self) -> list[str]:
        """Remarks on the recorded times."""
        names = [lane.name for lane in self.lanes if lane.spread_evenly]
        return [sentence(names, EVENLY)] if names else []


def race_of(run: ShownRun, view: View) -> Race:
    """Return the race of a run's first prompt: of the chosen methods, or ``ar`` and the fastest."""
    contents = run.contents
    prompt = next(iter(contents.captions), "")
    lanes: list[Lane] = []
    left_out: dict[str, list[str]] = {}  # names by reason
    for label, name in run.names.items():
        sample = contents.cells.get((prompt, label))
        if sample is None:
            continue
        lane = lane_of(run, sample, name)
        if isinstance(lane, str):
            left_out.setdefault(lane, []).append(name)
        else:
            lanes.append(lane)
    if not view.methods:
        baseline = run.names.get(BASELINE)
        lanes.sort(key=lambda lane: (lane.name != baseline, lane.seconds))
    for lane in lanes[MOST_LANES:]:
        left_out.setdefault(NO_ROOM, []).append(lane.name)
    lanes = lanes[:MOST_LANES] if len(lanes) > 1 else []
    reasons = [sentence(names, reason) for reason, names in left_out.items()]
    return Race(contents.captions.get(prompt, ""), lanes, reasons)


def sentence(names: Sequence[str], what: str) -> str:
    return f"{one_line(', '.join(names), 300)}: {what}."


def lane_of(run: Run, sample: Sample, name: str) -> Lane | str:
    """Return the lane of a sample, or why its image cannot be drawn step by step."""
    target = run.record.target
    steps = sample.step_of_each_token()
    if sample.method == IMPORTED:
        return "imported images have no recorded steps"
    if not sample.timed:
        return "images of a batch share their seconds"
    if not steps:
        return "the run does not record which step committed each token"
    if target.grid is None or len(steps) != target.tokens_before + size(target.grid):
        return "run.json does not give the grid of these tokens"
    picture = open_image(run.image_path(sample))
    if picture is None:
        return "the image is missing"
    step_s = sample.step_s or []
    is_recorded = len(step_s) == sample.steps - 1
    if is_recorded:
        step_ends = np.cumsum([0.0, *step_s])  # the prefill is step 0
    else:
        step_ends = np.linspace(0.0, sample.decode_s, sample.steps)
    times = step_ends[np.asarray(steps)][target.tokens_before :].reshape(target.grid)
    return Lane(one_line(name, 60), picture, times, sample.steps, spread_evenly=not is_recorded)


# --- as a GIF ---


def write_race(runs: Sequence[ShownRun], path: Path, view: View, warnings: Sequence[str]) -> Path:
    """Write the race of the only run as a GIF.  Raises UserError if there is none, or the file
    cannot be written.
    """
    if path.suffix.lower() != ".gif":
        raise UserError(f"--race {path}: a race is a GIF; give a name such as race.gif.")
    if len(runs) > 1:
        raise UserError("--race shows the methods of one run: name one run alone.")
    race = race_of(runs[0], view)
    if not race.lanes:
        reasons = " ".join(race.left_out) or "There is only one."
        text = f"--race: {runs[0].run_id} has no two methods to draw step by step"
        raise UserError(f"{text} ({reasons}): name a run of batch 1 with images.")
    return write_gif(race, path, warnings)


def write_gif(race: Race, path: Path, warnings: Sequence[str]) -> Path:
    """Write a race as a GIF that repeats, with ``warnings`` at its bottom."""
    stage = stage_of(race, warnings)
    palette = palette_of(frame(race, stage, 0.0), frame(race, stage, race.seconds))
    frames = []
    for seconds in np.linspace(0.0, race.seconds, FRAMES):
        drawn = frame(race, stage, float(seconds))
        frames.append(drawn.quantize(palette=palette, dither=Image.Dither.NONE))
    first, *others = frames
    durations = [FRAME_MS] * len(others) + [LAST_MS]
    with replacing(path, ELSEWHERE, shared=True) as file:
        first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
    return path


class Stage(NamedTuple):
    """The pieces that all frames of a GIF share."""

    empty: Image.Image  # all texts, and covered images
    pictures: list[Image.Image]
    corners: list[tuple[int, int]]  # left and top of each image, in pixels


@style.styled()
def stage_of(race: Race, warnings: Sequence[str]) -> Stage:
    heads = [f"{lane.name}\n{lane.result}" for lane in race.lanes]
    covers = [Image.new("RGB", lane.times.shape[::-1], COVER) for lane in race.lanes]
    figure = images_figure(heads, [covers], [race.caption])
    style.add_warnings(figure, [*race.notes, *warnings])
    empty = style.image_of(figure, DPI)
    stage = Stage(empty, [], [])
    for lane, axes in zip(race.lanes, figure.axes, strict=True):
        left, bottom, right, top = np.rint(axes.get_window_extent().extents).astype(int)
        stage.pictures.append(lane.picture.resize((right - left, top - bottom)))
        stage.corners.append((left, empty.height - top))
    return stage


def frame(race: Race, stage: Stage, seconds: float) -> Image.Image:
    """Draw the race after so many seconds."""
    image = stage.empty.copy()
    for lane, picture, corner in zip(race.lanes, stage.pictures, stage.corners, strict=True):
        cells = Image.fromarray(lane.drawn(seconds).astype(np.uint8) * 255)
        image.paste(picture, corner, cells.resize(picture.size, Image.Resampling.NEAREST))
    return image


def palette_of(first: Image.Image, last: Image.Image) -> Image.Image:
    """Return an image whose palette suits both frames, and so all between them."""
    both = Image.new("RGB", (first.width, 2 * first.height))
    both.paste(first, (0, 0))
    both.paste(last, (0, first.height))
    return both.quantize(256)
