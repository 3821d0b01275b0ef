"""Score saved images: those of a run, afterwards, or those of any folder.  What is scored already is not scored again.

Every batch of scores is appended to a journal and flushed before the next one begins, so a crash costs one batch.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import RunFolder
from lanternbench.measure.statistics import Estimate, bootstrap_mean
from lanternbench.measure.summaries import Costs, Row, Summary, read_summary
from lanternbench.measure.summary import RANDOM_NOTE, Sets, kept_sets, summarise
from lanternbench.metrics import Evaluators, ImageMetric, SetMetric, files, read_image, reference, scorers_for
from lanternbench.metrics.features import ImageFiles
from lanternbench.metrics.setup import Setup
from lanternbench.notes import Note
from lanternbench.utils.files import APPEND, cache_dir

BATCH = 32
Progress = Callable[[int, int, str], None]  # done, of, what is being done or was just done
Values = dict[str, float | None]  # by the key of an image; None where the score is undefined


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
        self._entries: dict[tuple[str, str], dict[str, Any]] = {}  # by image and metric
        data = path.read_bytes() if path.is_file() else b""
        self._torn = bool(data) and not data.endswith(b"\n")
        for line in data.splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                entry = json.loads(line)
                if entry["value"] is None or math.isfinite(entry["value"]):
                    self._entries[entry["key"], entry["metric"]] = entry

    def scores(self, metric: str, items: Iterable[Item]) -> Values:
        """The scores of those items that have one."""
        entries = [(item, self._entries.get((item.key, metric), {})) for item in items]
        return {item.key: entry["value"] for item, entry in entries if entry and entry.get("stamp") == item.stamp}

    def cost(self, metric: str) -> Costs:
        """What the scores of a metric took, as they were computed; nothing where it is not known."""
        times = [entry.get("seconds") for (_, name), entry in self._entries.items() if name == metric]
        seconds = [s for s in times if isinstance(s, int | float)]
        return {metric: {"images": len(seconds), "seconds": sum(seconds)}} if seconds else {}

    def add(
        self, metric: str, items: Sequence[Item], values: Sequence[float | None], seconds: float | None = None
    ) -> None:
        """Store scores, and the time that they took, on disk when this returns.

        Raises UserError when the disk is full or not writable.
        """
        lines = [b""] if self._torn else []
        for item, value in zip(items, values, strict=True):
            entry: dict[str, Any] = {"key": item.key, "metric": metric, "stamp": item.stamp, "value": value}
            entry |= {} if seconds is None else {"seconds": seconds / len(items)}
            self._entries[item.key, metric] = entry
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
        items, scored = [], set()
        for sample in folder.samples():
            scored |= {(name, sample.key) for name, value in sample.metrics.items() if value is not None}
            items += [Item(sample.key, folder.path / sample.image, sample.prompt)] if sample.image else []
        if not any(item.path.is_file() for item in items):
            raise UserError(
                f"{folder.path} has no images left in {folder.path / 'images'}: put them back, or draw them again by "
                "the run's own command with --fresh."
            )
        old, journal = previous_summary(folder), Journal(folder.path / "scores.jsonl")
        values, notes, costs = score_singly(scorers, items, () if again else scored, journal, again, progress)
        whole = score_sets(scorers, folder.images, kept_sets(folder.figures, old), again, setup, progress)
        real, notes_on_real = compared_with(setup.reference, whole.compared, old.reference)
        folder.replace(
            sample.model_copy(update={"metrics": sample.metrics | _of_image(values, sample.key)})
            for sample in folder.samples()
        )
        seed = int((folder.run.get("config") or {}).get("seed") or 0)
        summary = summarise(folder.figures, folder.run, whole.sets, seed)
        computed = values.keys() | whole.computed
        notes = summary.notes + [n for n in old.notes if n.metric not in computed] + notes + whole.notes + notes_on_real
        costs = old.costs | costs | whole.costs
        summary = replace(summary, notes=list(dict.fromkeys(notes)), costs=costs, reference=real)
        folder.finish(summary)
        return replace(summary, notes=summary.notes + unread_reference(scorers, setup))


def _of_image(values: Mapping[str, Values], key: str) -> Values:
    """The new scores of one image by metric."""
    return {metric: scores[key] for metric, scores in values.items() if key in scores}


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
    a caption are scored then. The scores are stored in the cache folder. Raises UserError when there are no images, or
    no caption belongs to any of them.
    """
    setup = setup or Setup()
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
    scorers = scorers_for(metrics, "full", setup)
    values, notes, costs = score_singly(scorers, items, (), journal, again, progress)
    whole = score_sets(scorers, {"": [item.path for item in items]}, {}, again, setup, progress)
    columns = whole.sets.get("", {})
    finite = {metric: [v for v in scores.values() if v is not None] for metric, scores in values.items()}
    figures = {metric: bootstrap_mean(scores) if scores else Estimate() for metric, scores in finite.items()} | columns
    if len(items) < len(paths):
        text = f"{len(paths) - len(items)} of {len(paths)} images have no caption and are left out."
        notes.insert(0, Note("warning", None, text))
    notes += whole.notes + ([RANDOM_NOTE] if setup.random else []) + unread_reference(scorers, setup)
    compared = {s.name for s in scorers if s.compares and s.name in figures and figures[s.name].value is not None}
    real, _ = compared_with(setup.reference, compared, None)
    row = Row(folder.resolve().name, "", len(items), figures)
    return Summary([row], notes, list(columns), costs | whole.costs, real)


