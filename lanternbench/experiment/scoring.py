"""Score saved images: those of a run, afterwards, or those of any folder.  What is scored already
is not scored again.

Every batch of scores is appended to a journal and flushed before the next one begins, so a crash
costs one batch.
"""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from PIL import Image
from pydantic import BaseModel, ConfigDict

from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import RunFolder
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.samples import Sample
from lanternbench.measure.statistics import Estimate, bootstrap_mean
from lanternbench.measure.summary import (
    NOTHING,
    RANDOM_NOTE,
    Cost,
    Costs,
    Reference,
    Row,
    Sets,
    Summary,
    kept_sets,
    summarise,
)
from lanternbench.metrics import (
    ImageMetric,
    PairMetric,
    SetMetric,
    SetScore,
    Setup,
    files,
    read_image,
    scorers_for,
    weights_of,
)
from lanternbench.metrics.class_names import class_caption
from lanternbench.metrics.images import SUFFIXES, ImageFiles, images_in
from lanternbench.metrics.reference import described
from lanternbench.notes import Note
from lanternbench.settings import Caption
from lanternbench.utils.files import HOME, cache_dir, check_writable
from lanternbench.utils.ledger import Lines
from lanternbench.utils.progress import Progress, silent

BATCH = 32
Values = dict[str, float | None]  # by the key of an image; None where the score is undefined
Scorer = ImageMetric | SetMetric
Names = Sequence[str] | None


class Item(NamedTuple):
    """One image to score; ``caption`` is None where none is known."""

    key: str
    path: Path
    caption: str | None
    baseline: Path | None = None  # the baseline's image of the same prompt and seed
    scores: Mapping[str, float | None] = MappingProxyType({})  # that a run has, by metric

    def stamp(self, scorer: ImageMetric) -> str:
        """Return a text that is another when the images, the caption or the weights are others."""
        text = f"{files.stamp(self.path)}\0{self.caption}\0{scorer.weights_digest}"
        if isinstance(scorer, PairMetric) and self.baseline is not None:
            text += f"\0{files.stamp(self.baseline)}"
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


class Score(BaseModel):
    """One line of ``scores.jsonl``: the score of one image by one metric, and its seconds."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    key: str
    metric: str
    stamp: str = ""
    value: float | None
    seconds: float


place_of = attrgetter("key", "metric")  # of a score


class Journal(Lines[Score]):
    """Scores by image and metric; a damaged line counts as not scored, and a later one replaces an
    earlier one.
    """

    def __init__(self, path: Path):
        check_writable(path, HOME)
        self._scores: dict[tuple[str, str], Score] = {}
        super().__init__(path, Score, place_of, self._remember, lenient=True)

    def _remember(self, score: Score) -> None:
        self._scores[place_of(score)] = score

    def scores(self, scorer: ImageMetric, items: Iterable[Item]) -> Values:
        """Return the scores of those items that have one by the scorer's weights."""
        scores: Values = {}
        for item in items:
            score = self._scores.get((item.key, scorer.name))
            if score is not None and score.stamp == item.stamp(scorer):
                scores[item.key] = score.value
        return scores

    def cost(self, metric: str) -> Costs:
        """Return what the scores of a metric took; nothing if there are none."""
        seconds = [score.seconds for score in self._scores.values() if score.metric == metric]
        return {metric: Cost(len(seconds), sum(seconds))} if seconds else {}

    def add(
        self,
        scorer: ImageMetric,
        items: Sequence[Item],
        values: Sequence[float | None],
        seconds: float,
    ) -> None:
        """Store scores and the time that they took together.  Raises UserError if they cannot be
        written.
        """
        scores = []
        for item, value in zip(items, values, strict=True):
            score = Score(
                key=item.key,
                metric=scorer.name,
                stamp=item.stamp(scorer),
                value=value,
                seconds=seconds / len(items),
            )
            scores.append(score)
        self.extend(scores)


