"""A run as pandas frames, for your own analyses."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import find, iter_samples
from lanternbench.measure.figures import BASELINE
from lanternbench.metrics import key_of
from lanternbench.report.listing import forest
from lanternbench.report.load import (
    AnyRun,
    Run,
    joined_rows,
    load_run,
    name_of,
    warnings_of,
)
from lanternbench.report.scatter import scatter
from lanternbench.report.style import NARROW, add_warnings
from lanternbench.report.tables import frame
from lanternbench.report.tradeoff import quality_columns, trade_off
from lanternbench.utils.text import one_line

OVERVIEW = (
    "label",
    "lossless",
    "speedup",
    "speedup_lo",
    "speedup_hi",
    "accept_len",
    "fidelity_loss",
)
LEFT_OUT = {"token_ids", "metrics", "stats", "drafter", "phases", "options", "key"}


@dataclass(frozen=True, repr=False)
class RunFrames(Run):
    """A run: ``summary`` has a row per method, ``samples`` a row per image; ``notes`` say how to
    read the figures; ``recipe``: guidance, temperature, prompts, device, and what else they depend
    on.
    """

    def __repr__(self) -> str:
        speeds = []
        for row in self.rows:
            speedup = row.value("speedup")
            if speedup is not None and row.label != BASELINE:
                speeds.append(f"{row.label} {speedup:.2f}×")
        images = sum(row.n for row in self.rows)
        text = f"{self.run_id}: {images} images of {self.target}"
        return one_line(f"{text}; {', '.join(speeds)}" if speeds else text)

    @property
    def path(self) -> Path:
        return self.folder

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Figures by name, each with ``_lo`` and ``_hi`` (95 %), ``_n`` (images) and ``_p`` (against
        ar).
        """
        return frame(joined_rows([self]))

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per image, with a column per metric; the tokens themselves are in
        ``tokens.safetensors``.  Raises UserError for a damaged samples.jsonl."""
        records = []
        for sample in iter_samples(self.path):
            drafter = {f"drafter_{name}": value for name, value in (sample.drafter or {}).items()}
            figures = sample.metrics | (sample.stats or {}) | drafter | (sample.phases or {})
            records.append(sample.model_dump(exclude=LEFT_OUT) | figures)
        return pd.DataFrame(records)

    def plot(self, quality: str | None = None) -> Figure:
        """Draw speeds with their intervals; or speedup against ``fidelity_loss`` or a metric, of
        methods that trade it.

        Raises UserError if the run has no such figure.
        """
        rows = joined_rows([self])
        columns = {column.key: column for column in quality_columns(rows)}
        plot = forest(rows, NARROW) if quality is None else None
        if plot is None:
            key = key_of(quality or "speeds", columns)
            if key not in columns:
                choice = ", ".join(columns) or "none"
                raise UserError(f"the run has no {key} to plot: choose of {choice}")
            plot = scatter(trade_off(rows, columns[key]), NARROW)
        add_warnings(plot.figure, warnings_of(rows))
        return plot.figure

    def _repr_html_(self) -> str:
        overview = self.summary.filter(OVERVIEW)
        return str(overview.to_html(index=False, escape=True, float_format="{:.3g}".format))


def run_frames(path: AnyRun) -> RunFrames:
    """Return a run folder, or the id or name of a run under ``results/``, as frames.  Raises
    UserError if there is no such run.
    """
    return RunFrames(**vars(load_run(find(Path("results"), [name_of(path)])[0])))
