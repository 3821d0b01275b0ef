"""Runs as a report sees them: damaged or incomplete ones too, none of whose values is relied on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lanternbench.errors import UserError
from lanternbench.experiment.run_reader import read_run, samples_digest, scan
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.samples import Sample
from lanternbench.measure.summaries import Row, read_summary
from lanternbench.measure.summary import counts, renewed
from lanternbench.notes import Note

_SETTINGS = (
    *("drafter", "random_weights", "simulate_acceptance", "seed", "temperature", "top_k", "top_p", "guidance", "batch"),
    *("dtype", "compile", "threads", "workers", "torch"),
)


@dataclass(frozen=True)
class Run:
    """One run folder: `run.json` as `info`, `summary.json` as `rows` and `notes`."""

    folder: Path
    info: dict[str, Any]
    rows: list[Row]
    notes: list[Note]

    def part(self, name: str) -> dict[str, Any]:
        """A part of run.json: config, environment, prompts or target."""
        found = self.info.get(name)
        return found if isinstance(found, dict) else {}

    @property
    def run_id(self) -> str:
        return str(self.info.get("run_id") or self.folder.name)

    @property
    def target(self) -> str:
        return str(self.part("target").get("name") or "–")

    @property
    def dataset(self) -> str:
        return str(self.part("prompts").get("dataset") or self.part("prompts").get("source") or "–")

    @property
    def setup(self) -> dict[str, str]:
        """What figures of two runs must share to be compared, by name."""
        found = {"target": self.target, "prompts": f"{self.dataset} {str(self.part('prompts').get('hash'))[:8]}"}
        given = {name: value for name, value in self.part("config").items() if value is not None}
        known = self.part("environment") | given
        found |= {name.replace("_", " "): str(known[name]) for name in _SETTINGS if name in known}
        return found | {"hardware": self.hardware}

    @property
    def weights(self) -> dict[str, str]:
        """Digests of the target's and drafter's files by part; nothing where the run does not record them."""
        found = self.part("target").get("weights")
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    def like(self, other: Run) -> bool:
        """May figures of the two runs be compared?"""
        unknown = not self.weights or not other.weights
        return self.setup == other.setup and (unknown or self.weights == other.weights)

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) of image tokens, None when run.json does not say."""
        grid = self.part("target").get("grid")
        if isinstance(grid, list) and len(grid) == 2 and all(isinstance(n, int) and 0 < n <= 4096 for n in grid):
            return grid[0], grid[1]
        return None

    @property
    def before(self) -> int:
        """Image tokens of grids that were drawn before that one."""
        count = self.part("target").get("tokens_before", 0)
        return count if isinstance(count, int) and 0 < count <= 4096**2 else 0

    @property
    def draws(self) -> bool:
        """Has its target an image tokeniser?"""
        return self.part("target").get("evaluators") != "none"

    @property
    def hardware(self) -> str:
        """The GPU's name, or the CPU's where there is none or the run did not use it."""
        environment = self.part("environment")
        device = str(environment.get("device") or self.part("config").get("device") or "")
        gpus = environment.get("gpus")
        first = gpus[0] if isinstance(gpus, list) and gpus and not device.startswith("cpu") else environment.get("gpu")
        name = first.get("name") if isinstance(first, dict) else first
        return str(name or environment.get("cpu") or "–")


@dataclass(frozen=True)
class ReportRow(Row):
    """A row in a report: of which run, measured where; rows of unequal ``setup`` must not be compared."""

    run: str | None = None  # where there are several
    setup: int = 1
    hardware: str = "–"


@dataclass
class Picked:
    """Samples chosen for the image grid: cells[(prompt_id, label)], and what was left out."""

    captions: dict[str, str] = field(default_factory=dict)  # by prompt id, in the order of the run
    cells: dict[tuple[str, str], Sample] = field(default_factory=dict)
    prompts_total: int = 0
    more_seeds: bool = False


class LossByPlace(NamedTuple):
    """The fidelity loss of an image's rows and of its columns, an entry per sample."""

    row: list[list[float]]
    column: list[list[float]]


@dataclass
class Contents:
    """What a report needs of a run's samples, read in one pass."""

    figures: Figures = field(default_factory=Figures)
    picked: Picked = field(default_factory=Picked)
    losses: dict[str, LossByPlace] = field(default_factory=dict)  # by label, of methods that draw several rows at once
    damaged: int = 0


