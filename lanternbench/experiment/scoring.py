"""Score saved images: those of a run, afterwards, or those of any folder.  What is scored already is not scored again.

Every batch of scores is appended to a journal and flushed before the next one begins, so a crash costs one batch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder
from lanternbench.measure.statistics import Estimate, bootstrap_mean
from lanternbench.measure.summaries import Costs, Row, Summary, read_summary
from lanternbench.measure.summary import RANDOM_NOTE, Sets, kept_sets, summarise
from lanternbench.metrics import Evaluators, ImageMetric, SetMetric, files, read_image, reference, scorers_for
from lanternbench.metrics.features import ImageFiles
from lanternbench.metrics.setup import Setup
from lanternbench.notes import Note
from lanternbench.utils.files import APPEND, cache_dir

BATCH = 32
Progress = Callable[[int, int, str], None]  # done, of, what


class Item(NamedTuple):
    """One image to score; ``caption`` is None where none is known."""

    key: str
    path: Path
    caption: str | None

    @property
    def stamp(self) -> str:
        """Another text when the file or the caption is another."""
        return hashlib.sha256(f"{files.stamp(self.path)}\0{self.caption}".encode("utf-8", "replace")).hexdigest()[:16]


class Journal:
    """Scores by image and metric, append-only: a JSON line each; a torn or damaged line counts as not scored."""

    def __init__(self, path: Path):
        self._path = path
        self._scores: dict[tuple[str, str], tuple[str, float | None]] = {}
        self._seconds: dict[tuple[str, str], float] = {}
        data = path.read_bytes() if path.is_file() else b""
        self._torn = bool(data) and not data.endswith(b"\n")
        for line in data.splitlines():
            try:
                entry = json.loads(line)
                key, metric, stamp, value = (entry[name] for name in ("key", "metric", "stamp", "value"))
                if value is None or math.isfinite(value):
                    self._scores[key, metric] = stamp, value
                    self._seconds[key, metric] = float(entry["seconds"])  # an entry may lack it
            except (ValueError, KeyError, TypeError, RecursionError):
                continue

    def scores(self, metric: str, items: Iterable[Item]) -> dict[str, float | None]:
        """The scores of those items that have one, by key; None where the score is undefined."""
        found = {item.key: (item, self._scores.get((item.key, metric))) for item in items}
        return {key: score[1] for key, (item, score) in found.items() if score and score[0] == item.stamp}

    def cost(self, metric: str) -> Costs:
        """What the scores of a metric took, as they were computed; nothing where it is not known."""
        seconds = [s for (_, name), s in self._seconds.items() if name == metric]
        return {metric: {"images": len(seconds), "seconds": sum(seconds)}} if seconds else {}

    def add(
        self, metric: str, items: Sequence[Item], values: Sequence[float | None], seconds: float | None = None
    ) -> None:
        """Store scores, and the time that they took, on disk when this returns.

        Raises UserError when the disk is full or not writable.
        """
        each = None if seconds is None else seconds / len(items)
        lines = [b""] if self._torn else []
        for item, value in zip(items, values, strict=True):
            self._scores[item.key, metric] = item.stamp, value
            entry = {"key": item.key, "metric": metric, "stamp": item.stamp, "value": value}
            if each is not None:
                entry["seconds"] = self._seconds[item.key, metric] = each
            lines.append(json.dumps(entry).encode())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(self._path, os.O_CREAT | APPEND, 0o644), "ab") as file:
                file.write(b"\n".join([*lines, b""]))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self._path} ({error.strerror}): make room for the scores there.") from None
        self._torn = False


def score_run(
    path: Path,
    metrics: Sequence[str] | None = None,
    setup: Setup | None = None,
    *,
    again: bool = False,
    progress: Progress = lambda done, of, what: None,
) -> Summary:
    """Score the images of a run folder and write the values into its samples and summary; returns the summary.

    metrics: names, by default all that suit the run's target. again: also what is scored already. A metric that lacks
    something is named in the notes.
    Raises UserError when the folder is no run, is in use, has lost its images, or a name is unknown.
    """
    setup = setup or Setup()
    with RunFolder.existing(Path(path)) as folder:
        evaluators: Evaluators = (folder.run.get("target") or {}).get("evaluators") or "tiny"
        if evaluators == "none":
            raise UserError(f"{folder.path} has no images to score, as its target has no image tokeniser: leave it out")
        scorers = scorers_for(metrics, evaluators, setup)
        single = [scorer for scorer in scorers if isinstance(scorer, ImageMetric)]
        values, notes, costs = _score_singly(folder, single, again, progress)
        old, groups = previous_summary(folder), folder.images
        sets, costs, real = kept_sets(folder.figures, old), old.costs | costs, old.reference
        now: set[str] = set()  # what was compared with the setup's real images
        kept = {scorer.name for scorer in scorers}
        for scorer in (scorer for scorer in scorers if not isinstance(scorer, ImageMetric)):
            with_real = setup.reference is not None and scorer.compares
            if has_values(sets, groups, scorer) and (scorer.available() or not (again or with_real)):
                kept.remove(scorer.name)
                continue
            progress(0, 0, scorer.name)
            found, said, spent = score_sets(groups, [scorer])
            for label, columns in found.items():
                sets.setdefault(label, {}).update(columns)
                now |= columns.keys() if with_real else set()
            notes, costs = notes + said, costs | spent
        real, said = compared_with(setup.reference, now, real)
        folder.replace(
            sample.model_copy(update={"metrics": sample.metrics | values.get(sample.key, {})})
            for sample in folder.samples()
        )
        summary = summarise(folder.figures, folder.run, sets, int((folder.run.get("config") or {}).get("seed") or 0))
        notes = [note for note in old.notes if note.metric not in kept] + notes + said
        summary = replace(summary, notes=unique(summary.notes + notes), costs=costs, reference=real)
        folder.finish(summary)
        return replace(summary, notes=summary.notes + unread_reference(scorers, setup))


def _score_singly(
    folder: RunFolder, scorers: Sequence[ImageMetric], again: bool, progress: Progress
) -> tuple[dict[str, dict[str, float | None]], list[Note], Costs]:
    """The scores of the run's images that lack one, by sample and metric; notes; what they took."""
    journal = Journal(folder.path / "scores.jsonl")
    names = [scorer.name for scorer in scorers]
    items, scored = [], set()
    for sample in folder.samples():
        scored |= {(sample.key, name) for name in names if sample.metrics.get(name) is not None}
        items += [Item(sample.key, folder.path / sample.image, sample.prompt)] if sample.image else []
    if not any(item.path.is_file() for item in items):
        raise UserError(
            f"{folder.path} has no images left in {folder.path / 'images'}: put them back, or draw them again by the "
            "run's own command with --fresh."
        )
    values: dict[str, dict[str, float | None]] = {}
    notes: list[Note] = []
    costs: Costs = {}
    for scorer in scorers:
        left = [item for item in items if again or (item.key, scorer.name) not in scored]
        found, said = score_items(scorer, left, journal, again, progress)
        for key, value in found.items():
            values.setdefault(key, {})[scorer.name] = value
        notes += said
        costs |= journal.cost(scorer.name)
    return values, notes, costs


