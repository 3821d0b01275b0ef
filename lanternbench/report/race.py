"""A race: the images of one prompt next to each other, drawn in the recorded time of their steps.

A cell of a final image appears when its token was committed.  Time begins after the prefill, as
that of ``decode_s`` does.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.run_record import IMPORTED
from lanternbench.measure.samples import Sample
from lanternbench.models.grids import size
from lanternbench.report import style
from lanternbench.report.images import open_image, picture_uri
from lanternbench.report.load import Contents, Run, View
from lanternbench.utils.files import replacing
from lanternbench.utils.text import one_line

ELSEWHERE = "choose another file with --race"
EVENLY = "steps of equal length, because the run does not record the time of each"
NO_ROOM = "not drawn for want of room; --methods chooses others"
MOST_LANES = 6
PICTURE_BYTES = 50_000  # of an image on the page
FRAMES, FRAME_MS, LAST_MS = 160, 50, 3000  # of a GIF
SIDE, GAP, FONT, LINE = 160, 12, 12, 16  # pixels of a GIF
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

    def state(self, seconds: float) -> str:
        """Return how many tokens are committed, or the result once all are."""
        drawn = self.drawn(seconds)
        if drawn.all():
            return self.result
        return f"{drawn.sum()} of {drawn.size} tokens"


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
        """What to know of the times."""
        names = [lane.name for lane in self.lanes if lane.spread_evenly]
        return [sentence(names, EVENLY)] if names else []


def race_of(run: Run, contents: Contents, view: View) -> Race:
    """Return the race of a run's first prompt: of the chosen methods, or ``ar`` and the fastest."""
    prompt = next(iter(contents.captions), "")
    lanes: list[Lane] = []
    left_out: dict[str, list[str]] = {}  # names by reason
    for row in run.rows:
        sample = contents.cells.get((prompt, row.label))
        if sample is None:
            continue
        lane = lane_of(run, sample, view)
        if isinstance(lane, str):
            left_out.setdefault(lane, []).append(view.name(row.label, row.method))
        else:
            lanes.append(lane)
    if not view.methods:
        baseline = view.name(BASELINE, BASELINE)
        lanes.sort(key=lambda lane: (lane.name != baseline, lane.seconds))
    for lane in lanes[MOST_LANES:]:
        left_out.setdefault(NO_ROOM, []).append(lane.name)
    lanes = lanes[:MOST_LANES] if len(lanes) > 1 else []
    reasons = [sentence(names, reason) for reason, names in left_out.items()]
    return Race(contents.captions.get(prompt, ""), lanes, reasons)


def sentence(names: Sequence[str], what: str) -> str:
    return f"{one_line(', '.join(names), 300)}: {what}."


def lane_of(run: Run, sample: Sample, view: View) -> Lane | str:
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
    name = one_line(view.name(sample.label, sample.method), 60)
    return Lane(name, picture, times, sample.steps, spread_evenly=not is_recorded)


# --- as a GIF ---


class Stage(NamedTuple):
    """What the frames of a GIF share; places in pixels."""

    background: Image.Image  # covered images, and the texts that stay
    pictures: list[Image.Image]
    top: int  # of the images
    state_top: int  # of the lines that change

    def left(self, number: int) -> int:
        """Return the left edge of an image."""
        return GAP + number * (self.pictures[0].width + GAP)


def write_gif(race: Race, path: Path, warnings: Sequence[str]) -> Path:
    """Write a race as a GIF that repeats, with ``warnings`` at its bottom.  Raises UserError if
    the file cannot be written.
    """
    stage = stage_of(race, warnings)
    moments = [race.seconds * number / (FRAMES - 1) for number in range(FRAMES - 1)]
    frames = [frame(race, stage, seconds) for seconds in [*moments, race.seconds]]
    palette = palette_of(frames[0], frames[-1])
    reduced = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    durations = [FRAME_MS] * (FRAMES - 1) + [LAST_MS]
    with replacing(path, ELSEWHERE, shared=True) as file:
        reduced[0].save(
            file, "GIF", save_all=True, append_images=reduced[1:], duration=durations, loop=0
        )
    return path


def stage_of(race: Race, warnings: Sequence[str]) -> Stage:
    """Lay out the caption, the images with names and states below them, notes and warnings."""
    rows, columns = race.lanes[0].times.shape
    cell = max(1, round(SIDE / max(rows, columns)))
    pictures = [lane.picture.resize((columns * cell, rows * cell)) for lane in race.lanes]
    width, height = pictures[0].size
    whole = GAP + len(pictures) * (width + GAP)
    caption = wrapped(race.caption, whole - 2 * GAP)
    names = [wrapped(lane.name, width) for lane in race.lanes]
    remarks = [line for text in [*race.notes, *warnings] for line in wrapped(text, whole - 2 * GAP)]
    top = GAP + LINE * len(caption) + GAP
    name_top = top + height + GAP // 2
    state_top = name_top + LINE * max(map(len, names))
    remark_top = state_top + LINE + GAP // 2
    bottom = remark_top + LINE * len(remarks) + GAP // 2
    background = Image.new("RGB", (whole, bottom), style.CARD)
    stage = Stage(background, pictures, top, state_top)
    put_text(background, GAP, GAP, caption, style.INK)
    put_text(background, GAP, remark_top, remarks, style.QUIET)
    for number, lines in enumerate(names):
        left = stage.left(number)
        background.paste(COVER, (left, top, left + width, top + height))
        put_text(background, left, name_top, lines, style.INK)
    return stage


def frame(race: Race, stage: Stage, seconds: float) -> Image.Image:
    """Draw the race after so many seconds."""
    image = stage.background.copy()
    for number, (lane, picture) in enumerate(zip(race.lanes, stage.pictures, strict=True)):
        left = stage.left(number)
        cells = Image.fromarray(lane.drawn(seconds).astype(np.uint8) * 255)
        shown = cells.resize(picture.size, Image.Resampling.NEAREST)
        image.paste(picture, (left, stage.top), shown)
        put_text(image, left, stage.state_top, [lane.state(seconds)], style.QUIET)
    return image


def palette_of(first: Image.Image, last: Image.Image) -> Image.Image:
    """Return an image whose palette suits both frames, and so all between them."""
    both = Image.new("RGB", (first.width, 2 * first.height))
    both.paste(first, (0, 0))
    both.paste(last, (0, first.height))
    return both.quantize(256)


def wrapped(text: str, pixels: int) -> list[str]:
    """Break text into lines no wider than so many pixels of a frame."""
    return style.wrap(one_line(text, 400), pixels * style.SIZE / FONT)


def put_text(
    image: Image.Image, left: int, top: int, lines: Sequence[str], colour: str
) -> None:
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((left, top + LINE * number), line, colour, font())


@cache
def font() -> ImageFont.FreeTypeFont:
    file = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    return ImageFont.truetype(file, FONT)
