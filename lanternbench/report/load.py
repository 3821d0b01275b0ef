"""Runs as a report sees them, and which of their methods and columns it shows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from lanternbench import __version__
from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import read_run, samples_digest, scan_samples
from lanternbench.measure.figures import BASELINE, Figures, acceptance
from lanternbench.measure.run_notes import counts
from lanternbench.measure.run_record import RunRecord
from lanternbench.measure.samples import Sample
from lanternbench.measure.statistics import mean_over_runs
from lanternbench.measure.summary import Row, read_summary, renewed
from lanternbench.metrics import key_of
from lanternbench.notes import Note, by_importance
from lanternbench.registry import components
from lanternbench.report.columns import Column, columns
from lanternbench.utils.files import read_yaml
from lanternbench.utils.text import one_line


@dataclass(frozen=True)
class Run:
    """One run folder: `run.json` as `record`, `summary.json` as `rows` and `notes`."""

    folder: Path
    record: RunRecord
    rows: list[Row]
    notes: list[Note]

    @property
    def run_id(self) -> str:
        return self.record.run_id or self.folder.name

    @property
    def target(self) -> str:
        return self.record.target.name or "–"

    @property
    def dataset(self) -> str:
        return self.record.prompts.dataset or self.record.prompts.source or "–"

    @property
    def setup(self) -> dict[str, str]:
        """The settings that figures of two runs must share to be compared, by name."""
        prompts = f"{self.dataset} {str(self.record.prompts.hash)[:8]}"
        return {"target": self.target, "prompts": prompts, **self.record.setup()}

    @property
    def weights(self) -> dict[str, str]:
        """Digests of the target's and drafter's files by part, if the run records them."""
        return self.record.target.weights

    @property
    def hardware(self) -> str:
        """The GPU's name, or the CPU's if there is none or the run did not use it."""
        return self.record.environment.hardware or "–"

    @property
    def recipe(self) -> dict[str, str]:
        """The settings of the run; the defaults of a target are named as such."""
        record = self.record
        environment = record.environment
        template = record.target.prompt_template
        templates = {None: "not recorded", "{caption}": "the caption alone"}
        count = f", {record.prompts.count} prompts" if record.prompts.count else ""
        device = environment.device or record.config.device or "not recorded"
        version = [environment.lanternbench or "not recorded"]
        if environment.commit is not None:
            version.append(f"commit {environment.commit[:12]}")
        recipe = {
            "target": self.target,
            **record.sampling(),
            "prompts": f"{self.dataset}{count}",
            "prompt template": templates.get(template, json.dumps(template)),
            "resize": "none; each metric scales the decoded images for its network",
            "images": f"{sum(row.n for row in self.rows)} ({len(self.rows)} methods)",
            "seed": str(record.config.seed),
            "batch": str(record.config.batch),
            "device": f"{device} ({self.hardware})",
            "threads": str(environment.threads or "not recorded"),
            "version": ", ".join(version),
        }
        if record.target.top_k is not None and "top_k" not in record.config.model_fields_set:
            recipe["top-k"] = str(record.target.top_k)
        if record.config.suite:
            recipe["suite"] = record.config.suite
        if environment.dtype:
            recipe["dtype"] = ", ".join(filter(None, [environment.dtype, environment.compile]))
        return recipe

    def image_path(self, sample: Sample) -> Path | None:
        """The sample's image file; None if it is missing or its path leaves the run folder."""
        path = (self.folder / (sample.image or "")).resolve()
        return path if path.is_relative_to(self.folder.resolve()) and path.is_file() else None


class ReportRow(Row):
    """A row with its run and hardware; rows of unequal ``setup`` must not be compared."""

    run: str | None = None  # if there are several
    place: int = 0  # of its run among several
    setup: int = 1
    hardware: str = "–"
    warnings: tuple[str, ...] = ()  # sentences that stand wherever its figures do
    seeds: tuple[int, ...] = ()  # of the runs whose mean it is, if it is one

    @property
    def name(self) -> str:
        """The label, with the number of its run if there are several."""
        label = one_line(self.label, 60)
        return label if self.run is None else f"{label} ({self.place + 1})"