class Scoring:
    """Scores images by some metrics and holds the results; what is scored is scored ``again`` only
    if asked for, or if it was scored by other weights.
    """

    def __init__(
        self,
        scorers: Sequence[Scorer],
        setup: Setup,
        again: bool = False,
        progress: Progress = silent,
        recorded: Mapping[str, str] | None = None,
    ):
        """``recorded``: the weights, by metric, of what is scored; by default those of now."""
        self.scorers = scorers
        self.setup = setup
        self.again = again
        self.progress = progress
        self.recorded = recorded
        self.values: dict[str, Values] = {}  # of single images, by metric
        self.sets: Sets = {}  # of whole sets, by label
        self.notes: list[Note] = []
        self.costs: Costs = {}
        self.computed = set[str]()  # metrics whose notes are new
        self.compared = set[str]()  # columns of sets that saw real images

    def is_stale(self, scorer: Scorer) -> bool:
        """Return whether what is scored was scored by other weights, or by unknown ones."""
        if self.recorded is None or not scorer.weights_digest:
            return False
        return self.recorded.get(scorer.name) != scorer.weights_digest

    def score_images(self, items: Sequence[Item], journal: Journal) -> None:
        """Score single images that have no score yet, or all ``again``."""
        for scorer in self.scorers:
            if not isinstance(scorer, ImageMetric):
                continue
            known = {} if self.again else self._known(scorer, items, journal)
            self.values[scorer.name] = known
            left = [item for item in items if item.key not in known]
            if left and (missing := lacking(scorer, left)):
                self.notes.append(missing)
            elif left:
                self._score_batches(scorer, left, journal)
            self.computed.add(scorer.name)
            self.costs |= journal.cost(scorer.name)

    def _known(self, scorer: ImageMetric, items: Sequence[Item], journal: Journal) -> Values:
        """Return the scores in the journal and, by the weights of now, in the run."""
        known = journal.scores(scorer, items)
        if not self.is_stale(scorer):
            for item in items:
                value = item.scores.get(scorer.name)
                if value is not None:
                    known[item.key] = value
        return known

    def _score_batches(self, scorer: ImageMetric, items: Sequence[Item], journal: Journal) -> None:
        """Score all items that can be read, batch by batch."""
        unreadable: list[str] = []
        self.progress(0, len(items), scorer.name)
        scorer.prepare()
        for start in range(0, len(items), BATCH):
            self.progress(start, len(items), scorer.name)
            clock = time.perf_counter()
            readable = []
            images = []
            for item in items[start : start + BATCH]:
                try:
                    images.append(read_image(item.path))
                    readable.append(item)
                except UserError as error:
                    unreadable.append(str(error))
            if readable:
                values = scores_of(scorer, readable, images)
                journal.add(scorer, readable, values, time.perf_counter() - clock)
                keys = [item.key for item in readable]
                self.values[scorer.name].update(zip(keys, values, strict=True))
        self.progress(len(items), len(items), scorer.name)
        self._note_unreadable(scorer, unreadable)
        self.notes += scorer.notes()

    def _note_unreadable(self, scorer: Scorer, reasons: list[str]) -> None:
        if reasons:
            text = f"{len(reasons)} images are left out. {reasons[0]}"
            self.notes.append(Note("warning", scorer.name, text))

    def score_sets(self, groups: Mapping[str, Sequence[Path]], known: Sets) -> None:
        """Score whole sets, label by label, where ``known`` has no score; all ``again``, or with
        real images.
        """
        self.sets = deepcopy(known)
        for scorer in self.scorers:
            if isinstance(scorer, SetMetric) and self._is_to_do(scorer, groups):
                self._score_groups(scorer, groups)

    def _sees_real_images(self, scorer: Scorer) -> bool:
        return self.setup.reference is not None and scorer.compares

    def _is_to_do(self, scorer: SetMetric, groups: Iterable[str]) -> bool:
        """Return whether a set has no score, or all are to be scored again and can be."""
        for label in groups:
            if self.sets.get(label, {}).get(scorer.name, NOTHING).value is None:
                return True
        redo = self.again or self._sees_real_images(scorer) or self.is_stale(scorer)
        return redo and not scorer.available()

    def _score_groups(self, scorer: SetMetric, groups: Mapping[str, Sequence[Path]]) -> None:
        self.progress(0, 0, scorer.name)
        self.computed.add(scorer.name)
        if not scorer.available():
            scorer.prepare()
        count = 0
        seconds = 0.0
        for label, paths in groups.items():
            images = ImageFiles(paths)
            clock = time.perf_counter()
            score = scorer.score_set(images)
            if images.read:  # else all features were cached
                count += images.read
                seconds += time.perf_counter() - clock
            self._keep(scorer, label, score)
            self._note_unreadable(scorer, images.broken)
        if count:
            self.costs[scorer.name] = Cost(count, seconds)

    def _keep(self, scorer: SetMetric, label: str, score: SetScore) -> None:
        columns = {scorer.name: score.value, **score.more}
        for name, value in columns.items():
            self.sets.setdefault(label, {})[name] = Estimate(value, n=score.count)
        if self._sees_real_images(scorer):
            self.compared.update(columns)
        if score.note:
            self.notes.append(score.note)

    def rescored(self, sample: Sample) -> Sample:
        """Return a sample with its new scores, and without those of other weights."""
        metrics = dict(sample.metrics)
        for scorer in self.scorers:
            if not isinstance(scorer, ImageMetric):
                continue
            if scorer.name in (self.recorded or ()) and self.is_stale(scorer):
                metrics[scorer.name] = None
            if sample.key in self.values[scorer.name]:
                metrics[scorer.name] = self.values[scorer.name][sample.key]
        return sample.model_copy(update={"metrics": metrics})

    def real_images(self, compared: set[str], before: Reference | None = None) -> Reference | None:
        """Return the real images that metrics were ``compared`` with; without any, those
        ``before``.

        Notes what metrics that are not among them were compared with, if these were other images.
        """
        if self.setup.reference is None or not compared:
            return before
        record = Reference.model_validate(described(self.setup.reference))
        metrics = set(compared)
        if before is not None:
            earlier = set(before.metrics) - compared
            if record.hash == before.hash:
                metrics |= earlier
            else:
                text = f"against the real images in {before.folder}."
                self.notes += [Note("warning", name, text) for name in sorted(earlier)]
        return record.model_copy(update={"metrics": sorted(metrics)})

    def unread_reference(self) -> list[Note]:
        """A note if there are real images that no metric uses."""
        if self.setup.reference is None or any(scorer.compares for scorer in self.scorers):
            return []
        names = ", ".join(scorer.name for scorer in self.scorers)
        text = f"No metric here ({names}) compares with the real images of --reference"
        return [Note("warning", None, f"{text}: precision-recall does.")]


