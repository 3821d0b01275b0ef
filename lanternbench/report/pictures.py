"""The pictures of a report, each for a wide page, and for a phone or one column of a paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lanternbench.measure.steps import Steps
from lanternbench.measure.summaries import Row
from lanternbench.report.acceptance import panels
from lanternbench.report.drawing import write_scene
from lanternbench.report.forest import forest, phases
from lanternbench.report.palette import PHASES
from lanternbench.report.pareto import axis_title, name_of, quality_columns, runs_of, scatter, speed_column, trade_off
from lanternbench.report.scene import NARROW, WIDE, Scene

PhaseTimes = list[tuple[str, str, dict[str, float]]]  # label, method, milliseconds of a step by phase


class Picture(NamedTuple):
    """``key`` is its file's name, ``title`` what the page's choice calls it; ``draw`` makes it so many pixels wide."""

    key: str
    title: str
    draw: Callable[[int], Scene]

    @property
    def wide(self) -> Scene:
        return self.draw(WIDE)

    @property
    def narrow(self) -> Scene:
        return self.draw(NARROW)


def speed_pictures(rows: Sequence[Row]) -> list[Picture]:
    """Speed as a forest plot, and speed against every quality that a relaxed method trades for it."""
    found = []
    if forest(rows, NARROW) is not None:
        name = axis_title(speed_column(rows)).split("  ")[0]
        found.append(Picture("speed", name[0].upper() + name[1:], lambda width: forest(rows, width)))  # type: ignore[arg-type, return-value]
    for quality in quality_columns(rows):
        data = trade_off(rows, quality)
        # the metric's name comes from a file: nothing but a file name may come of it
        stem = "pareto-" + re.sub(r"[^A-Za-z0-9_-]+", "_", quality.key)[:60]
        title = f"Speed against {quality.title}"
        found.append(Picture(stem, title, lambda width, data=data: scatter(data, width)))  # type: ignore[misc]
    return found


def step_pictures(rows: Sequence[Row], times: PhaseTimes) -> list[Picture]:
    """Acceptance by position, and the time of a step by phase."""
    found = []
    if panels(rows, NARROW) is not None:
        found.append(Picture("acceptance", "Acceptance by position of the draft", lambda width: panels(rows, width)))  # type: ignore[arg-type, return-value]
    if phases(times, NARROW) is not None:
        found.append(Picture("phases", "Time of a step by phase", lambda width: phases(times, width)))  # type: ignore[arg-type, return-value]
    return found


def phase_times(rows: Sequence[tuple[Row, Steps | None]]) -> PhaseTimes:
    """The mean step of every row by phase, from the seconds of its steps."""
    runs, found = runs_of([row for row, _ in rows]), []
    for row, steps in rows:
        if steps is not None and (count := sum(steps.histogram())):
            parts = {phase: 1000 * steps.phases.get(phase, 0.0) / count for phase in PHASES}
            found.append((name_of(row, runs), row.method, parts))
    return found


def write_pictures(pictures: Sequence[Picture], out: Path) -> list[Path]:
    """Each as .png, .svg and .pdf in ``out``, a column of a paper wide."""
    return [file for picture in pictures for file in write_scene(picture.narrow, out / picture.key)]