def unique(notes: Iterable[Note]) -> list[Note]:
    """The notes in their order, each once."""
    return list(dict.fromkeys(notes))


def score_folder(
    folder: Path,
    captions: str | None = None,
    metrics: Sequence[str] | None = None,
    setup: Setup | None = None,
    *,
    again: bool = False,
    caption: prompts.Caption = "first",
    progress: Progress = lambda done, of, what: None,
) -> Summary:
    """Score a plain folder of images; returns a summary with one row.  Nothing is written into the folder.

    captions: a file as ``--prompts`` takes it that also names each caption's image: a COCO captions file, or a table or
    list with a column called image or file_name; ``caption``: which of the captions of a COCO image. Only images with
    a caption are scored then. The scores are kept in the cache folder. Raises UserError when there are no images, or
    no caption belongs to any of them.
    """
    paths = reference.images_in(folder)
    if not paths:
        kinds = ", ".join(sorted(reference.SUFFIXES))
        raise UserError(f"{folder} holds no images ({kinds}) and no run.json: give a run or a folder of images.")
    texts = {p.image: p.text for p in reversed(prompts.load(captions, caption=caption).prompts)} if captions else {}
    items = [Item(p.name, p, texts.get(p.name)) for p in paths if not captions or p.name in texts]
    if not items:
        raise UserError(f"{captions} names none of the {len(paths)} images in {folder}: give their captions file.")
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "replace")).hexdigest()[:16]
    journal = Journal(cache_dir() / "scores" / f"{name}.jsonl")
    figures: dict[str, Estimate] = {}
    notes: list[Note] = []
    if len(items) < len(paths):
        text = f"{len(paths) - len(items)} of {len(paths)} images have no caption and are left out."
        notes.append(Note("warning", None, text))
    notes += [RANDOM_NOTE] if setup and setup.random else []
    costs: Costs = {}
    sets: list[str] = []
    scorers = scorers_for(metrics, "full", setup)
    for scorer in scorers:
        if isinstance(scorer, ImageMetric):
            values, said = score_items(scorer, items, journal, again, progress)
            finite = [v for v in values.values() if v is not None]
            figures[scorer.name] = bootstrap_mean(finite) if finite else Estimate()
            costs |= journal.cost(scorer.name)
        else:
            progress(0, 0, scorer.name)
            found, said, spent = score_sets({"": [item.path for item in items]}, [scorer])
            figures, sets, costs = figures | found[""], [*sets, *found[""]], costs | spent
        notes += said
    notes += unread_reference(scorers, setup)
    now = {s.name for s in scorers if s.compares and s.name in figures and figures[s.name].value is not None}
    real, _ = compared_with(setup.reference if setup else None, now, None)
    row = Row(folder.resolve().name, "", len(items), figures)
    return Summary([row], notes, sets, costs, real)


