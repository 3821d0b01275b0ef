"""Score saved images: those of a run, afterwards, or those of any folder.  What is scored already
is not scored again.

Every batch of scores is appended to a journal and flushed before the next one begins, so a crash
costs one batch.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import RunFolder
from lanternbench.measure.samples import Sample
from lanternbench.measure.statistics import Estimate, bootstrap_mean
from lanternbench.measure.summary import (
    RANDOM_NOTE,
    Costs,
    Row,
    Sets,
    Summary,
    kept_sets,
    read_summary,
    summarise,
)
from lanternbench.metrics import (
    Evaluators,
    ImageMetric,
    SetMetric,
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
from lanternbench.utils.files import APPEND, cache_dir

BATCH = 32
Progress = Callable[[int, int, str], None]  # done, of, what is being done or was just done
Values = dict[str, float | None]  # by the key of an image; None where the score is undefined
Names = Sequence[str] | None


def silent(done: int, of: int, what: str) -> None:
    """A progress that shows nothing."""


class Item(NamedTuple):
    """One image to score; ``caption`` is None where none is known."""

    key: str
    path: Path
    caption: str | None

    def stamp(self, scorer: ImageMetric) -> str:
        """Return a text that is another when the image, the caption or the weights are others."""
        text = f"{files.stamp(self.path)}\0{self.caption}\0{scorer.weights_digest}"
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


class Journal:
    """Scores by image and metric, append-only: a JSON line each; a torn or damaged line counts as
    not scored.
    """

    def __init__(self, path: Path):
        self._path = path
        self._entries: dict[tuple[str, str], dict[str, Any]] = {}  # by image and metric
        data = path.read_bytes() if path.is_file() else b""
        self._torn = bool(data) and not data.endswith(b"\n")
        for line in data.splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError, OverflowError):
                entry = json.loads(line)
                if math.isfinite(entry["seconds"]) and (
                    entry["value"] is None or math.isfinite(entry["value"])
                ):
                    self._entries[entry["key"], entry["metric"]] = entry

    def scores(self, scorer: ImageMetric, items: Iterable[Item]) -> Values:
        """Return the scores of those items that have one by the scorer's weights."""
        scores: Values = {}
        for item in items:
            entry = self._entries.get((item.key, scorer.name))
            if entry and entry.get("stamp") == item.stamp(scorer):
                scores[item.key] = entry["value"]
        return scores

    def cost(self, metric: str) -> Costs:
        """What the scores of a metric took, as they were computed; nothing where there are none."""
        seconds = [
            entry["seconds"] for (_, name), entry in self._entries.items() if name == metric
        ]
        return {metric: {"images": len(seconds), "seconds": sum(seconds)}} if seconds else {}

    def add(
        self,
        scorer: ImageMetric,
        items: Sequence[Item],
        values: Sequence[float | None],
        seconds: float = 0.0,
    ) -> None:
        """Store scores and their time on disk when this returns.  Raises UserError when it is full
        or not writable.
        """
        lines = [b""] if self._torn else []
        for item, value in zip(items, values, strict=True):
            entry = {
                "key": item.key,
                "metric": scorer.name,
                "stamp": item.stamp(scorer),
                "value": value,
                "seconds": seconds / len(items),
            }
            self._entries[item.key, scorer.name] = entry
            lines.append(json.dumps(entry).encode())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(self._path, os.O_CREAT | APPEND, 0o644), "ab") as file:
                file.write(b"\n".join([*lines, b""]))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"cannot write {self._path} ({error.strerror}): make room for the scores there."
            ) from None
        self._torn = False


