"""Run folders: all that a run writes, so that no crash costs a finished sample; which there are,
and what they hold.

``results/<run-id>/`` holds ``run.json`` (configuration, environment), ``samples.jsonl`` (a line
per image, append-only, flushed per line), ``images/``, and, once finished, ``tokens.safetensors``
and ``summary.json``; ``devices.jsonl`` where several devices made the samples.  The JSON Schemas
in ``docs/schema`` are generated from the models of these files.  ``shards.py`` says what shards
write.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict
from safetensors.numpy import save

from lanternbench import __version__
from lanternbench.errors import UserError, cause
from lanternbench.experiment.shards import Shard
from lanternbench.measure.figures import Figures
from lanternbench.measure.run_record import Environment, Resumption, RunRecord, Shards
from lanternbench.measure.samples import Sample, image_name
from lanternbench.measure.summary import Summary, kept_sets, read_summary, seal_of, summarise
from lanternbench.notes import Note
from lanternbench.utils.files import FRESH, OUT, make_folder, open_file, replacing
from lanternbench.utils.json_values import differences, json_text, read_object, versioned
from lanternbench.utils.ledger import (
    Ledger,
    Line,
    Lines,
    digest_of,
    read_lines,
    scan,
    without_repeats,
)
from lanternbench.utils.text import first_of

RUN, SAMPLES, DEVICES = "run.json", "samples.jsonl", "devices.jsonl"
SUMMARY = "summary.json"
OWN_FILES = {".lock", "images", "run.json.part"}  # of a folder without run.json
SHOWN = 5  # differences of settings in a message
ANEW = "give --fresh to start a new run next to it"
SHARDS_ANEW = "give another --out or --name for a new run"
ONE_EACH = "give every process a shard of its own"
SETS_LATER = (
    "Metrics of whole sets of images (FID, precision, recall) are not scored: the shard that"
    " finishes last does it, or `lanternbench score`."
)
key_of = attrgetter("key")  # of a sample, or of its device


def read_run(path: Path) -> RunRecord:
    """Return ``run.json`` of a run folder.  Raises UserError if there is none, it is damaged, or
    of a later version.
    """
    try:
        run = RunRecord.model_validate(read_object(Path(path) / RUN))
        run.written()  # raises ValueError for values that are nested too deep
        return run
    except OSError as error:
        raise UserError(
            f"{path} is no run folder ({error.strerror}): give a folder that `run` made."
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}/run.json is damaged ({cause(error)}): restore it or give --fresh."
        ) from None


def scan_samples(path: Path) -> Iterator[Line[Sample]]:
    """Yield every line of a run folder's samples, with its sample or why there is none."""
    return without_repeats(scan(Path(path) / SAMPLES, Sample), key_of)


def iter_samples(path: Path) -> Iterator[Sample]:
    """Yield the samples of a run folder, one at a time.  Raises UserError for a damaged line."""
    lines = read_lines(Path(path) / SAMPLES, Sample, key_of)
    return (sample for _, sample in lines)


def read_samples(path: Path) -> list[Sample]:
    """Return all samples of a run folder, in memory.  Raises UserError for a damaged line."""
    return list(iter_samples(path))


def samples_digest(path: Path) -> str | None:
    """Return the SHA-256 of a run folder's samples.jsonl; None if there is none."""
    return digest_of(Path(path) / SAMPLES)


def runs(root: Path) -> list[tuple[Path, RunRecord]]:
    """Return the run folders under ``root`` with their run.json, the one last started first."""
    readable = []
    for path in Path(root).glob(f"*/{RUN}"):
        with suppress(UserError):
            readable.append((path.parent, read_run(path.parent)))
    return sorted(readable, key=lambda item: (item[1].last_start, item[0].name), reverse=True)


def no_run(root: Path) -> UserError:
    return UserError(
        f"there is no run in {root}: make one with `lanternbench run --method eagle-2`."
    )