def load_run(folder: Path, figures: Figures | None = None) -> Run:
    """One run folder, as its samples are now; ``figures``: of its samples, where they are read already.

    Raises UserError when it is no run, holds no results, or its JSON is damaged.
    """
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise UserError(f"{folder} is not a run folder (no run.json): give a folder that `lanternbench run` wrote.")
    info, summary = read_run(folder), read_summary(folder)
    changed = summary.samples not in (None, samples_digest(folder))
    if figures is None and (changed or summary.samples is None):
        figures = Figures(line.sample for line in scan(folder / "samples.jsonl") if line.sample)
    if figures and (changed or (summary.rows and counts(figures) != {row.label: row.n for row in summary.rows})):
        summary = renewed(figures, info, summary)
    if not summary.rows:
        raise UserError(f"{folder} holds no results (summary.json has no rows): run it again with --resume.")
    rows = sorted(summary.rows, key=lambda row: BASELINE not in (row.method, row.label))
    return Run(folder, info, rows, summary.all_notes())


def load_runs(folders: list[Path]) -> list[Run]:
    """All runs, in the order given. Raises UserError when there is none."""
    if not folders:
        raise UserError("There is no run to report: name a run folder, or make one with `lanternbench run`.")
    return [load_run(folder) for folder in folders]


def joined_rows(runs: list[Run]) -> list[ReportRow]:
    """The rows of all runs, each with its hardware, and of several runs with the run's name and setup."""
    names = [run.run_id for run in runs]
    names = [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]
    setups: list[Run] = []
    for run in runs:
        setups += [] if any(run.like(one) for one in setups) else [run]
    numbers = [next(i for i, one in enumerate(setups, 1) if run.like(one)) for run in runs]
    return [
        ReportRow(**vars(row), run=name if len(runs) > 1 else None, setup=number, hardware=run.hardware)
        for run, name, number in zip(runs, names, numbers)
        for row in run.rows
    ]


def differing(runs: list[Run]) -> str | None:
    """What keeps figures of several runs from being compared, each setting with its values; None if nothing does."""
    found = []
    for name in dict.fromkeys(name for run in runs for name in run.setup):
        values = list(dict.fromkeys(run.setup.get(name, "–") for run in runs))
        if len(values) > 1:
            found.append(f"{name} ({', '.join(values)})")
    known = [run.weights for run in runs if run.weights]
    parts = dict.fromkeys(part for weights in known for part in weights)
    if other := [part for part in parts if len({weights.get(part) for weights in known}) > 1]:
        found.append(f"the weights of {', '.join(other)}, whose files are not the same")
    text = f"The runs differ in {'; '.join(found)}: do not compare their latencies or qualities."
    return text if found else None


def read_contents(run: Run, prompts: int) -> Contents:
    """The samples of a run, read once: their figures, and for the image grid those of the first ``prompts`` prompts.

    Of each prompt and label one image is picked, of the prompt's first seed.
    """
    contents, seeds = Contents(), dict[str, int]()
    picked = contents.picked
    for line in scan(run.folder / "samples.jsonl"):
        sample = line.sample
        if sample is None:
            contents.damaged += 1
            continue
        contents.figures.add(sample)
        if run.grid and (len(sample.row_loss or ()), len(sample.column_loss or ())) == run.grid:
            found = contents.losses.setdefault(sample.label, LossByPlace([], []))
            found.row.append(sample.row_loss or [])
            found.column.append(sample.column_loss or [])
        if seeds.setdefault(sample.prompt_id, sample.seed) != sample.seed:
            picked.more_seeds = True
        elif sample.prompt_id in picked.captions or len(picked.captions) < prompts:
            picked.captions.setdefault(sample.prompt_id, sample.prompt)
            small = sample.model_copy(update={"token_ids": []})
            picked.cells.setdefault((sample.prompt_id, sample.label), small)
    picked.prompts_total = len(seeds)
    return contents


def image_path(run: Run, sample: Sample) -> Path | None:
    """The sample's image file; None when it is missing or its path leaves the run folder."""
    if not sample.image:
        return None
    path = (run.folder / sample.image).resolve()
    return path if path.is_relative_to(run.folder.resolve()) and path.is_file() else None
