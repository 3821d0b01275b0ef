"""Finished runs in experiment trackers, through the trackers' own clients: settings, numbers of
methods, and the report's plots.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from lanternbench.errors import UserError
from lanternbench.notes import Note
from lanternbench.report.images import grid_figure
from lanternbench.report.style import image_of
from lanternbench.report.write import drawn_pictures, read_report
from lanternbench.settings import ReportSpec, Sweep
from lanternbench.utils.text import one_line

DPI = 150


class Logged(NamedTuple):
    """The pieces of a run that a tracker gets: ``figures`` by FIGURE/METHOD, ``plots`` by title."""

    folder: Path
    settings: dict[str, object]
    figures: dict[str, float]
    plots: dict[str, Image.Image]


class TensorBoard:
    """Event files in ``RUN/tensorboard``."""

    def __init__(self, sweep: Sweep):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter

    def log(self, run: Logged) -> None:
        with self._writer(str(run.folder / "tensorboard")) as writer:
            for name, figure in run.figures.items():
                writer.add_scalar(name, figure)
            for name, value in run.settings.items():
                writer.add_text(f"settings/{name}", str(value))
            for title, plot in run.plots.items():
                writer.add_image(title, np.asarray(plot), dataformats="HWC")


class WandB:
    """A run in Weights & Biases, in the project of ``WANDB_PROJECT`` or in ``lanternbench``."""

    def __init__(self, sweep: Sweep):
        import wandb

        # its statistics of the machine would take time from what is measured
        settings = wandb.Settings(console="off", x_disable_stats=True)
        project = os.environ.get("WANDB_PROJECT", "lanternbench")
        self._image = wandb.Image
        self._run = wandb.init(
            project=project, name=sweep.name, settings=settings, reinit="finish_previous"
        )

    def log(self, run: Logged) -> None:
        self._run.name = run.folder.name
        self._run.config.update(run.settings)
        self._run.summary.update(run.figures)
        self._run.log({title: self._image(plot) for title, plot in run.plots.items()})
        self._run.finish()


Client = TensorBoard | WandB
CLIENTS: dict[str, type[Client]] = {"tensorboard": TensorBoard, "wandb": WandB}


class Tracking(NamedTuple):
    """A tracker that waits for a run."""

    client: Client

    def log(self, folder: Path) -> list[Note]:
        """Log a finished run; return a warning if that failed."""
        try:
            self.client.log(logged(folder))
        except Exception as error:  # what was computed counts, whatever the client raises
            text = f"The run is complete, but its tracker failed ({one_line(str(error))})"
            return [Note("warning", None, f"{text}: the same command logs it again.")]
        return []


def started(name: str, sweep: Sweep) -> Tracking:
    """Return a tracker by name.  Raises UserError if it is not installed or does not start."""
    try:
        return Tracking(CLIENTS[name](sweep))
    except ModuleNotFoundError:
        text = f"--tracker {name} needs a package that is not installed"
        raise UserError(f"{text}: pip install 'lanternbench[{name}]'") from None
    except Exception as error:  # whatever the client raises
        text = f"--tracker {name} does not start ({one_line(str(error))})"
        raise UserError(f"{text}: correct that, or leave the tracker out") from None


def logged(folder: Path) -> Logged:
    """Return what a tracker gets of a run."""
    spec = ReportSpec()
    content = read_report([folder], spec)
    (run,) = content.runs
    record = run.record
    figures = {}
    for row in content.rows:
        for name, figure in row.figures.items():
            if figure.value is not None:
                figures[f"{name}/{row.label}"] = figure.value
    speeds, steps = drawn_pictures(content)
    plots = {one.title: image_of(one.wide.figure, DPI) for one in [*speeds, *steps]}
    if record.target.draws_images:
        grid = grid_figure(run, spec.grid_prompts)
        plots["Images"] = image_of(grid, DPI)
    settings = record.config.written() | {"environment": record.environment.written()}
    return Logged(folder, settings, figures, plots)
