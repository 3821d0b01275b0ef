"""A run as pandas frames, for your own analyses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from lanternbench.errors import UserError
from lanternbench.experiment.run_reader import find, iter_samples
from lanternbench.measure.samples import Sample
from lanternbench.notes import Note
from lanternbench.report.load import Run, load_run
from lanternbench.report.recipe import recipe
from lanternbench.report.tables import frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("label", "lossless", "speedup", "speedup_lo", "speedup_hi", "accept_len", "fidelity_loss")
LEFT_OUT = {"token_ids", "metrics", "stats", "drafter", "phases", "options", "key"}


@dataclass(frozen=True)
class RunFrames:
    """A run: ``summary`` has a row per method, ``samples`` a row per image."""

    run: Run

    @property
    def path(self) -> Path:
        return self.run.folder

    @property
    def notes(self) -> list[Note]:
        """What to know beside the figures."""
        return self.run.notes

    @property
    def recipe(self) -> dict[str, str]:
        """Guidance, temperature, prompts, device, and what else the figures depend on."""
        return recipe(self.run)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Figures by name, each beside ``_lo`` and ``_hi`` (95 %), ``_n`` (images) and ``_p`` (against ar)."""
        return frame(self.run.rows)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per image, with a column per metric; the tokens themselves are in ``tokens.safetensors``.

        Raises UserError for a damaged samples.jsonl.
        """
        return pd.DataFrame([_flat(sample) for sample in iter_samples(self.path)])

    def plot(self, quality: str | None = None) -> Figure:
        """Speeds with their intervals; or speedup against ``fidelity_loss`` or a metric, of methods that trade it.

        Raises UserError where the run has no such figure.
        """
        from lanternbench.report.drawing import scene_figure
        from lanternbench.report.forest import forest
        from lanternbench.report.pareto import quality_columns, scatter, trade_off
        from lanternbench.report.scene import NARROW

        rows = self.run.rows
        known = {column.key: column for column in quality_columns(rows)}
        if quality is None and (scene := forest(rows, NARROW)) is not None:
            return scene_figure(scene)
        if quality not in known:
            what = "speeds" if quality is None else quality
            raise UserError(f"the run has no {what} to plot: choose of {', '.join(known) or 'none'}")
        return scene_figure(scatter(trade_off(rows, known[quality]), NARROW))

    def _repr_html_(self) -> str:
        shown = [name for name in SHOWN if name in self.summary]
        return str(self.summary[shown].to_html(index=False, escape=True, float_format="{:.3g}".format))


def _flat(sample: Sample) -> dict[str, Any]:
    fields = sample.model_dump(exclude=LEFT_OUT)
    nested = ("", sample.metrics), ("", sample.stats), ("drafter_", sample.drafter), ("", sample.phases)
    return fields | {prefix + name: value for prefix, part in nested for name, value in (part or {}).items()}


def run_frames(path: str | Path) -> RunFrames:
    """A run folder, or the id or name of a run under ``results/``.  Raises UserError when there is no such run."""
    return RunFrames(load_run(find(Path("results"), [str(path)])[0]))
