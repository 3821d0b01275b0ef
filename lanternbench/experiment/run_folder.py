"""Run folders: all that a run writes, so that no crash costs a finished sample; which there are,
and what they hold.

``results/<run-id>/`` holds ``run.json`` (configuration, environment), ``samples.jsonl`` (a line
per image, append-only, flushed per line), ``images/``, and, once finished, ``tokens.safetensors``
and ``summary.json``; ``devices.jsonl`` where several devices made the samples.  The JSON Schemas
in ``docs/schema`` are generated from the models of these files.
"""

import difflib
import errno
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.numpy import save

from lanternbench.errors import UserError
from lanternbench.measure.figures import Figures
from lanternbench.measure.run_notes import asked_for
from lanternbench.measure.samples import Sample, image_name, setting_name, without_momentary
from lanternbench.measure.summary import Summary, read_summary
from lanternbench.utils.files import APPEND, FRESH, OUT, acquire, open_file, replacing, writing
from lanternbench.utils.json_values import (
    SCHEMA_VERSION,
    config_hash,
    differences,
    plain,
    read_object,
    versioned,
)


class _Part(BaseModel):
    """Keeps additional keys, which other versions may have."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class RunConfig(_Part):
    """The settings that determine the results, as a sweep file has them."""

    target: str | None = None
    drafter: str | None = None
    dtype: str | None = None
    compile: str | None = None
    prompts: str | None = None
    suite: str | None = None
    seed: int | None = Field(default=None, ge=0)
    batch: int | None = None
    repeats: int | None = None
    num_prompts: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    guidance: float | None = None


class RunFile(_Part):
    """``run.json``: what was run, on what, and where; the lines of ``samples.jsonl`` are of its
    version.
    """

    schema_version: int = Field(0, le=SCHEMA_VERSION)
    run_id: str = ""
    created: str = ""
    config: RunConfig = RunConfig()
    config_hash: str = ""
    environment: dict[str, Any] = {}
    prompts: dict[str, Any] = {}
    target: dict[str, Any] = {}
    methods: list[dict[str, Any]] = []
    resumed: list[dict[str, Any]] = []
    left_out: list[Any] = []


@dataclass(frozen=True)
class SummaryFile(Summary):
    """``summary.json``: a row per method, every figure with its interval."""

    schema_version: int = SCHEMA_VERSION


def read_run(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder. Raises UserError when there is none, it is damaged, or of a
    later version.
    """
    try:
        run = read_object(Path(path) / "run.json")
        RunFile.model_validate(run)
    except OSError as error:
        raise UserError(
            f"{path} is no run folder ({error.strerror}): give a folder that `run` made."
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}/run.json is damaged ({reason(error)}): restore it or give --fresh."
        ) from None
    return run


def reason(error: Exception) -> str:
    """What is wrong first, and where."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


class Line(NamedTuple):
    """One line of samples.jsonl: its number, where it ends in bytes, and its sample, or why there
    is none.
    """

    number: int
    end: int
    sample: Sample | None
    why: str = ""


def scan(path: Path) -> Iterator[Line]:
    """Every line of a samples.jsonl, one at a time; a torn last line, which a crash leaves behind,
    is left out.
    """
    try:
        with open_file(path) as lines:
            end = 0
            for number, text in enumerate(lines, 1):
                end += len(text)
                if not text.strip():
                    continue
                torn = not text.endswith(b"\n")
                try:
                    line = Line(number, end, Sample.model_validate_json(text))
                except ValidationError as error:
                    line = Line(number, end, None, reason(error))
                    torn |= error.errors()[0]["type"] == "json_invalid" and not lines.peek(1)  # type: ignore[attr-defined]
                if not torn:
                    yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): make it readable.") from None


def whole_lines(path: Path) -> Iterator[tuple[int, Sample]]:
    """(where its line ends in bytes, sample) of a samples.jsonl.  Raises UserError for a damaged
    or repeated line.
    """
    keys: set[str] = set()
    for number, end, sample, why in scan(path):
        if sample and sample.key in keys:
            why = f"sample {sample.key!r} is there twice"
        if why or sample is None:
            raise UserError(
                f"{path} line {number} is damaged ({why}): delete that line to have the sample made again."
            )
        keys.add(sample.key)
        yield end, sample


def iter_samples(path: Path) -> Iterator[Sample]:
    """Samples of a run folder, one at a time.  Raises UserError for a damaged line."""
    return (sample for _, sample in whole_lines(Path(path) / "samples.jsonl"))


def read_samples(path: Path) -> list[Sample]:
    """All samples of a run folder, in memory.  Raises UserError for a damaged line."""
    return list(iter_samples(path))


def samples_digest(path: Path) -> str | None:
    """The SHA-256 of a run folder's samples.jsonl; None where there is none."""
    with suppress(OSError), open_file(Path(path) / "samples.jsonl") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return None