def latest(root: Path, name: str = ".*") -> Path:
    """Return the run last started or resumed under ``root`` whose id matches the pattern ``name``.

    Raises UserError if there is none, or if it is damaged.
    """
    matching = [
        path.parent for path in Path(root).glob(f"*/{RUN}") if re.fullmatch(name, path.parent.name)
    ]
    readable = [path for path, _ in runs(root) if path in matching]
    broken = [path for path in matching if path not in readable]
    candidates = readable[:1] + broken
    if not candidates:
        raise no_run(root)
    newest = max(candidates, key=lambda path: (path / RUN).stat().st_mtime)
    read_run(newest)  # raises UserError for a damaged run
    return newest


def find(root: Path, ids: Sequence[str] = ()) -> list[Path]:
    """Return folders of runs: ids under ``root``, paths, or names, of which the latest counts; by
    default the latest run.  Raises UserError.

    Of a run whose shards are not finished, what they have stored so far is joined.
    """
    places = [_named(Path(root), name) for name in ids] or [latest(root)]
    return [joined(place) for place in places]


def _named(root: Path, name: str) -> Path:
    for place in (root / name, Path(name)):
        if (place / RUN).exists():
            return place
    names = [path.parent.name for path in Path(root).glob(f"*/{RUN}")]
    id_of_name = rf"{re.escape(name)}-[0-9a-f]{{8}}(-\d+)?"
    if any(re.fullmatch(id_of_name, known) for known in names):
        return latest(root, id_of_name)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:3]
    hint = "make one with `lanternbench run`."
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    raise UserError(f"there is no run {name!r} in {root}: {hint}")


class Listing(NamedTuple):
    """A run as a line of a list; ``disturbed``: whether its timing was noisy, None if unknown."""

    name: str
    date: str
    target: str
    prompts: str
    methods: int
    samples: int
    of: int
    finished: bool
    disturbed: bool | None


def listing(root: Path) -> list[Listing]:
    """Return the runs under ``root``, the last started first.  Raises UserError if there is none."""
    found = [_listed(folder, run) for folder, run in runs(root)]
    if not found:
        raise no_run(root)
    return found


def _listed(folder: Path, run: RunRecord) -> Listing:
    samples = 0
    pattern = SAMPLES if run.shards is None else f"shards/*/{SAMPLES}"
    for path in folder.glob(pattern):
        with suppress(OSError), open_file(path) as file:
            samples += sum(line.endswith(b"\n") for line in file)
    disturbed = None
    with suppress(UserError):
        notes = read_summary(folder).notes
        clock = [note for note in notes if note.metric == "latency_s"]
        disturbed = any(note.kind in ("unfit", "warning") for note in clock)
    labels = run.wanted()
    wanted = run.samples_per_method * len(labels)
    source = run.prompts.dataset or run.prompts.source or "–"
    return Listing(
        name=folder.name,
        date=run.last_start[:16].replace("T", " "),
        target=run.target.name or "–",
        prompts=f"{source} {run.prompts.count or ''}".strip(),
        methods=len(labels),
        samples=samples,
        of=wanted,
        finished=disturbed is not None and samples >= wanted and not run.unfinished_shards,
        disturbed=disturbed,
    )


class Device(BaseModel):
    """One line of ``devices.jsonl``: the device that decoded a sample."""

    model_config = ConfigDict(frozen=True)

    key: str  # of the sample
    node: str
    process: int = 0
    device: str = ""


