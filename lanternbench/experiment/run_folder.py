"""Run folders: all that a run writes, so that no crash costs a finished sample; which there are,
and what they hold.

``results/<run-id>/`` holds ``run.json`` (configuration, environment), ``samples.jsonl`` (a line
per image, append-only, flushed per line), ``images/``, and, once finished, ``tokens.safetensors``
and ``summary.json``; ``devices.jsonl`` where several devices made the samples.  The JSON Schemas
in ``docs/schema`` are generated from the models of these files.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.numpy import save

from lanternbench import __version__
from lanternbench.errors import UserError, first_mistake
from lanternbench.measure.figures import Figures
from lanternbench.measure.run_record import Environment, Resumption, RunRecord
from lanternbench.measure.samples import Sample, image_name
from lanternbench.measure.summary import Summary, read_summary, seal_of
from lanternbench.utils.files import OUT, open_file, replacing, writing
from lanternbench.utils.json_values import differences, read_object, versioned
from lanternbench.utils.ledger import (
    Ledger,
    Line,
    Lines,
    digest_of,
    read_lines,
    scan,
    without_repeats,
)

RUN, SAMPLES, DEVICES = "run.json", "samples.jsonl", "devices.jsonl"
OWN_FILES = {".lock", "images", "run.json.part"}  # of a folder without run.json
SHOWN = 5  # differences of settings in a message


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
            f"{path}/run.json is damaged ({reason(error)}): restore it or give --fresh."
        ) from None


def reason(error: Exception) -> str:
    """Return what is wrong first, and where."""
    if isinstance(error, ValidationError):
        return " ".join(first_mistake(error)).strip()
    return str(error)


def key_of(sample: Sample) -> str:
    return sample.key


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
    """
    return [_named(Path(root), name) for name in ids] or [latest(root)]


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


class Listing(BaseModel):
    """A run as a line of a list; ``disturbed``: whether its timing was noisy, None if unknown."""

    model_config = ConfigDict(frozen=True)

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
    with suppress(OSError), open_file(folder / SAMPLES) as file:
        samples = sum(line.endswith(b"\n") for line in file)
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
        finished=disturbed is not None and samples >= wanted,
        disturbed=disturbed,
    )


class Device(BaseModel):
    """One line of ``devices.jsonl``: the device that decoded a sample."""

    model_config = ConfigDict(frozen=True)

    key: str = ""  # of the sample
    node: str
    process: int = 0
    device: str = ""


class RunFolder(Ledger):
    """A run folder that this process alone has open."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.path = path
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
        if not re.fullmatch(r"[^\s/\\.][^/\\\0\n]{0,199}", record.run_id):
            raise UserError(
                f"{record.run_id!r} is no run name: give a name without slashes that starts with"
                " no dot or space."
            )
        path = Path(root) / record.run_id
        if fresh:
            path = free(path)
        with writing(path, OUT):
            (path / "images").mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        with ExitStack() as stack:
            stack.push(folder)
            folder._begin(record.model_copy(update={"run_id": path.name}))
            stack.pop_all()
            return folder

    @classmethod
    def existing(cls, path: Path) -> Self:
        """Open a run folder as it is, to score its images again.  Raises UserError if it is none
        or in use.
        """
        run = read_run(path)
        folder = cls(Path(path))
        with ExitStack() as stack:
            stack.push(folder)
            folder.run = run
            folder._load()
            stack.pop_all()
            return folder

    def _begin(self, record: RunRecord) -> None:
        """Write run.json, of a new run or a resumed one, and read the samples."""
        if (self.path / RUN).exists():
            self.run = _resumed(self.path, record)
        else:
            foreign = {entry.name for entry in self.path.iterdir()} - OWN_FILES
            if foreign:
                text = f"{self.path} exists but is no run folder (it has {min(foreign)})"
                raise UserError(f"{text}: choose another --out or run name.")
            self.run = record
        self._write(RUN, self.run.written())
        self._setting = record.environment.setting
        if record.environment.lasting() != self.run.environment.lasting():
            self._moved_to = record.environment
        self._load()

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
            with replacing(self.path / str(sample.image), OUT) as file:
                image.save(file, format="PNG")
        if where is not None:
            self._append_device(where.model_copy(update={"key": sample.key}))
        self.samples.append(sample)
        self._count(sample)
        return sample

    def _count(self, sample: Sample) -> None:
        self.figures.add(sample)
        images = self.images.setdefault(sample.label, [])
        if sample.image:
            images.append(self.path / sample.image)

    def _append_device(self, where: Device) -> None:
        if self._devices is None:
            self._devices = self.lines(DEVICES, Device, lambda line: line.key, lenient=True)
        self._devices.append(where)

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
        self.samples.rewrite(samples)
        self.figures = Figures()
        self.images = {}
        for sample in self.samples:
            self._count(sample)

    def finish(self, summary: Summary) -> None:
        """Write ``tokens.safetensors`` (key → int32 [tokens]) and ``summary.json``, both
        atomically.
        """
        self.samples.check()
        tokens = {sample.key: np.asarray(sample.token_ids, np.int32) for sample in self.samples}
        self.write("tokens.safetensors", save(tokens))
        samples = {"samples": samples_digest(self.path), "lanternbench": __version__}
        content = versioned(summary.model_copy(update=samples))
        self._write("summary.json", content | {"seal": seal_of(content)})

    def _write(self, name: str, value: object) -> None:
        text = json.dumps(versioned(value), indent=2, ensure_ascii=False, allow_nan=False)
        self.write(name, text.encode("utf-8", "replace") + b"\n")


def _resumed(path: Path, new: RunRecord) -> RunRecord:
    """Return ``run.json`` of an existing run, with this resumption noted.

    Raises UserError if settings, prompts or weights differ.
    """
    old = read_run(path)
    fix = "repeat the old settings to resume it"
    found = "exists with other settings"
    changes = differences(old.config.written(), new.config.written())
    if not changes:
        changes = _other_prompts(old, new)
    if not changes and old.target.weights and new.target.weights:
        found = "was begun with other weights"
        fix = "put the old files back"
        changes = differences(old.target.weights, new.target.weights)
    if changes:
        shown = "; ".join(changes[:SHOWN])
        if len(changes) > SHOWN:
            shown += f"; and {len(changes) - SHOWN} more"
        raise UserError(
            f"run {path.name!r} {found} ({shown}): give --fresh to start a new run next to it, or"
            f" {fix}."
        )
    resumption = Resumption(at=new.created)
    return old.model_copy(update={"resumed": [*old.resumed, resumption]})


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
    if not path.exists():
        return path
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(place for place in numbered if not place.exists())
