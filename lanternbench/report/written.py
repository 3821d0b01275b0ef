"""``report`` as the command and Python call it: runs by name, and one object with what was written."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from lanternbench.experiment.run_folder import find
from lanternbench.report.load import (
    AnyRun,
    ReportRow,
    Run,
    View,
    joined_rows,
    load_runs,
    name_of,
    read_names,
)
from lanternbench.report.race import write_race
from lanternbench.report.tables import frame
from lanternbench.report.write import report
from lanternbench.settings import ReportSpec


@dataclass(frozen=True, repr=False)
class WrittenReport:
    """The files of a report, the page last, and the runs and rows that they show.

    ``race``: the GIF of one prompt's images, if it was asked for.
    """

    files: list[Path]
    race: Path | None
    runs: list[Run]
    rows: list[ReportRow]
    view: View

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row per method, as ``RunFrames.summary``."""
        return frame(self.rows)

    def __repr__(self) -> str:
        ids = ", ".join(run.run_id for run in self.runs)
        return f"report of {ids}: {len(self.files)} files, the last is {self.files[-1]}"


def write_report(runs: Sequence[AnyRun], spec: ReportSpec) -> WrittenReport:
    """Write the report of runs, by default of the latest.  Raises UserError as ``report``."""
    folders = find(spec.results, [name_of(run) for run in runs])
    names = spec.names or {}
    if isinstance(names, Path):
        names = read_names(names)
    view = View(tuple(spec.methods), tuple(spec.columns), names)
    race = write_race(folders, spec.race, view) if spec.race else None
    files = report(
        folders,
        spec.out,
        spec.published,
        spec.formats or None,
        spec.budget,
        view,
        spec.grid_prompts if spec.grid else 0,
        spec.not_worse,
    )
    shown = view.of(load_runs(folders))
    return WrittenReport(files, race, shown, view.named(joined_rows(shown)), view)