def compared_with(
    folder: Path | None, compared: set[str], before: dict[str, Any] | None
) -> tuple[dict[str, Any] | None, list[Note]]:
    """The record of the real images: those of ``folder`` if metrics were ``compared`` with them, else ``before``'s.

    Also notes: what metrics that are not among them were compared with, where these were other images.
    """
    record = reference.described(folder)
    if record is None or not compared:
        return before, []
    earlier = set(before["metrics"]) - compared if before else set()
    if before and record["hash"] == before["hash"]:
        return record | {"metrics": sorted(compared | earlier)}, []
    text = f"against {before['images']} real images in {before['folder']}." if before else ""
    return record | {"metrics": sorted(compared)}, [Note("warning", name, text) for name in sorted(earlier)]


def unread_reference(scorers: Sequence[ImageMetric | SetMetric], setup: Setup) -> list[Note]:
    """A note if there are real images that no metric uses."""
    if setup.reference is None or any(s.compares for s in scorers):
        return []
    names = ", ".join(s.name for s in scorers)
    text = f"No metric here ({names}) compares with the real images of --reference: precision-recall does."
    return [Note("warning", None, text)]


def score_singly(
    scorers: Iterable[ImageMetric | SetMetric],
    items: Sequence[Item],
    scored: Container[tuple[str, str]],
    journal: Journal,
    again: bool,
    progress: Progress,
) -> tuple[dict[str, Values], list[Note], Costs]:
    """Scores of single images by metric, but for the (metric, image) that are ``scored``; notes; what they took."""
    values: dict[str, Values] = {}
    notes: list[Note] = []
    costs: Costs = {}
    for scorer in (scorer for scorer in scorers if isinstance(scorer, ImageMetric)):
        left = [item for item in items if (scorer.name, item.key) not in scored]
        values[scorer.name], more = score_items(scorer, left, journal, again, progress)
        notes += more
        costs |= journal.cost(scorer.name)
    return values, notes, costs


def score_items(
    scorer: ImageMetric, items: Sequence[Item], journal: Journal, again: bool, progress: Progress
) -> tuple[Values, list[Note]]:
    """The scores of all items that could be scored, from the journal or in batches, and notes."""
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
    scorer.prepare()
    for start in range(0, len(left), BATCH):
        progress(start, len(left), scorer.name)
        clock = time.perf_counter()
        pairs = list(_opened(left[start : start + BATCH], broken))
        if pairs:
            values = scorer.score([image for _, image in pairs], [item.caption or "" for item, _ in pairs])
            journal.add(scorer.name, [item for item, _ in pairs], values, time.perf_counter() - clock)
            known |= {item.key: value for (item, _), value in zip(pairs, values, strict=True)}
    progress(len(left), len(left), scorer.name)
    return known, _unread(scorer, broken) + scorer.notes()


class SetScores(NamedTuple):
    """Figures of whole sets by label; ``computed``: the new metrics, ``compared``: columns that saw real images."""

    sets: Sets
    notes: list[Note]
    costs: Costs
    computed: set[str]
    compared: set[str]


def score_sets(
    scorers: Iterable[ImageMetric | SetMetric],
    groups: Mapping[str, Sequence[Path]],
    known: Sets,
    again: bool,
    setup: Setup,
    progress: Progress = lambda done, of, what: None,
) -> SetScores:
    """Metrics of whole sets, label by label, which the ``known`` ones lack; all ``again``, or with real images."""
    scores = SetScores({label: dict(columns) for label, columns in known.items()}, [], {}, set(), set())
    for scorer in (scorer for scorer in scorers if isinstance(scorer, SetMetric)):
        with_real = setup.reference is not None and scorer.compares
        values = [known.get(label, {}).get(scorer.name, Estimate()).value for label in groups]
        if None not in values and (scorer.available() or not (again or with_real)):
            continue
        progress(0, 0, scorer.name)
        scores.computed.add(scorer.name)
        count, seconds = 0, 0.0
        if not scorer.available():
            scorer.prepare()
        for label, paths in groups.items():
            images, clock = ImageFiles(paths), time.perf_counter()
            score = scorer.score_set(images)
            count, seconds = count + images.read, seconds + (time.perf_counter() - clock if images.read else 0)
            columns = {scorer.name: score.value, **score.more}
            scores.sets.setdefault(label, {}).update({k: Estimate(v, n=score.count) for k, v in columns.items()})
            scores.compared.update(columns if with_real else ())
            scores.notes.extend(_unread(scorer, images.broken) + ([score.note] if score.note else []))
        if count:  # else all features were cached
            scores.costs[scorer.name] = {"images": count, "seconds": seconds}
    return scores._replace(notes=list(dict.fromkeys(scores.notes)))


def _opened(items: Iterable[Item], broken: list[str]) -> Iterator[tuple[Item, Image.Image]]:
    """Items with their images; an unreadable image is left out and listed in ``broken``."""
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
