"""``report`` as the command and Python call it: runs by name, and one object with what was written."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from lanternbench.experiment.run_folder import find
from lanternbench.report.load import AnyRun, ReportRow, Run, View, name_of
from lanternbench.report.race import write_race
from lanternbench.report.tables import frame
from lanternbench.report.write import check_formats, read_report, write_files
from lanternbench.settings import ReportSpec


@dataclass(frozen=True, repr=False)
class WrittenReport:
    """The files of a report, the page last, and the runs and rows that they show.

    ``race``: the GIF of one prompt's images, if it was asked for.
    """

    files: list[Path]
    race: Path | None
    runs: Sequence[Run]
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
    """Write the report of runs, by default of the latest: in ``<run>/report``, or in ``report``
    next to several runs.

    Raises UserError if a folder is no run, holds no results, is damaged, or ``out`` cannot be
    written.
    """
    check_formats(spec.formats)
    folders = find(spec.results, [name_of(run) for run in runs])
    content = read_report(folders, spec)
    race = None
    if spec.race is not None:
        race = write_race(content.runs, spec.race, content.view, content.warnings)
    place = folders[0] if len(folders) == 1 else folders[0].resolve().parent
    files = write_files(content, spec.out or place / "report", spec)
    return WrittenReport(files, race, content.runs, content.rows, content.view)