def runs(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Run folders under ``root`` with their run.json, the one last started or resumed first."""
    readable = []
    for path in Path(root).glob("*/run.json"):
        with suppress(UserError):
            readable.append((path.parent, read_run(path.parent)))
    return sorted(readable, key=lambda item: (_last_start(item[1]), item[0].name), reverse=True)


def _last_start(run: dict[str, Any]) -> str:
    return max(
        [
            str(run.get("created", "")),
            *(str(entry.get("at", "")) for entry in run.get("resumed", [])),
        ]
    )


def no_run(root: Path) -> UserError:
    return UserError(
        f"there is no run in {root}: make one with `lanternbench run --method eagle-2`."
    )


def latest(root: Path) -> Path:
    """The run last started or resumed under ``root``. Raises UserError when there is none."""
    readable = [path for path, _ in runs(root)]
    broken = [path.parent for path in Path(root).glob("*/run.json") if path.parent not in readable]
    newest = max(
        [*readable[:1], *broken],
        key=lambda path: (path / "run.json").stat().st_mtime,
        default=None,
    )
    if newest is None:
        raise no_run(root)
    read_run(newest)  # raises UserError for a damaged run
    return newest


def find(root: Path, ids: Sequence[str] = ()) -> list[Path]:
    """Folders of runs: ids under ``root``, paths, names (the latest); by default the latest.
    Raises UserError.
    """
    return [_named(Path(root), name) for name in ids] or [latest(root)]


def _named(root: Path, name: str) -> Path:
    if places := [place for place in (root / name, Path(name)) if (place / "run.json").is_file()]:
        return places[0]
    known = [path for path, _ in runs(root)]
    if matches := [
        path
        for path in known
        if re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{8}}(-\d+)?", path.name)
    ]:
        return matches[0]
    names = [path.name for path in known]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "make one with `lanternbench run`."
    raise UserError(f"there is no run {name!r} in {root}: {hint}")


def listing(root: Path) -> list[dict[str, Any]]:
    """A row per run, the last started first; ``disturbed``: None without a summary.  Raises
    UserError without runs.
    """
    rows = []
    for folder, run in runs(root):
        prompts, target, (labels, each) = (
            run.get("prompts", {}),
            run.get("target", {}),
            asked_for(run),
        )
        samples, of = 0, each * len(labels)
        disturbed: bool | None = None
        with suppress(OSError), open_file(folder / "samples.jsonl") as file:
            samples = sum(line.endswith(b"\n") for line in file)
        with suppress(UserError):
            notes = read_summary(folder).notes
            disturbed = any(
                note.metric == "latency_s" and note.kind in ("unfit", "warning") for note in notes
            )
        row: dict[str, Any] = {
            "name": folder.name,
            "date": _last_start(run)[:16].replace("T", " "),
        }
        source = f"{prompts.get('dataset') or prompts.get('source') or '–'} {prompts.get('count') or ''}".strip()
        row |= {
            "target": target.get("name") or "–",
            "prompts": source,
            "methods": len(labels),
            "samples": samples,
        }
        rows.append(
            row
            | {
                "of": of,
                "finished": disturbed is not None and samples >= of,
                "disturbed": disturbed,
            }
        )
    if not rows:
        raise no_run(root)
    return rows


class RunFolder(ExitStack):
    """A run folder that this process alone has open; ``done``: keys of its samples, ``images`` of
    them by label.
    """

    def __init__(
        self, path: Path, run: dict[str, Any], lock: ExitStack, environment: Any = None
    ) -> None:
        super().__init__()
        self.path, self.run = path, run
        moved = without_momentary(environment) != without_momentary(run.get("environment"))
        self._elsewhere = environment if moved else None
        self._setting = setting_name(environment)
        self.done, self.figures, self.images = set[str](), Figures(), dict[str, list[Path]]()
        self._samples, end = path / "samples.jsonl", 0
        for end, sample in whole_lines(self._samples):  # noqa: B007 (the last one counts)
            self._count(sample)
        with writing(self._samples, OUT):
            self._fd = os.open(self._samples, os.O_CREAT | APPEND, 0o644)
            # an incomplete last line is removed: its sample is decoded again
            os.ftruncate(self._fd, end)
        self.enter_context(lock.pop_all())
        self.callback(lambda: os.close(self._fd))

    @classmethod
    def open(
        cls,
        root: Path,
        run_id: str,
        config: Mapping[str, Any],
        *,
        fresh: bool = False,
        **facts: Any,
    ) -> Self:
        """Create the run ``root/run_id``, or resume it when it exists with the same configuration
        and prompts.

        ``fresh`` never deletes: beside an existing run it starts ``<run_id>-2``, ``-3``, …
        ``facts``: environment, prompts and target, and methods as {"label", "key", "method",
        "options", "lossless"} in the order of reports. Raises UserError when the run exists with
        other settings, is in use by another process, is damaged, or cannot be written.
        """
        if not re.fullmatch(r"[^\s/\\.][^/\\\0\n]{0,199}", run_id):
            raise UserError(
                f"{run_id!r} is no run name: give a name without slashes that starts with no dot or space."
            )
        path = free(Path(root) / run_id) if fresh else Path(root) / run_id
        with writing(path, OUT):
            (path / "images").mkdir(parents=True, exist_ok=True)
        head: dict[str, Any] = {
            "run_id": path.name,
            "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        }
        head |= {"config": config, "config_hash": config_hash(config)}
        new = run = plain(
            head | {"environment": {}, "prompts": {}, "target": {}, "methods": []} | facts
        )
        with acquire(path, FRESH) as lock:
            if (path / "run.json").exists():
                run = _resumed(path, new)
            elif foreign := sorted(
                {entry.name for entry in path.iterdir()} - {".lock", "images", "run.json.part"}
            ):
                text = f"{path} exists but is no run folder (it has {foreign[0]})"
                raise UserError(f"{text}: choose another --out or run name.")
            _write_json(path / "run.json", run)
            return cls(path, run, lock, new["environment"])

    @classmethod
    def existing(cls, path: Path) -> Self:
        """Open a run folder as it is, for scoring its images again. Raises UserError when it is
        none or in use.
        """
        run = read_run(path)
        with acquire(Path(path), FRESH) as lock:
            return cls(Path(path), run, lock)

    def samples(self) -> Iterator[Sample]:
        """The finished samples in the order in which they were written, read from disk one at a
        time.
        """
        return iter_samples(self.path)

    def append(
        self,
        sample: Sample,
        image: Image.Image | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Sample:
        """Store one finished sample, the image first, and return it with ``image`` filled in.

        ``where``: the device that decoded it, where there are several, for ``devices.jsonl``.
        Raises ValueError for a key already stored, UserError when the disk is full or not
        writable.
        """
        if sample.key in self.done:
            raise ValueError(f"sample {sample.key!r} is stored already")
        self._check()
        if self._elsewhere:  # latencies from two machines: the summary says so
            self.run["resumed"][-1]["environment"], self._elsewhere = self._elsewhere, None
            _write_json(self.path / "run.json", self.run)
        sample = sample.model_copy(update={"setting": self._setting})
        if image is not None:
            sample = sample.model_copy(update={"image": f"images/{image_name(sample)}"})
            with replacing(self.path / str(sample.image), OUT) as file:
                image.save(file, format="PNG")
        if where is not None:
            devices = self.path / "devices.jsonl"
            with (
                writing(devices, OUT),
                open(os.open(devices, os.O_CREAT | APPEND, 0o644), "ab") as file,
            ):
                file.write(json.dumps({"key": sample.key, **where}).encode() + b"\n")
        with writing(self._samples, OUT):
            _append_whole(self._fd, sample.model_dump_json().encode() + b"\n")
        self._count(sample)
        return sample

    def _count(self, sample: Sample) -> None:
        self.done.add(sample.key)
        self.figures.add(sample)
        self.images.setdefault(sample.label, []).extend(
            [self.path / sample.image] if sample.image else []
        )

    def record(self, **facts: Any) -> None:
        """Write facts about the run into ``run.json``."""
        if any(self.run.get(name) != fact for name, fact in facts.items()):
            self.run |= facts
            _write_json(self.path / "run.json", self.run)

    @property
    def metric_weights(self) -> dict[str, str]:
        """The digests of the weights that scored the images, by metric, where they are known."""
        return self.run.get("metric_weights") or {}

    def score_with(self, weights: Mapping[str, str]) -> None:
        """Record the digests of the weights that will score the images, by metric.

        Raises UserError where images were scored by others.
        """
        for name, digest in weights.items():
            if self.done and self.metric_weights.get(name, digest) != digest:
                raise UserError(
                    f"{self.path} was scored by other weights of {name}: `lanternbench score "
                    f"{self.path} --metrics {name}` scores it by those of now, --fresh starts anew"
                )
        if self.metric_weights or not self.done:
            self.record(metric_weights=self.metric_weights | dict(weights))

    def replace(self, samples: Iterable[Sample]) -> None:
        """Rewrite ``samples.jsonl`` as a whole, atomically: for metrics computed after the run
        (``score``).
        """
        self.figures = Figures()
        with replacing(self._samples, OUT) as file:
            for sample in samples:
                file.write(sample.model_dump_json().encode() + b"\n")
                self.figures.add(sample)
        os.close(self._fd)
        self._fd = os.open(self._samples, APPEND)

    def _check(self) -> None:
        """Raises UserError where the samples' file was deleted or replaced."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self._samples)):
                return
        text = f"{self._samples} was deleted or replaced while this run wrote it, and what it held is lost"
        raise UserError(f"{text}: start the same command again.")

    def finish(self, summary: Summary) -> None:
        """Write ``tokens.safetensors`` (key → int32 [tokens]) and ``summary.json``, both
        atomically.
        """
        self._check()
        tokens = {sample.key: np.asarray(sample.token_ids, np.int32) for sample in self.samples()}
        with replacing(self.path / "tokens.safetensors", OUT) as file:
            file.write(save(tokens))
        _write_json(
            self.path / "summary.json", replace(summary, samples=samples_digest(self.path))
        )


def _resumed(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    """``run.json`` of an existing run, with this resumption noted. Raises UserError when the
    settings differ.
    """
    old = read_run(path)
    changes = differences(old.get("config", {}), new["config"])
    for part in ("source", "hash"):
        before, after = old.get("prompts", {}).get(part), new["prompts"].get(part)
        if not changes and after is not None and before != after:
            changes.append(f"prompts.{part}: {before} -> {after}")
    what, fix = "exists with other settings", "or repeat the old settings to resume it"
    before, after = (run.get("target", {}).get("weights") or {} for run in (old, new))
    if not changes and before and after:
        changes, what, fix = (
            differences(before, after),
            "was begun with other weights",
            "or put the old files back",
        )
    if changes:
        first = "; ".join(changes[:5]) + (
            f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        )
        raise UserError(
            f"run {path.name!r} {what} ({first}): give --fresh to start a new run beside it, {fix}."
        )
    return {**old, "resumed": [*old.get("resumed", []), {"at": new["created"]}]}


def free(path: Path) -> Path:
    """The first of ``path``, ``path-2``, ``path-3``, … that does not exist yet."""
    names = itertools.chain(
        [path], (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    )
    return next(name for name in names if not name.exists())


def _append_whole(fd: int, line: bytes) -> None:
    """Append in one write; a part of a line (disk full) is taken back."""
    size = os.fstat(fd).st_size
    try:
        if os.write(fd, line) != len(line):
            raise OSError(errno.ENOSPC, "No space left on device")
        os.fsync(fd)
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, size)
        raise


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(versioned(value), indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path, OUT) as file:
        file.write(text.encode("utf-8", "replace") + b"\n")
