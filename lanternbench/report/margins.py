"""Tests of a run's methods against ar, metric by metric: not worse by more than a margin."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lanternbench import metrics
from lanternbench.errors import UserError
from lanternbench.experiment.config import expand
from lanternbench.experiment.run_folder import iter_samples, runs
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.margins import (
    Difference,
    MarginTest,
    bootstrap_difference,
    judge_margins,
    paired_difference,
    prompts_to_decide,
)
from lanternbench.measure.run_record import RunRecord
from lanternbench.measure.statistics import Floats
from lanternbench.measure.summary import read_summary
from lanternbench.metrics import Evaluators, Setup
from lanternbench.metrics.feature_metric import FeatureMetric
from lanternbench.metrics.features import features as net_features
from lanternbench.metrics.images import ImageFiles
from lanternbench.report.load import Contents, Run, read_contents
from lanternbench.settings import Sweep

REPLICATES = 200  # resamplings of the prompts for a metric of whole sets of images


def resolved(margins: Mapping[str, float], evaluators: Evaluators | None) -> dict[str, float]:
    """Return the margins by the columns that the target's ``evaluators`` have for these names.
    Raises UserError for a metric without a better direction.
    """
    found: dict[str, float] = {}
    for name, size in margins.items():
        for scorer in metrics.scorers_for([name], evaluators or "tiny"):
            if metrics.column(scorer.name).higher_is_better is None:
                raise UserError(f"--not-worse {name}: neither higher nor lower is better")
            found[scorer.name] = size
    return found


def better(key: str) -> int:
    """Return 1 for a metric of which higher values are better, else −1."""
    return 1 if metrics.column(key).higher_is_better else -1


class MarginPlan(NamedTuple):
    """The prompts that would decide a margin for all methods of a sweep; None if no ``run`` says
    how much scores differ.
    """

    figure: str
    margin: float
    prompts: int | None
    run: str

    def __str__(self) -> str:
        text = f"Not worse in {self.figure} by more than {self.margin:g}:"
        if self.prompts is None:
            return f"{text} the prompts that decide are known after a first run of this target"
        return f"{text} about {self.prompts:,} prompts would decide, by the scores of {self.run}"


def planned(config: Sweep, results: Path) -> list[MarginPlan]:
    """Return a plan for each margin of a sweep, by the latest run of its target that has scores."""
    methods = [method for method in expand(config) if method.label != BASELINE]
    tests = len(methods) * len(config.not_worse)
    earlier = [(path, run) for path, run in runs(results) if run.config.target == config.target]
    return [_planned(name, size, tests, earlier) for name, size in config.not_worse.items()]


def _planned(
    name: str, margin: float, tests: int, earlier: Sequence[tuple[Path, RunRecord]]
) -> MarginPlan:
    for folder, record in earlier:
        figures = read_contents(folder).figures
        for key in resolved({name: margin}, record.target.evaluators):
            found = _of_prompts(key, figures)
            if found:
                needed = max(prompts_to_decide(one, margin, tests) for one in found)
                return MarginPlan(key, margin, needed, folder.name)
    return MarginPlan(name, margin, None, "")


def margin_tests(
    run: Run, contents: Contents, margins: Mapping[str, float], must_judge: bool = True
) -> list[MarginTest]:
    """Return the test of each method of a run against ar in each metric that has a margin.

    Raises UserError for an unknown metric, and with ``must_judge`` for one that was not scored.
    """
    sizes = resolved(margins, run.record.target.evaluators)
    differences: list[Difference] = []
    for key in sizes:
        if key in contents.figures.metrics:
            found = _of_prompts(key, contents.figures)
        else:
            found = _of_sets(key, run)
        if not found and must_judge:
            raise UserError(
                f"--not-worse {key}: {run.run_id} has no such scores of ar and of another"
                f" method over two shared prompts: lanternbench score {run.run_id} --metrics"
                f" {metrics.column(key).metric}"
            )
        differences += found
    return judge_margins(differences, sizes)


def _of_prompts(key: str, figures: Figures) -> list[Difference]:
    """Return the differences from ar of a metric that has a value for each image."""
    if BASELINE not in figures.labels:
        return []
    old = figures.values(key, BASELINE)
    found = []
    for label in figures.labels:
        if label != BASELINE:
            new = figures.values(key, label)
            found.append(paired_difference(key, label, BASELINE, new, old, better(key)))
    return [difference for difference in found if difference is not None]


def _of_sets(key: str, run: Run) -> list[Difference]:
    """Return the differences from ar of a metric of whole sets of images."""
    column = metrics.column(key)
    reference = read_summary(run.folder).reference
    setup = Setup(None if reference is None else Path(reference.folder))
    scorer = metrics.metric_class(column.metric)(column.metric, setup)
    images = images_by_label(run)
    old = images.pop(BASELINE, {})
    if not isinstance(scorer, FeatureMetric) or scorer.available():
        return []
    found = []
    of_ar: dict[tuple[str, ...], Floats] = {}  # by the prompts that a method shares with ar
    for label, new in images.items():
        shared = tuple(prompt for prompt in new if prompt in old)
        if len(shared) < 2:
            continue
        if shared not in of_ar:
            of_ar[shared] = resampled_values(scorer, [old[prompt] for prompt in shared])
        of_new = resampled_values(scorer, [new[prompt] for prompt in shared])
        values = better(key) * (of_new - of_ar[shared])
        found.append(bootstrap_difference(key, label, BASELINE, values, len(shared)))
    return found


def images_by_label(run: Run) -> dict[str, dict[str, list[Path]]]:
    """Return the image files of a run by label and prompt id."""
    images: dict[str, dict[str, list[Path]]] = {}
    for sample in iter_samples(run.folder):
        path = run.image_path(sample)
        if sample.image and path is not None:
            of_label = images.setdefault(sample.label, {})
            of_label.setdefault(sample.prompt_id, []).append(path)
    return images


def resampled_values(scorer: FeatureMetric, images: Sequence[list[Path]]) -> Floats:
    """Return the value of images, given as a list per prompt, and that of resampled prompts
    [1 + REPLICATES].  The resampled prompts are the same for each method.
    """
    rng = np.random.default_rng(0)
    prompts = len(images)
    draws = [np.arange(prompts)]
    draws += [rng.integers(prompts, size=prompts) for _ in range(REPLICATES)]
    files = list(itertools.chain.from_iterable(images))
    features = net_features(scorer.net, ImageFiles(files, strict=True))
    ends = np.cumsum([len(of_prompt) for of_prompt in images])
    rows = np.split(np.arange(len(files)), ends[:-1])
    values = []
    for drawn in draws:
        chosen = np.concatenate([rows[prompt] for prompt in drawn])
        values.append(scorer.values(features[chosen])[0])
    return np.array(values)