def compared_with(
    folder: Path | None, now: set[str], before: dict[str, Any] | None
) -> tuple[dict[str, Any] | None, list[Note]]:
    """The record of the real images: those of ``folder`` if metrics compared with them ``now``, else ``before``'s.

    Also notes: what metrics that are not among them were compared with, where these were other images.
    """
    found = reference.described(folder)
    if found is None or not now:
        return before, []
    earlier = set(before["metrics"]) - now if before else set()
    if before and found["hash"] == before["hash"]:
        return found | {"metrics": sorted(now | earlier)}, []
    text = f"against {before['images']} real images in {before['folder']}." if before else ""
    said = [Note("warning", name, text) for name in sorted(earlier)]
    return found | {"metrics": sorted(now)}, said


def unread_reference(scorers: Sequence[ImageMetric | SetMetric], setup: Setup | None) -> list[Note]:
    """A note if real images were given and no metric uses them."""
    if not setup or setup.reference is None or any(s.compares for s in scorers):
        return []
    names = ", ".join(s.name for s in scorers)
    text = f"No metric here ({names}) compares with the real images of --reference: precision-recall does."
    return [Note("warning", None, text)]


def score_items(
    scorer: ImageMetric, items: Sequence[Item], journal: Journal, again: bool, progress: Progress
) -> tuple[dict[str, float | None], list[Note]]:
    """Values by key of all items that could be scored, from the journal or in batches, and notes."""
    known = {} if again else journal.scores(scorer.name, items)
    left = [item for item in items if item.key not in known]
    if not left:
        return known, []
    if missing := scorer.available():
        return known, [missing]
    if scorer.captions and any(item.caption is None for item in left):
        return known, [Note("missing", scorer.name, "it reads captions; give their file by --captions FILE")]
    broken: list[str] = []
    progress(0, len(left), scorer.name)
    prepare_scorer(scorer)
    for start in range(0, len(left), BATCH):
        progress(start, len(left), scorer.name)
        clock = time.perf_counter()
        pairs = [(item, image) for item, image in _opened(left[start : start + BATCH], broken)]
        if pairs:
            values = scorer.score([image for _, image in pairs], [item.caption or "" for item, _ in pairs])
            journal.add(scorer.name, [item for item, _ in pairs], values, time.perf_counter() - clock)
            known |= {item.key: value for (item, _), value in zip(pairs, values, strict=True)}
    progress(len(left), len(left), scorer.name)
    return known, _unread(scorer, broken) + scorer.notes()


def prepare_scorer(scorer: ImageMetric | SetMetric) -> None:
    """Let a scorer load what it needs before a clock starts, where it offers to."""
    if not scorer.available():
        scorer.prepare()


def score_sets(groups: Mapping[str, Sequence[Path]], scorers: Iterable[SetMetric]) -> tuple[Sets, list[Note], Costs]:
    """Metrics of whole image sets, label by label, notes, and what they took."""
    sets: Sets = {}
    notes: list[Note] = []
    costs: Costs = {}
    for scorer in scorers:
        prepare_scorer(scorer)
        read, seconds = 0, 0.0
        for label, paths in groups.items():
            images, clock = ImageFiles(paths), time.perf_counter()
            score = scorer.score_set(images)
            read, seconds = read + images.read, seconds + (time.perf_counter() - clock if images.read else 0)
            found = {name: Estimate(v, n=score.count) for name, v in {scorer.name: score.value, **score.more}.items()}
            sets.setdefault(label, {}).update(found)
            notes += _unread(scorer, images.broken)
            notes += [score.note] if score.note else []
        if read:  # else all features were kept
            costs[scorer.name] = {"images": read, "seconds": seconds}
    return sets, unique(notes), costs


def has_values(sets: Sets, groups: Iterable[str], scorer: SetMetric) -> bool:
    """Does every label have a value of this metric?"""
    return all(sets.get(label, {}).get(scorer.name, Estimate()).value is not None for label in groups)


def files_exist(groups: Mapping[str, Sequence[Path]]) -> bool:
    """Do all image files still exist?"""
    return all(path.is_file() for paths in groups.values() for path in paths)


def _opened(items: Iterable[Item], broken: list[str]) -> Iterator[tuple[Item, Image.Image]]:
    """Items with their images; an image that cannot be read is left out and told in ``broken``."""
    for item in items:
        try:
            yield item, read_image(item.path)
        except UserError as error:
            broken.append(str(error))


def _unread(scorer: ImageMetric | SetMetric, broken: list[str]) -> list[Note]:
    return [Note("warning", scorer.name, f"{len(broken)} images are left out. {broken[0]}")] if broken else []


def previous_summary(folder: RunFolder) -> Summary:
    """A run's summary; an empty one if there is none, or it is damaged."""
    try:
        return read_summary(folder.path)
    except UserError:
        return Summary([])