@dataclass
class Contents:
    """The samples of a run as a report needs them; of each prompt and label one sample for the
    grid.
    """

    figures: Figures = field(default_factory=Figures)
    # of the grid, by prompt id, in the order of the run
    captions: dict[str, str] = field(default_factory=dict)
    # of the grid, by prompt id and label
    cells: dict[tuple[str, str], Sample] = field(default_factory=dict)
    more_seeds: bool = False  # than the grid shows
    # by label, of methods that draw several rows at once: the losses of each sample by row and by
    # column of the image
    losses: dict[str, list[tuple[list[float], list[float]]]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)  # why lines were left out


def read_contents(folder: Path, prompts: int = 0) -> Contents:
    """Read the samples of a run once; for the grid those of the first ``prompts`` prompts, of
    each its first seed.
    """
    contents = Contents()
    seeds: dict[str, int] = {}
    for line in scan_samples(folder):
        sample = line.entry
        if sample is None:
            contents.damaged.append(f"line {line.number}: {line.why}")
            continue
        contents.figures.add(sample)
        if sample.row_loss and sample.column_loss:
            losses = contents.losses.setdefault(sample.label, [])
            losses.append((sample.row_loss, sample.column_loss))
        prompt = sample.prompt_id
        if seeds.setdefault(prompt, sample.seed) != sample.seed:
            contents.more_seeds = True
        elif prompt in contents.captions or len(contents.captions) < prompts:
            contents.captions.setdefault(prompt, sample.prompt)
            shown = sample.model_copy(update={"token_ids": []})
            contents.cells.setdefault((prompt, sample.label), shown)
    return contents


def load_run(folder: Path, contents: Contents | None = None) -> Run:
    """Load one run folder with its current samples; ``contents``: these, if already read.

    What summary.json says counts if this version wrote it for these samples.  Raises UserError if
    it is no run, holds no samples, or its JSON is damaged.
    """
    record = read_run(folder)
    summary = read_summary(folder)
    is_current = (
        summary.lanternbench == __version__
        and summary.seal is not None
        and summary.samples == samples_digest(folder)
    )
    if contents is None and not is_current:
        contents = read_contents(folder)
    damage = []
    if contents is not None:
        # the run may have gone on since they were read
        counted = {row.label: row.n for row in summary.rows}
        if not is_current or counts(contents.figures) != counted:
            summary = renewed(contents.figures, record, summary)
        if contents.damaged:
            text = f"{len(contents.damaged)} damaged line(s) of samples.jsonl were left out"
            damage.append(Note("warning", None, f"{text} ({contents.damaged[0]})."))
    if not summary.rows:
        raise UserError(
            f"{folder} holds no samples (samples.jsonl is missing or empty): run it again with"
            " --resume."
        )
    rows = sorted(summary.rows, key=lambda row: BASELINE not in (row.method, row.label))
    return Run(folder, record, rows, summary.all_notes() + damage)


AnyRun = str | Path | Run  # a run's id or name, its folder, or itself


def name_of(run: AnyRun) -> str:
    """Return a run's id, name or folder.  Raises UserError for what is no run."""
    if isinstance(run, Run):
        return str(run.folder)
    if isinstance(run, str | Path):
        return str(run)
    raise UserError(f"{run!r} is no run: give a run's id or folder, or what `run` returned")


def seed_groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs that differ in nothing but the seed, and the prompts that it chooses,
    together.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        setup = {**run.setup, **run.weights, "prompts": run.dataset, "seed": ""}
        groups.setdefault(str(setup), []).append(run)
    for group in groups.values():
        if len({run.record.config.seed for run in group}) < len(group):
            return [[run] for run in runs]
    return list(groups.values())


