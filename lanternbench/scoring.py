"""Score saved images: those of a run, afterwards, or those of any folder.  What is scored already is not scored again.

Every batch of scores is appended to a journal and flushed before the next one begins, so a crash costs one batch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.measure import bootstrap_mean, summarise
from lanternbench.metrics import files, reference
from lanternbench.metrics.images import read_image
from lanternbench.metrics.registry import AnyScorer, Scorer, SetScorer, scorers_for
from lanternbench.results import RunFolder

BATCH = 32
Progress = Callable[[int, int, str], None]  # done, of, what
Sets = dict[str, dict[str, float | None]]  # label -> columns of a whole set of images


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
        data = path.read_bytes() if path.is_file() else b""
        self._torn = bool(data) and not data.endswith(b"\n")
        for line in data.splitlines():
            try:
                entry = json.loads(line)
                key, metric, stamp, value = (entry[name] for name in ("key", "metric", "stamp", "value"))
                if value is None or math.isfinite(value):
                    self._scores[key, metric] = stamp, value
            except (ValueError, KeyError, TypeError, RecursionError):
                continue

    def known(self, metric: str, items: Iterable[Item]) -> dict[str, float | None]:
        """The scores of those items that have one, by key; None where the score is undefined."""
        found = {item.key: (item, self._scores.get((item.key, metric))) for item in items}
        return {key: score[1] for key, (item, score) in found.items() if score and score[0] == item.stamp}

    def add(self, metric: str, items: Sequence[Item], values: Sequence[float | None]) -> None:
        """Store scores, on disk when this returns.  Raises UserError when the disk is full or not writable."""
        lines = [b""] if self._torn else []
        for item, value in zip(items, values, strict=True):
            self._scores[item.key, metric] = item.stamp, value
            entry = {"key": item.key, "metric": metric, "stamp": item.stamp, "value": value}
            lines.append(json.dumps(entry).encode())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab") as file:
                file.write(b"\n".join([*lines, b""]))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self._path} ({error.strerror}): make room for the scores there.") from None
        self._torn = False


def score_run(
    path: Path,
    metrics: Sequence[str] | None = None,
    real: Path | None = None,
    *,
    again: bool = False,
    progress: Progress = lambda done, of, what: None,
) -> dict[str, Any]:
    """Score the images of a run folder and write the values into its samples and summary; returns the summary.

    metrics: names, by default all that suit the run's target. real: folder of real images for "fid" and
    "precision-recall". again: also what is scored already. A metric that lacks something is named in the notes.
    Raises UserError when the folder is no run, is in use, has lost its images, or a name is unknown.
    """
    with RunFolder.existing(Path(path)) as folder:
        scorers = scorers_for(metrics, (folder.run.get("target") or {}).get("evaluators") or "tiny", real)
        items = _items_of(folder)
        journal = Journal(folder.path / "scores.jsonl")
        samples = {sample.key: sample for sample in folder.samples()}
        groups, (sets, old_notes) = image_groups(folder), _stored(folder)
        notes: list[str] = []
        for scorer in scorers:
            if isinstance(scorer, Scorer):
                left = [i for i in items if again or samples[i.key].metrics.get(scorer.name) is None]
                values, said = score_items(scorer, left, journal, again, progress)
                for key, value in values.items():
                    samples[key].metrics[scorer.name] = value
                notes += said
                continue
            known = all(sets.get(label, {}).get(scorer.name) is not None for label in groups)
            if known and (scorer.available() or not (again or real)):
                notes += [note for note in old_notes if note.startswith(f"{scorer.name}: ")]
                continue
            progress(0, 0, scorer.name)
            found, said = score_sets(groups, [scorer])
            for label, columns in found.items():
                sets.setdefault(label, {}).update(columns)
            notes += said
        folder.replace(list(samples.values()))
        summary = summarise(folder.samples(), folder.run, sets, int((folder.run.get("config") or {}).get("seed") or 0))
        done = tuple(f"{scorer.name}: " for scorer in scorers)
        summary["notes"] += [n for n in old_notes if n not in summary["notes"] and not n.startswith(done)] + notes
        folder.finish(summary)
        return summary


def score_folder(
    folder: Path,
    captions: str | None = None,
    metrics: Sequence[str] | None = None,
    real: Path | None = None,
    *,
    again: bool = False,
    progress: Progress = lambda done, of, what: None,
) -> dict[str, Any]:
    """Score a plain folder of images; returns a summary with one row.  Nothing is written into the folder.

    captions: a file as ``--prompts`` takes it that also names each caption's image: a COCO captions file, or a table or
    list with a column called image or file_name. Only images with a caption are scored then. The scores are kept in
    the cache folder. Raises UserError when there are no images, or no caption belongs to any of them.
    """
    paths = reference.images_in(folder)
    if not paths:
        kinds = ", ".join(sorted(reference.SUFFIXES))
        raise UserError(f"{folder} holds no images ({kinds}) and no run.json: give a run or a folder of images.")
    texts = {p.image: p.text for p in reversed(prompts.load(captions).prompts)} if captions else {}
    items = [Item(p.name, p, texts.get(p.name)) for p in paths if not captions or p.name in texts]
    if not items:
        raise UserError(f"{captions} names none of the {len(paths)} images in {folder}: give their captions file.")
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "replace")).hexdigest()[:16]
    journal = Journal(files.cache_dir() / "scores" / f"{name}.jsonl")
    row: dict[str, Any] = {"label": folder.resolve().name, "n": len(items)}
    notes = [f"{len(paths) - len(items)} of {len(paths)} images have no caption and are left out."]
    notes = notes if len(items) < len(paths) else []
    for scorer in scorers_for(metrics, "full", real):
        if isinstance(scorer, Scorer):
            values, said = score_items(scorer, items, journal, again, progress)
            finite = [v for v in values.values() if v is not None]
            ends = bootstrap_mean(finite) if finite else (None, None, None)
            row |= dict(zip((scorer.name, f"{scorer.name}_lo", f"{scorer.name}_hi"), ends, strict=True))
        else:
            progress(0, 0, scorer.name)
            sets, said = score_sets({"": [item.path for item in items]}, [scorer])
            row |= {f"{k}{end}": None for k in sets[""] if not k.endswith("_n") for end in ("_lo", "_hi")} | sets[""]
        notes += said
    return {"rows": [row], "notes": notes}


def score_items(
    scorer: Scorer, items: Sequence[Item], journal: Journal, again: bool, progress: Progress
) -> tuple[dict[str, float | None], list[str]]:
    """Values by key of all items that could be scored, from the journal or in batches, and what there is to say."""
    known = {} if again else journal.known(scorer.name, items)
    left = [item for item in items if item.key not in known]
    if not left:
        return known, []
    if reason := scorer.available():
        return known, [f"{scorer.name}: {reason}"]
    if getattr(scorer, "captions", True) and any(item.caption is None for item in left):
        return known, [f"{scorer.name}: it reads captions; give their file by --captions FILE"]
    broken: list[str] = []
    for start in range(0, len(left), BATCH):
        progress(start, len(left), scorer.name)
        pairs = [(item, image) for item, image in _opened(left[start : start + BATCH], broken)]
        if pairs:
            values = scorer.score([image for _, image in pairs], [item.caption or "" for item, _ in pairs])
            journal.add(scorer.name, [item for item, _ in pairs], values)
            known |= {item.key: value for (item, _), value in zip(pairs, values, strict=True)}
    progress(len(left), len(left), scorer.name)
    return known, _unread(scorer, broken)


def score_sets(groups: Mapping[str, Sequence[Path]], scorers: Iterable[SetScorer]) -> tuple[Sets, list[str]]:
    """Metrics of whole image sets, label by label, and what there is to say about them."""
    sets: Sets = {}
    notes: dict[str, None] = {}
    for scorer in scorers:
        for label, paths in groups.items():
            broken: list[str] = []
            score = scorer.score_set(image for _, image in _opened([Item("", p, None) for p in paths], broken))
            for name, value in {scorer.name: score.value, **score.more}.items():
                sets.setdefault(label, {}).update({name: value, f"{name}_n": score.count})
            notes |= dict.fromkeys(_unread(scorer, broken) + ([f"{scorer.name}: {score.note}"] if score.note else []))
    return sets, list(notes)


def image_groups(folder: RunFolder) -> dict[str, list[Path]]:
    """The image files of a run by label."""
    groups: dict[str, list[Path]] = {}
    for sample in folder.samples():
        groups.setdefault(sample.label, []).extend([folder.path / sample.image] if sample.image else [])
    return groups


def _items_of(folder: RunFolder) -> list[Item]:
    samples = [s for s in folder.samples() if s.image]
    items = [Item(s.key, folder.path / str(s.image), s.prompt) for s in samples]
    if not any(item.path.is_file() for item in items):
        raise UserError(f"{folder.path} has no images left in {folder.path / 'images'}: put them back or run it again.")
    return items


def _opened(items: Iterable[Item], broken: list[str]) -> Iterator[tuple[Item, Image.Image]]:
    """Items with their images; an image that cannot be read is left out and told in ``broken``."""
    for item in items:
        try:
            yield item, read_image(item.path)
        except UserError as error:
            broken.append(str(error))


def _unread(scorer: AnyScorer, broken: list[str]) -> list[str]:
    return [f"{scorer.name}: {len(broken)} images are left out. {broken[0]}"] if broken else []


def _stored(folder: RunFolder) -> tuple[Sets, list[str]]:
    """What the summary holds of whole sets, where these are the same still, and its notes; nothing if it is damaged."""
    counts = {label: sum(s.label == label for s in folder.samples()) for label in {s.label for s in folder.samples()}}
    try:
        summary = json.loads((folder.path / "summary.json").read_bytes())
        sets: Sets = {}
        for row in summary["rows"]:
            if row["n"] == counts.get(row["label"]):
                names = [key[:-2] for key in row if key.endswith("_n") and key[:-2] in row]
                sets[row["label"]] = {key: row[key] for name in names for key in (name, f"{name}_n")}
        return sets, [str(note) for note in summary["notes"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, []