class RunFolder(Ledger):
    """A run folder that this process alone has open."""

    def __init__(self, path: Path, anew: str = FRESH, wait: bool = False):
        super().__init__(path, anew, wait=wait)
        self.path = path
        self.whole = path  # the run's folder, if this is one of its shards
        self.run = RunRecord()
        self.figures = Figures()
        self.images: dict[str, list[Path]] = {}  # by label
        self.samples: Lines[Sample]
        self._devices: Lines[Device] | None = None
        self._setting: str | None = None  # of samples to come
        self._moved_to: Environment | None = None  # until a sample is made there

    @classmethod
    def open(cls, root: Path, record: RunRecord, fresh: bool = False) -> Self:
        """Create the run ``root / record.run_id``, or resume it if it has the same settings.

        ``fresh`` never deletes: next to an existing run it starts ``<run_id>-2``, ``-3``, …
        Raises UserError if the run exists with other settings, prompts or weights, is in use by
        another process, is damaged, or cannot be written.
        """
        path = _place(root, record)
        if fresh:
            path = free(path)
        folder = cls(path)
        with folder.closed_on_error():
            folder._begin(record.model_copy(update={"run_id": path.name}))
        return folder

    @classmethod
    def open_shard(cls, root: Path, record: RunRecord, shard: Shard) -> Self:
        """Open one shard of the run ``root / record.run_id``, which the first shard creates.

        Raises UserError as ``open`` does, if the run has another number of shards, and if the
        shards of a run with the same name and other settings are not finished.
        """
        path = _place(root, record)
        shards = Shards(of=shard.of, unfinished=list(range(1, shard.of + 1)))
        run = record.model_copy(update={"shards": shards})
        count = shard.count(record.prompts.count)
        prompts = record.prompts.model_copy(update={"count": count})
        with cls(path, wait=True) as whole:
            if not (path / RUN).exists():
                _check_alone(root, run)
                whole._create(run)
            _check_same(path, read_run(path), run)
        folder = cls(path / shard.folder, ONE_EACH)
        with folder.closed_on_error():
            folder.whole = path
            folder._begin(record.model_copy(update={"prompts": prompts}))
        return folder

    @classmethod
    def existing(cls, path: Path, wait: bool = False) -> Self:
        """Open a run folder as it is, to score its images again or to join its shards.  Raises
        UserError if it is none or, unless it may ``wait``, in use.
        """
        run = read_run(path)
        folder = cls(Path(path), wait=wait)
        with folder.closed_on_error():
            folder.run = run
            folder._load()
        return folder

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.push(self)
            yield
            stack.pop_all()

    def _begin(self, record: RunRecord) -> None:
        """Write run.json, of a new run or a resumed one, and read the samples."""
        make_folder(self.whole / "images", OUT)
        if (self.path / RUN).exists():
            old = read_run(self.path)
            _check_same(self.path, old, record)
            self.run = old
            self.record(resumed=[*old.resumed, Resumption(at=record.created)])
        else:
            self._create(record)
        self._setting = record.environment.setting
        if record.environment.lasting() != self.run.environment.lasting():
            self._moved_to = record.environment
        self._load()

    def _create(self, record: RunRecord) -> None:
        """Write run.json of a new run.  Raises UserError if the folder is somebody else's."""
        foreign = {entry.name for entry in self.path.iterdir()} - OWN_FILES
        if foreign:
            raise UserError(
                f"{self.path} exists but is no run folder (it has {min(foreign)}):"
                " choose another --out or run name."
            )
        self.run = record
        self._write(RUN, record.written())

    def _load(self) -> None:
        self.samples = self.lines(SAMPLES, Sample, key_of, self._count)

    def append(
        self, sample: Sample, image: Image.Image | None = None, where: Device | None = None
    ) -> Sample:
        """Store one finished sample, the image first, and return it with ``image`` filled in.

        ``where``: the device that decoded it, where there are several.  Raises ValueError for a
        key already stored, UserError when the disk is full or not writable.
        """
        if sample.key in self.samples.keys:
            raise ValueError(f"sample {sample.key!r} is stored already")
        self.samples.check()
        if self._moved_to is not None:  # latencies from two machines: the summary says so
            *before, last = self.run.resumed
            last = last.model_copy(update={"environment": self._moved_to})
            self.record(resumed=[*before, last])
            self._moved_to = None
        sample = sample.model_copy(update={"setting": self._setting})
        if image is not None:
            sample = sample.model_copy(update={"image": f"images/{image_name(sample)}"})
            with replacing(self.whole / str(sample.image), OUT) as file:
                image.save(file, format="PNG")
        if where is not None:
            if self._devices is None:
                self._devices = self.lines(DEVICES, Device, key_of, lenient=True)
            self._devices.append(where)
        self.samples.append(sample)
        return sample

    def _count(self, sample: Sample) -> None:
        self.figures.add(sample)
        images = self.images.setdefault(sample.label, [])
        if sample.image:
            images.append(self.whole / sample.image)

    def record(self, **facts: object) -> None:
        """Write facts about the run into ``run.json``."""
        changed = self.run.model_copy(update=facts)
        if changed != self.run:
            self.run = changed
            self._write(RUN, self.run.written())

    def score_with(self, weights: Mapping[str, str]) -> None:
        """Record the digests of the weights that will score the images, by metric.

        Raises UserError if images were scored by others.
        """
        recorded = self.run.metric_weights
        has_samples = bool(self.samples.keys)
        for name, digest in weights.items():
            if has_samples and recorded.get(name, digest) != digest:
                raise UserError(
                    f"{self.path} was scored by other weights of {name}: `lanternbench score "
                    f"{self.path} --metrics {name}` scores it by those of now, --fresh starts anew"
                )
        if recorded or not has_samples:
            self.record(metric_weights=recorded | dict(weights))

    def replace(self, samples: Iterable[Sample]) -> None:
        """Rewrite ``samples.jsonl`` as a whole: with other metrics, or without some samples."""
        self.figures = Figures()
        self.images = {}
        self.samples.rewrite(samples)

    def join(self, of: int) -> None:
        """Take over what the ``of`` shards have stored so far, in the order in which one process
        would have stored it.  Scores that were added here are kept.

        ``run.json`` then names the shards that are not finished, and the machines of all.
        """
        unfinished = unfinished_shards(self.path, of)  # what these store from now on is not read
        folders = [self.path / Shard(number, of).folder for number in range(1, of + 1)]
        begun = [folder for folder in folders if (folder / RUN).is_file()]
        scores = {sample.key: sample.metrics for sample in self.samples}

        def with_scores(sample: Sample) -> Sample:
            metrics = sample.metrics | scores.get(sample.key, {})
            return sample.model_copy(update={"metrics": metrics})

        self.replace(map(with_scores, in_order(begun)))
        shards = [read_run(folder) for folder in begun]
        weights: dict[str, str] = {}
        for shard in shards:
            weights |= shard.metric_weights
        environment = shards[0].environment if shards else self.run.environment
        self.record(
            shards=Shards(of=of, unfinished=unfinished),
            environment=environment,
            resumed=starts(environment, shards),
            metric_weights=weights | self.run.metric_weights,
        )

    def summary(self) -> Summary:
        """Return the summary that was written last; an empty one if there is none, or it is
        damaged.
        """
        with suppress(UserError):
            return read_summary(self.path)
        return Summary()

    def finish(self, summary: Summary) -> None:
        """Write ``tokens.safetensors`` (key → int32 [tokens]) and ``summary.json``, both
        atomically.
        """
        self.samples.check()
        tokens = {sample.key: np.asarray(sample.token_ids, np.int32) for sample in self.samples}
        self.write("tokens.safetensors", save(tokens))
        samples = {"samples": samples_digest(self.path), "lanternbench": __version__}
        content = versioned(summary.model_copy(update=samples))
        self._write(SUMMARY, content | {"seal": seal_of(content)})

    def _write(self, name: str, value: object) -> None:
        self.write(name, f"{json_text(value)}\n")