def scores_of(
    scorer: ImageMetric, items: Sequence[Item], images: list[Image.Image]
) -> list[float | None]:
    """Return the scores of some items, whose images these are."""
    if not isinstance(scorer, PairMetric):
        return scorer.score(images, [item.caption or "" for item in items])
    values: list[float | None] = []
    for item, image in zip(items, images, strict=True):
        value = None
        if item.baseline is not None:
            with suppress(UserError):  # which the baseline's own score reports
                value = scorer.score_pair(image, read_image(item.baseline))
        values.append(value)
    return values


def lacking(scorer: ImageMetric, items: Iterable[Item]) -> Note | None:
    """Return a note on what a metric lacks to score these images; None where it can."""
    if missing := scorer.available():
        return missing
    if scorer.captions and any(item.caption is None for item in items):
        text = "it reads captions; give their file by --captions FILE"
        return Note("missing", scorer.name, text)
    return None


def score_run(
    path: Path,
    metrics: Names = None,
    setup: Setup | None = None,
    *,
    again: bool = False,
    progress: Progress = silent,
) -> Summary:
    """Score the images of a run folder and write the values into its samples and summary; returns
    the summary.

    metrics: names, by default all that suit the run's target. again: also what is scored already.
    A metric that lacks something is named in the notes. Raises UserError when the folder is no
    run, is in use, has lost its images, or a name is unknown.
    """
    setup = (setup or Setup())._replace(in_pairs=True)
    with RunFolder.existing(Path(path)) as folder:
        target = folder.run.target
        if not target.draws_images:
            raise UserError(
                f"{folder.path} has no images to score, as its target has no image tokeniser: "
                "leave it out"
            )
        scorers = scorers_for(metrics, target.evaluators or "tiny", setup)
        scoring = Scoring(scorers, setup, again, progress, folder.run.metric_weights)
        items = read_items(folder)
        old = folder.summary()
        with closing(Journal(folder.path / "scores.jsonl")) as journal:
            scoring.score_images(items, journal)
        scoring.score_sets(folder.images, kept_sets(folder.figures, old))
        folder.replace(map(scoring.rescored, folder.samples))
        folder.record(metric_weights=folder.run.metric_weights | weights_of(scorers))
        summary = rescored_summary(folder, scoring, old)
        folder.finish(summary)
        notes = summary.notes + scoring.unread_reference()
        return summary.model_copy(update={"notes": notes})