def joined_rows(runs: Sequence[Run]) -> list[ReportRow]:
    """Return the rows of all runs; a row of runs that differ in the seed alone is their mean."""
    groups = seed_groups(runs)
    rows = rows_by_run(runs)
    if len(groups) == len(runs):
        return rows
    joined = []
    for place, group in enumerate(groups):
        of_group = [row for row in rows if runs[row.place] in group]
        changes = {"place": place, "run": of_group[0].run if len(groups) > 1 else None}
        for label in dict.fromkeys(row.label for row in of_group):
            of_label = [row for row in of_group if row.label == label]
            row = mean_over_seeds(of_label, group) if len(group) > 1 else of_label[0]
            joined.append(row.model_copy(update=changes))
    return joined


def mean_over_seeds(rows: Sequence[ReportRow], runs: Sequence[Run]) -> ReportRow:
    """Return the mean of a method's rows in runs of several seeds, with intervals over the runs."""
    first = rows[0]
    lengths = [row.accept_histogram for row in rows]
    histogram = [sum(counts) for counts in zip_longest(*lengths, fillvalue=0)]
    figures = {}
    for key in first.figures:
        figures[key] = mean_over_runs([row.figure(key) for row in rows])
    changes = {
        "n": sum(row.n for row in rows),
        "figures": figures,
        "accept_histogram": histogram,
        "acceptance": acceptance(histogram),
        "warnings": tuple(dict.fromkeys(text for row in rows for text in row.warnings)),
        "seeds": tuple(run.record.config.seed for run in runs),
    }
    return first.model_copy(update=changes)


def intervals_of(rows: Sequence[ReportRow]) -> str:
    """Say what the intervals of rows are."""
    seeds = dict.fromkeys(seed for row in rows for seed in row.seeds)
    if not seeds:
        return "bootstrap 95 % intervals over prompts"
    listed = ", ".join(map(str, seeds))
    return f"Student's 95 % intervals over runs with the seeds {listed}, whose means these are"


def rows_by_run(runs: Sequence[Run]) -> list[ReportRow]:
    """Return the rows of all runs, each with its hardware, and of several runs with the run's name
    and setup.
    """
    ids = [run.run_id for run in runs]
    setups: list[Run] = []  # the first run of each
    difference = differing(runs)
    rows = []
    for place, run in enumerate(runs):
        name = run.run_id if ids.count(run.run_id) == 1 else f"{run.run_id} ({place + 1})"
        alike = [differing([first, run]) is None for first in setups]
        if not any(alike):
            setups.append(run)
            alike.append(True)
        shown = name if len(runs) > 1 else None
        for row in run.rows:
            notes = [note for note in run.notes if note.label in (None, row.label)]
            if difference is not None:
                notes.append(difference)
            facts = [note.short for note in by_importance(notes) if note.fact is not None]
            about = ReportRow(
                **vars(row),
                run=shown,
                place=place,
                setup=1 + alike.index(True),
                hardware=run.hardware,
                warnings=tuple(facts),
            )
            rows.append(about)
    return rows


def warnings_of(rows: Sequence[ReportRow]) -> list[str]:
    """Return the warnings of rows, each once and with the runs that it concerns if these are not
    all.
    """
    runs_by_warning: dict[str, dict[str | None, None]] = {}
    for row in rows:
        for text in row.warnings:
            runs_by_warning.setdefault(text, {})[row.run] = None
    count = len({row.run for row in rows})
    warnings = []
    for text, runs in runs_by_warning.items():
        concerned = "" if len(runs) == count else f"{', '.join(map(str, runs))}: "
        warnings.append(concerned + text)
    return warnings


def differing(runs: Sequence[Run]) -> Note | None:
    """Return what keeps figures of several runs from being compared, each setting with its
    values; None if nothing does.
    """
    differences = []
    runs = [group[0] for group in seed_groups(runs)]
    for name in dict.fromkeys(name for run in runs for name in run.setup):
        values = dict.fromkeys(run.setup.get(name, "–") for run in runs)
        if len(values) > 1:
            differences.append(f"{name} ({', '.join(values)})")
    parts = unequal([run.weights for run in runs])
    if parts:
        differences.append(f"the weights of {', '.join(parts)}, whose files are not the same")
    for metric in unequal([run.record.metric_weights for run in runs]):
        differences.append(f"the weights of the metric {metric}")
    if not differences:
        return None
    text = f"The runs differ in {'; '.join(differences)}: do not compare their latencies or qualities."
    return Note("unfit", None, text, "different runs")


