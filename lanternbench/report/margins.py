"""Tests of a run's methods against ar, metric by metric: not worse by more than a margin."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lanternbench import metrics
from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import iter_samples
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.margins import (
    Difference,
    MarginTest,
    bootstrap_difference,
    judge_margins,
    paired_difference,
)
from lanternbench.measure.statistics import Floats
from lanternbench.measure.summary import read_summary
from lanternbench.metrics import Evaluators, Setup
from lanternbench.metrics.feature_metric import FeatureMetric
from lanternbench.metrics.features import features as net_features
from lanternbench.metrics.images import ImageFiles
from lanternbench.report.load import Contents, Run

REPLICATES = 200  # resamplings of the prompts for a metric of whole sets of images


class Scored(NamedTuple):
    """A metric by the key of its column, and whether higher values are better (1 or −1)."""

    key: str
    better: int


def resolved(margins: Mapping[str, float], evaluators: Evaluators | None) -> dict[Scored, float]:
    """Return the margins by the metrics that the target's ``evaluators`` have for these names.  Raises
    UserError for a metric without a better direction.
    """
    found: dict[Scored, float] = {}
    for name, size in margins.items():
        for scorer in metrics.scorers_for([name], evaluators or "tiny"):
            direction = metrics.column(scorer.name).higher_is_better
            if direction is None:
                raise UserError(f"--not-worse {name}: neither higher nor lower is better")
            found[Scored(scorer.name, 1 if direction else -1)] = size
    return found


def margin_tests(run: Run, contents: Contents, margins: Mapping[str, float]) -> list[MarginTest]:
    """Return the test of each method of a run against ar in each metric that has a margin.

    Raises UserError if a metric was not scored, or for an unknown one.
    """
    sizes = resolved(margins, run.record.target.evaluators)
    differences: list[Difference] = []
    for scored in sizes:
        if scored.key in contents.figures.metrics:
            found = _of_prompts(scored, contents.figures)
        else:
            found = _of_sets(scored, run)
        if not found:
            raise UserError(
                f"--not-worse {scored.key}: {run.run_id} has no such scores of ar and of another"
                f" method over two shared prompts: lanternbench score {run.run_id} --metrics"
                f" {metrics.column(scored.key).metric}"
            )
        differences += found
    return judge_margins(differences, {scored.key: size for scored, size in sizes.items()})


def _of_prompts(scored: Scored, figures: Figures) -> list[Difference]:
    """Return the differences from ar of a metric that has a value for each image."""
    if BASELINE not in figures.labels:
        return []
    old = figures.values(scored.key, BASELINE)
    found = []
    for label in figures.labels:
        if label != BASELINE:
            new = figures.values(scored.key, label)
            found.append(paired_difference(scored.key, label, BASELINE, new, old, scored.better))
    return [difference for difference in found if difference is not None]


def _of_sets(scored: Scored, run: Run) -> list[Difference]:
    """Return the differences from ar of a metric of whole sets of images."""
    column = metrics.column(scored.key)
    reference = read_summary(run.folder).reference
    setup = Setup(None if reference is None else Path(reference.folder))
    scorer = metrics.metric_class(column.metric)(column.metric, setup)
    images = images_by_label(run)
    old = images.pop(BASELINE, {})
    if not isinstance(scorer, FeatureMetric) or scorer.available():
        return []
    found = []
    for label, new in images.items():
        shared = [prompt for prompt in new if prompt in old]
        if len(shared) > 1:
            of_new = [new[prompt] for prompt in shared]
            of_old = [old[prompt] for prompt in shared]
            values = resampled_differences(scorer, of_new, of_old)
            difference = bootstrap_difference(
                scored.key, label, BASELINE, scored.better * values, len(shared)
            )
            found.append(difference)
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


def resampled_differences(
    scorer: FeatureMetric, new: Sequence[list[Path]], old: Sequence[list[Path]]
) -> Floats:
    """Return the value of the images ``new`` minus that of ``old`` [1 + REPLICATES]: as they are,
    and for resampled prompts.  Both hold a list of images per prompt.
    """
    rng = np.random.default_rng(0)
    prompts = len(new)
    draws = [np.arange(prompts)]
    draws += [rng.integers(prompts, size=prompts) for _ in range(REPLICATES)]
    values = []
    for images in (new, old):
        files = list(itertools.chain.from_iterable(images))
        features = net_features(scorer.net, ImageFiles(files, strict=True))
        ends = np.cumsum([len(of_prompt) for of_prompt in images])
        rows = np.split(np.arange(len(files)), ends[:-1])
        of_draws = []
        for drawn in draws:
            chosen = np.concatenate([rows[prompt] for prompt in drawn])
            of_draws.append(scorer.values(features[chosen])[0])
        values.append(np.array(of_draws))
    return values[0] - values[1]