def read_items(folder: RunFolder) -> list[Item]:
    """Return the images of a run.

    Raises UserError where it has lost its images.
    """
    items = []
    labels = folder.run.target.labels
    baselines: dict[tuple[str, int], Path] = {}
    for sample in folder.samples:
        if sample.label == BASELINE and sample.image:
            baselines[sample.prompt_id, sample.seed] = folder.path / sample.image
    for sample in folder.samples:
        if sample.image:
            caption = class_caption(sample.prompt) if labels else sample.prompt
            baseline = None
            if sample.label != BASELINE:
                baseline = baselines.get((sample.prompt_id, sample.seed))
            path = folder.path / sample.image
            items.append(Item(sample.key, path, caption, baseline, sample.metrics))
    if not any(item.path.is_file() for item in items):
        raise UserError(
            f"{folder.path} has no images left: put them back, or draw them again with --fresh."
        )
    return items


def rescored_summary(folder: RunFolder, scoring: Scoring, old: Summary) -> Summary:
    """Return the summary of a run with its new scores."""
    real = scoring.real_images(scoring.compared, old.reference)
    kept = [note for note in old.notes if note.metric not in scoring.computed]
    new = summarise(folder.figures, folder.run, scoring.sets)
    summary = new.after(old, kept + scoring.notes, scoring.costs)
    return summary.model_copy(update={"reference": real})


def score_folder(
    folder: Path,
    captions: str | None = None,
    metrics: Names = None,
    setup: Setup | None = None,
    *,
    again: bool = False,
    caption: Caption = "first",
    progress: Progress = silent,
) -> Summary:
    """Score a plain folder of images; returns a summary with one row.  Nothing is written into the
    folder.

    captions: a file as ``--prompts`` takes it that also names each caption's image: a COCO
    captions file, or a table or list with a column called image or file_name; ``caption``: which
    of the captions of a COCO image. Only images with a caption are scored then. The scores are
    stored in the cache folder. Raises UserError when there are no images, or no caption belongs to
    any of them.
    """
    setup = setup or Setup()
    paths = images_in(folder)
    if not paths:
        kinds = ", ".join(sorted(SUFFIXES))
        raise UserError(
            f"{folder} holds no images ({kinds}) and no run.json: give a run or a folder of images."
        )
    items = captioned(paths, captions, caption)
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "replace")).hexdigest()[:16]
    scoring = Scoring(scorers_for(metrics, "full", setup), setup, again, progress)
    if len(items) < len(paths):
        without = f"{len(paths) - len(items)} of {len(paths)} images have no caption"
        scoring.notes.append(Note("warning", None, f"{without} and are left out."))
    with closing(Journal(cache_dir() / "scores" / f"{name}.jsonl")) as journal:
        scoring.score_images(items, journal)
    scoring.score_sets({"": [item.path for item in items]}, {})
    return folder_summary(folder, scoring, len(items))


def captioned(paths: Sequence[Path], captions: str | None, caption: Caption) -> list[Item]:
    """Return the images to score: all, or those that a file of captions names.

    Raises UserError where it names none.
    """
    if not captions:
        return [Item(path.name, path, None) for path in paths]
    texts: dict[str | None, str] = {}
    for prompt in prompts.load(captions, caption=caption):
        texts.setdefault(prompt.image, prompt.text)
    items = [Item(path.name, path, texts[path.name]) for path in paths if path.name in texts]
    if not items:
        raise UserError(
            f"{captions} names none of the {len(paths)} images in {paths[0].parent}: give their "
            "captions file."
        )
    return items


def folder_summary(folder: Path, scoring: Scoring, images: int) -> Summary:
    """Return the summary of a plain folder."""
    sets = scoring.sets.get("", {})
    figures: dict[str, Estimate] = {}
    for metric, scores in scoring.values.items():
        defined = [value for value in scores.values() if value is not None]
        figures[metric] = bootstrap_mean(defined) if defined else NOTHING
    figures |= sets
    real = scoring.real_images(
        {name for name in scoring.compared if figures[name].value is not None}
    )
    random = [RANDOM_NOTE] if scoring.setup.random else []
    notes = dict.fromkeys(scoring.notes + random + scoring.unread_reference())
    row = Row(label=folder.resolve().name, method="", n=images, figures=figures)
    return Summary(
        rows=[row], notes=list(notes), sets=list(sets), costs=scoring.costs, reference=real
    )