def joined(path: Path) -> Path:
    """Return a run's folder, after it took over what unfinished shards have stored so far."""
    shards = read_run(path).shards
    if shards is not None and shards.unfinished:
        with RunFolder.existing(path) as folder:
            folder.join(shards.of)
            old = folder.summary()
            sets = kept_sets(folder.figures, old)
            new = summarise(folder.figures, folder.run, sets)
            notes = []
            is_scored = any(sets.values()) or not folder.run.config.metrics
            if folder.run.target.draws_images and not is_scored:
                notes.append(Note("missing", None, SETS_LATER))
            folder.finish(new.after(old, notes))
    return path


def unfinished_shards(path: Path, of: int) -> list[int]:
    """Return which of a run's ``of`` shards have not measured all of their prompts."""
    numbers = range(1, of + 1)
    return [n for n in numbers if not (path / Shard(n, of).folder / SUMMARY).is_file()]


def in_order(shards: Sequence[Path]) -> Iterator[Sample]:
    """Yield the samples of shards seed by seed and prompt by prompt, the prompts in turn."""

    def placed(number: int, shard: Path) -> Iterator[tuple[tuple[int, int, int], Sample]]:
        prompts: dict[str, int] = {}
        for sample in iter_samples(shard):
            prompt = prompts.setdefault(sample.prompt_id, len(prompts))
            yield (sample.seed, prompt, number), sample

    streams = [placed(number, shard) for number, shard in enumerate(shards)]
    return (sample for _, sample in heapq.merge(*streams, key=itemgetter(0)))