class Scoring:
    """Scores images by some metrics and holds what they gave; what is scored is scored ``again``
    only if asked for.
    """

    def __init__(
        self,
        scorers: Sequence[ImageMetric | SetMetric],
        setup: Setup,
        again: bool = False,
        progress: Progress = silent,
        recorded: Mapping[str, str] | None = None,
    ):
        """``recorded``: the weights, by metric, of what is scored; by default those of now."""
        self.scorers, self.setup, self.again, self.progress = scorers, setup, again, progress
        self.recorded = recorded
        self.values: dict[str, Values] = {}  # of single images, by metric
        self.sets: Sets = {}  # of whole sets, by label
        self.notes: list[Note] = []
        self.costs: Costs = {}
        self.computed = set[str]()  # metrics whose notes are new
        self.compared = set[str]()  # columns of sets that saw real images

    def is_stale(self, scorer: ImageMetric | SetMetric) -> bool:
        """Return whether what is scored was scored by other weights, or by unknown ones."""
        if self.recorded is None or not scorer.weights_digest:
            return False
        return self.recorded.get(scorer.name) != scorer.weights_digest

    def score_images(
        self, items: Sequence[Item], journal: Journal, scored: Container[tuple[str, str]] = ()
    ) -> None:
        """Score single images, but for the (metric, image) that are ``scored``."""
        for scorer in (scorer for scorer in self.scorers if isinstance(scorer, ImageMetric)):
            stale = self.is_stale(scorer)
            left = [item for item in items if stale or (scorer.name, item.key) not in scored]
            self.values[scorer.name] = {} if self.again else journal.scores(scorer, left)
            left = [item for item in left if item.key not in self.values[scorer.name]]
            missing = scorer.available() if left else None
            if (
                left
                and not missing
                and scorer.captions
                and any(item.caption is None for item in left)
            ):
                missing = Note(
                    "missing", scorer.name, "it reads captions; give their file by --captions FILE"
                )
            if missing:
                self.notes.append(missing)
            elif left:
                self._score_batches(scorer, left, journal)
            self.computed.add(scorer.name)
            self.costs |= journal.cost(scorer.name)

    def _score_batches(self, scorer: ImageMetric, items: Sequence[Item], journal: Journal) -> None:
        """Score all items that can be read, batch by batch."""
        unreadable: list[str] = []
        self.progress(0, len(items), scorer.name)
        scorer.prepare()
        for start in range(0, len(items), BATCH):
            self.progress(start, len(items), scorer.name)
            clock, readable, images = time.perf_counter(), [], []
            for item in items[start : start + BATCH]:
                try:
                    images.append(read_image(item.path))
                    readable.append(item)
                except UserError as error:
                    unreadable.append(str(error))
            if readable:
                values = scorer.score(images, [item.caption or "" for item in readable])
                journal.add(scorer, readable, values, time.perf_counter() - clock)
                self.values[scorer.name] |= {
                    item.key: value for item, value in zip(readable, values, strict=True)
                }
        self.progress(len(items), len(items), scorer.name)
        self.notes += _left_out(scorer, unreadable) + scorer.notes()

    def score_sets(self, groups: Mapping[str, Sequence[Path]], known: Sets) -> None:
        """Score whole sets, label by label, where ``known`` has no score; all ``again``, or with
        real images.
        """
        self.sets = {label: dict(columns) for label, columns in known.items()}
        for scorer in (scorer for scorer in self.scorers if isinstance(scorer, SetMetric)):
            with_real = self.setup.reference is not None and scorer.compares
            values = [known.get(label, {}).get(scorer.name, Estimate()).value for label in groups]
            redo = self.again or with_real or self.is_stale(scorer)
            if None not in values and (scorer.available() or not redo):
                continue
            self.progress(0, 0, scorer.name)
            self.computed.add(scorer.name)
            count, seconds = 0, 0.0
            if not scorer.available():
                scorer.prepare()
            for label, paths in groups.items():
                images, clock = ImageFiles(paths), time.perf_counter()
                score = scorer.score_set(images)
                count, seconds = (
                    count + images.read,
                    seconds + (time.perf_counter() - clock if images.read else 0),
                )
                columns = {scorer.name: score.value, **score.more}
                self.sets.setdefault(label, {}).update(
                    {k: Estimate(v, n=score.count) for k, v in columns.items()}
                )
                self.compared.update(columns if with_real else ())
                self.notes += _left_out(scorer, images.broken) + (
                    [score.note] if score.note else []
                )
            if count:  # else all features were cached
                self.costs[scorer.name] = {"images": count, "seconds": seconds}

    def real_images(
        self, compared: set[str], before: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """The record of the real images that metrics were ``compared`` with; without any, the one
        ``before``.

        Notes what metrics that are not among them were compared with, where these were other
        images.
        """
        if self.setup.reference is None or not compared:
            return before
        record = described(self.setup.reference)
        earlier = set(before["metrics"]) - compared if before else set()
        if before and record["hash"] == before["hash"]:
            return record | {"metrics": sorted(compared | earlier)}
        text = f"against the real images in {before['folder']}." if before else ""
        self.notes += [Note("warning", name, text) for name in sorted(earlier)]
        return record | {"metrics": sorted(compared)}

    def unread_reference(self) -> list[Note]:
        """A note if there are real images that no metric uses."""
        names = ", ".join(s.name for s in self.scorers)
        text = f"No metric here ({names}) compares with the real images of --reference: precision-recall does."
        used = self.setup.reference is None or any(s.compares for s in self.scorers)
        return [] if used else [Note("warning", None, text)]


def _left_out(scorer: ImageMetric | SetMetric, unreadable: list[str]) -> list[Note]:
    return [
        Note("warning", scorer.name, f"{len(unreadable)} images are left out. {why}")
        for why in unreadable[:1]
    ]


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
    setup = setup or Setup()
    with RunFolder.existing(Path(path)) as folder:
        evaluators: Evaluators = (folder.run.get("target") or {}).get("evaluators") or "tiny"
        if evaluators == "none":
            raise UserError(
                f"{folder.path} has no images to score, as its target has no image tokeniser: leave it out"
            )
        recorded = folder.metric_weights
        scorers = scorers_for(metrics, evaluators, setup)
        scoring = Scoring(scorers, setup, again, progress, recorded)
        stale = {s.name for s in scorers if s.name in recorded and scoring.is_stale(s)}
        # of a target that draws classes
        labels = (folder.run.get("target") or {}).get("labels")
        items, scored = [], set()
        for sample in folder.samples():
            scored |= {
                (name, sample.key) for name, value in sample.metrics.items() if value is not None
            }
            if sample.image:
                caption = class_caption(sample.prompt) if labels else sample.prompt
                items.append(Item(sample.key, folder.path / sample.image, caption))
        if not any(item.path.is_file() for item in items):
            raise UserError(
                f"{folder.path} has no images left: put them back, or draw them again with --fresh."
            )
        old = previous_summary(folder)
        scoring.score_images(items, Journal(folder.path / "scores.jsonl"), () if again else scored)
        scoring.score_sets(folder.images, kept_sets(folder.figures, old))
        real = scoring.real_images(scoring.compared, old.reference)

        def rescored(sample: Sample) -> Sample:
            new = {
                metric: scores[sample.key]
                for metric, scores in scoring.values.items()
                if sample.key in scores
            }
            kept = {m: None if m in stale else v for m, v in sample.metrics.items()}
            return sample.model_copy(update={"metrics": kept | new})

        folder.replace(map(rescored, folder.samples()))
        folder.record(metric_weights=recorded | weights_of(scorers))
        summary = summarise(
            folder.figures, folder.run, scoring.sets, folder.run.get("config", {}).get("seed") or 0
        )
        notes = (
            summary.notes
            + [n for n in old.notes if n.metric not in scoring.computed]
            + scoring.notes
        )
        summary = replace(
            summary, notes=[*dict.fromkeys(notes)], costs=old.costs | scoring.costs, reference=real
        )
        folder.finish(summary)
        return replace(summary, notes=summary.notes + scoring.unread_reference())


def score_folder(
    folder: Path,
    captions: str | None = None,
    metrics: Names = None,
    setup: Setup | None = None,
    *,
    again: bool = False,
    caption: prompts.Caption = "first",
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
    texts = (
        {p.image: p.text for p in reversed(prompts.load(captions, caption=caption).prompts)}
        if captions
        else {}
    )
    items = [Item(p.name, p, texts.get(p.name)) for p in paths if not captions or p.name in texts]
    if not items:
        raise UserError(
            f"{captions} names none of the {len(paths)} images in {folder}: give their captions file."
        )
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "replace")).hexdigest()[:16]
    scoring = Scoring(scorers_for(metrics, "full", setup), setup, again, progress)
    scoring.score_images(items, Journal(cache_dir() / "scores" / f"{name}.jsonl"))
    scoring.score_sets({"": [item.path for item in items]}, {})
    columns = scoring.sets.get("", {})
    defined = {
        metric: [v for v in scores.values() if v is not None]
        for metric, scores in scoring.values.items()
    }
    figures = {
        metric: bootstrap_mean(scores) if scores else Estimate()
        for metric, scores in defined.items()
    } | columns
    without = len(paths) - len(items)
    text = f"{without} of {len(paths)} images have no caption and are left out."
    notes = [Note("warning", None, text)] if without else []
    notes += [
        *scoring.notes,
        *([RANDOM_NOTE] if setup.random else []),
        *scoring.unread_reference(),
    ]
    compared = {
        s.name
        for s in scoring.scorers
        if s.compares and figures.get(s.name, Estimate()).value is not None
    }
    real = scoring.real_images(compared)
    row = Row(folder.resolve().name, "", len(items), figures)
    return Summary([row], list(dict.fromkeys(notes)), list(columns), scoring.costs, real)


def previous_summary(folder: RunFolder) -> Summary:
    """A run's summary; an empty one if there is none, or it is damaged."""
    with suppress(UserError):
        return read_summary(folder.path)
    return Summary([])