def unequal(by_run: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names that have several values among the runs that have them."""
    values: dict[str, set[str]] = defaultdict(set)
    for of_run in by_run:
        for name, value in of_run.items():
            values[name].add(value)
    return [name for name, distinct in values.items() if len(distinct) > 1]


class View(NamedTuple):
    """``methods``: labels or names of methods, in the order shown; ``columns``: keys; ``names``:
    by label or method.

    Empty: all methods, the columns that each table chooses, the labels as they are.
    """

    methods: Sequence[str] = ()
    columns: Sequence[str] = ()
    names: Mapping[str, str] = {}

    def check_methods(self, runs: Sequence[Run]) -> None:
        """Raise UserError for a method that none of the runs has."""
        rows = [row for run in runs for row in run.rows]
        names = dict.fromkeys(name for row in rows for name in (row.label, row.method))
        for name in self.methods:
            if name not in names:
                raise UserError(f"--methods: no run has {name!r}: choose of {', '.join(names)}.")

    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of the chosen methods."""
        if not self.methods:
            return list(rows)
        chosen: dict[str, Row] = {}
        for name in self.methods:
            for row in rows:
                if name in (row.label, row.method):
                    chosen.setdefault(row.label, row)
        return list(chosen.values())

    def name(self, row: Row) -> str:
        """Return the displayed text of a label: its name if set, or the method's within it."""
        if row.label in self.names:
            return self.names[row.label]
        return renamed(row, self.names)

    def labels(self, rows: Sequence[Row]) -> dict[str, str]:
        """Return the displayed texts of labels.  Raises UserError for two of one text."""
        labels: dict[str, str] = {}  # by text
        for row in rows:
            text = self.name(row)
            other = labels.setdefault(text, row.label)
            if other != row.label:
                both = f"{other!r} and {row.label!r} are both called {text!r}"
                raise UserError(f"--names: {both}: give each method a name of its own.")
        return {label: text for text, label in labels.items()}

    def named(self, rows: Sequence[ReportRow]) -> list[ReportRow]:
        return [row.model_copy(update={"label": self.name(row)}) for row in rows]

    def columns_for(self, rows: Sequence[Row], table: str) -> list[Column]:
        """Return the columns of a table ("full", "md", "tex", "terminal"): the chosen ones, else
        those it chooses itself.

        Raises UserError for a column that these rows do not have.
        """
        if not self.columns:
            return columns(rows, table)
        by_key = {column.key: column for column in columns(rows) if not column.test}
        chosen = {key_of(name, by_key): name for name in self.columns}
        for key, name in chosen.items():
            if key not in by_key:
                choice = ", ".join(by_key)
                raise UserError(f"--columns: these runs have no {name!r}: choose of {choice}.")
        keys = dict.fromkeys(["run", "label", *chosen])
        return [by_key[key] for key in keys if key in by_key]


def paper_name(row: Row) -> str:
    """Return a label as papers write it: "Cool-SD (λ=2)"; one that --names changed stays."""
    presets = components("preset")
    titles = {row.method: presets[row.method].title} if row.method in presets else {}
    return renamed(row, titles)


def renamed(row: Row, names: Mapping[str, str]) -> str:
    """Return a label with its method's name in ``names`` and its options in brackets: "Cool-SD
    (λ=2, ν=0.7)".
    """
    if row.method not in names or not row.label.startswith(row.method):
        return row.label
    options = ", ".join(row.label.removeprefix(row.method).split())
    name = names[row.method]
    return f"{name} ({options})" if options else name


def read_names(path: Path) -> dict[str, str]:
    """Return names by label or method, from a YAML or JSON file such as ``eagle-1: EAGLE``.
    Raises UserError.
    """
    names = read_yaml(path, "a file of names")
    is_flat = isinstance(names, dict) and not any(
        isinstance(value, dict | list) for value in names.values()
    )
    if not is_flat:
        raise UserError(f"--names: {path} must have a line per method, such as `eagle-1: EAGLE`.")
    return {str(key): str(value) for key, value in names.items()}