def starts(first: Environment, shards: Sequence[RunRecord]) -> list[Resumption]:
    """Return when shards were started, each environment that may change times once."""
    known = {first.setting}
    found = []
    for shard in shards:
        begun = Resumption(at=shard.created, environment=shard.environment)
        for start in [begun, *shard.resumed]:
            if start.environment is None or start.environment.setting in known:
                found.append(Resumption(at=start.at))
            else:
                known.add(start.environment.setting)
                found.append(start)
    return found


def _place(root: Path, record: RunRecord) -> Path:
    """Return the folder of a run.  Raises UserError for an id that is no name of a folder."""
    if not re.fullmatch(r"[^\s/\\.][^/\\\0\n]{0,199}", record.run_id):
        raise UserError(
            f"{record.run_id!r} is no run name: give a name without slashes that starts with"
            " no dot or space."
        )
    return Path(root) / record.run_id


def _check_same(path: Path, old: RunRecord, new: RunRecord) -> None:
    """Raise UserError if settings, prompts or weights of a run and its continuation differ."""
    fix = "repeat the old settings to resume it"
    found = "exists with other settings"
    changes = _other_settings(old, new)
    if not changes:
        fix = "put the old files back"
        found = "was begun with other weights"
        changes = _other_weights(old, new)
    if changes:
        anew = ANEW if new.shards is None else SHARDS_ANEW
        shown = first_of(changes, SHOWN, "; ")
        raise UserError(f"run {path.name!r} {found} ({shown}): {anew}, or {fix}.")


def _check_alone(root: Path, new: RunRecord) -> None:
    """Raise UserError if a run with the same name waits for shards with other settings."""
    name = new.run_id.rpartition("-")[0]
    for path, old in runs(root):
        if old.unfinished_shards and old.run_id.rpartition("-")[0] == name:
            changes = first_of(_other_settings(old, new), SHOWN, "; ")
            raise UserError(
                f"the shards of {path} are not finished, and this one has other settings"
                f" ({changes}): repeat those of the run, or {SHARDS_ANEW}."
            )


def _other_settings(old: RunRecord, new: RunRecord) -> list[str]:
    """Return how the settings, the number of shards or the prompts differ."""
    changes = differences(_settings(old), _settings(new))
    return changes or _other_prompts(old, new)


def _settings(run: RunRecord) -> dict[str, object]:
    number = None if run.shards is None else run.shards.of
    return run.config.written() | {"shards": number}


def _other_weights(old: RunRecord, new: RunRecord) -> list[str]:
    """Return how the weights differ that both runs know, of the models or else of metrics."""
    changes: list[str] = []
    if old.target.weights and new.target.weights:
        changes = differences(old.target.weights, new.target.weights)
    known = old.metric_weights
    now = {name: digest for name, digest in new.metric_weights.items() if name in known}
    return changes or differences(known, known | now)


def _other_prompts(old: RunRecord, new: RunRecord) -> list[str]:
    """Return how the prompts differ."""
    pairs = {
        "prompts.source": (old.prompts.source, new.prompts.source),
        "prompts.hash": (old.prompts.hash, new.prompts.hash),
    }
    return [
        f"{name}: {before} -> {after}"
        for name, (before, after) in pairs.items()
        if after is not None and before != after
    ]


def free(path: Path) -> Path:
    """Return the first of ``path``, ``path-2``, ``path-3``, … that does not exist yet."""
    place = path
    number = 2
    while place.exists():
        place = path.with_name(f"{path.name}-{number}")
        number += 1
    return place
