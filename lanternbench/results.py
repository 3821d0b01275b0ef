"""The run folder: what a run leaves on disk, written so that a crash never costs a finished sample.

``results/<run-id>/`` holds ``run.json`` (configuration, environment), ``samples.jsonl`` (a line per image, append-only,
flushed per line), ``images/``, and, once finished, ``tokens.safetensors`` and ``summary.json``.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import math
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .errors import UserError


class Sample(BaseModel):
    """One line of ``samples.jsonl``: one image by one method. Times in seconds, memory in MB.

    ``accept_lengths`` has one entry per step (tokens committed, bonus token included) and sums to ``tokens``; the first
    step is the prefill, which gives one token without a draft.  ``tree_depths`` and ``tree_nodes`` have one entry per
    step too, or are empty.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    key: str
    prompt_id: str
    prompt: str
    category: str | None = None
    challenge: str | None = None
    label: str
    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    seed: int
    tokens: int = Field(ge=0)
    steps: int = Field(ge=0)
    accept_lengths: list[int]
    tree_depths: list[int] = Field(default_factory=list)
    tree_nodes: list[int] | None = None
    first_token_acceptance: float | None = None
    decode_s: float = Field(ge=0)
    encode_s: float = Field(default=0.0, ge=0)
    render_s: float = Field(default=0.0, ge=0)
    phases: dict[str, float] | None = None
    peak_memory_mb: float | None = None
    timed: bool = True
    fidelity_loss: float | None = None
    drafter: dict[str, float] | None = None
    stats: dict[str, float] | None = None
    # only what _image_name makes: a samples.jsonl from elsewhere must not point outside its own folder
    image: str | None = Field(default=None, pattern=r"^images/[A-Za-z0-9][A-Za-z0-9._-]*$")
    token_ids: list[int] = Field(default_factory=list)
    metrics: dict[str, float | None] = Field(default_factory=dict)

    @field_validator("metrics", mode="before")
    @classmethod
    def _undefined_is_missing(cls, metrics: Any) -> Any:
        return _finite(metrics)

    @model_validator(mode="after")
    def _lengths_agree(self) -> Sample:
        if len(self.accept_lengths) != self.steps or sum(self.accept_lengths) != self.tokens:
            raise ValueError("accept_lengths must have one entry per step and sum to tokens")
        if self.tree_depths and len(self.tree_depths) != self.steps:
            raise ValueError("tree_depths must have one entry per step")
        return self


def sample_key(prompt_id: str, label: str, seed: int) -> str:
    """The unique key of a sample."""
    return f"{prompt_id}|{label}|{seed}"


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the configuration as JSON with sorted keys: equal for equal settings, whatever their order."""
    return hashlib.sha256(json.dumps(_plain(config), sort_keys=True).encode()).hexdigest()


class RunFolder:
    """A run folder opened for writing by this process alone; use ``open``, and ``close`` or ``with``."""

    def __init__(self, path: Path, run: dict[str, Any], lock: IO[bytes]) -> None:
        self.path, self.run, self._lock = path, run, lock
        kept, self._samples = _parse(path / "samples.jsonl")
        self._by_key = {sample.key: sample for sample in self._samples}
        with _writing(path):
            self._fd = os.open(path / "samples.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._fd, kept)  # a torn last line goes: its sample is simply made again

    @classmethod
    def open(
        cls,
        root: Path,
        run_id: str,
        config: Mapping[str, Any],
        *,
        fresh: bool = False,
        environment: Mapping[str, Any] | None = None,
        prompts: Mapping[str, Any] | None = None,
        target: Mapping[str, Any] | None = None,
        methods: Sequence[Mapping[str, Any]] = (),
    ) -> RunFolder:
        """Create the run ``root/run_id``, or resume it when it exists with the same configuration and prompts.

        ``fresh`` never deletes: beside an existing run it starts ``<run_id>-2``, ``-3``, … ``methods`` lists
        {"label", "method", "options", "lossless"} in the order that reports should have. Raises UserError when the
        run exists with other settings, is in use by another process, is damaged, or cannot be written.
        """
        if not re.fullmatch(r"[^\s/\\.][^/\\\0\n]{0,199}", run_id):
            raise UserError(f"{run_id!r} is no run name: give a name without slashes that starts with no dot or space.")
        path = _free(Path(root), run_id) if fresh else Path(root) / run_id
        with _writing(path):
            (path / "images").mkdir(parents=True, exist_ok=True)
        lock = _acquire(path)
        try:
            new = {
                "run_id": path.name,
                "created": _now(),
                "config": _plain(config),
                "config_hash": config_hash(config),
                "environment": _plain(environment or {}),
                "prompts": _plain(prompts or {}),
                "target": _plain(target or {}),
                "methods": [_plain(method) for method in methods],
            }
            run = _resume(path, new) if (path / "run.json").exists() else _start(path, new)
            return cls(path, run, lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Open a run folder as it is, for scoring its images again. Raises UserError when it is none or in use."""
        run = read_run(path)
        lock = _acquire(Path(path))
        try:
            return cls(Path(path), run, lock)
        except BaseException:
            lock.close()
            raise

    def done(self) -> set[str]:
        """Keys of the finished samples."""
        return set(self._by_key)

    def samples(self) -> list[Sample]:
        """The finished samples in the order in which they were written."""
        return list(self._samples)

    def append(self, sample: Sample, image: Image.Image | None = None) -> Sample:
        """Store one finished sample, the image first, and return it with ``image`` filled in.

        Raises ValueError for a key already stored, UserError when the disk is full or not writable.
        """
        if sample.key in self._by_key:
            raise ValueError(f"sample {sample.key!r} is stored already")
        if image is not None:
            sample = sample.model_copy(update={"image": f"images/{_image_name(sample)}"})
            with _replacing(self.path / str(sample.image)) as file:
                image.save(file, format="PNG")
        line = sample.model_dump_json().encode() + b"\n"
        with _writing(self.path / "samples.jsonl"):
            _append_whole(self._fd, line)
        self._samples.append(sample)
        self._by_key[sample.key] = sample
        return sample

    def replace(self, samples: Sequence[Sample]) -> None:
        """Rewrite ``samples.jsonl`` as a whole, atomically: for metrics computed after the run (``score``)."""
        with _replacing(self.path / "samples.jsonl") as file:
            file.writelines(sample.model_dump_json().encode() + b"\n" for sample in samples)
        os.close(self._fd)
        self._fd = os.open(self.path / "samples.jsonl", os.O_RDWR | os.O_APPEND)
        self._samples = list(samples)
        self._by_key = {sample.key: sample for sample in samples}

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write ``tokens.safetensors`` (key → int32 [tokens]) and ``summary.json``, both atomically."""
        import torch
        from safetensors.torch import save

        tokens = {sample.key: torch.tensor(sample.token_ids, dtype=torch.int32) for sample in self._samples}
        with _replacing(self.path / "tokens.safetensors") as file:
            file.write(save(tokens))
        _write_json(self.path / "summary.json", summary)

    def close(self) -> None:
        """Give the folder back to other processes; calling it twice is harmless."""
        if not self._lock.closed:
            os.close(self._fd)
            self._lock.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_run(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder. Raises UserError when there is none or it is damaged."""
    try:
        run = json.loads((Path(path) / "run.json").read_bytes())
        if not isinstance(run, dict):
            raise ValueError("no JSON object")
    except OSError as error:
        raise UserError(
            f"{path} is no run folder (run.json: {error.strerror}): give a folder that `run` made."
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}/run.json is damaged ({error}): restore it or start again with --fresh.") from None
    return run


def read_samples(path: Path) -> list[Sample]:
    """Samples of a run folder, read only: a torn last line is left out. Raises UserError for a damaged line."""
    return _parse(Path(path) / "samples.jsonl")[1]


def runs(root: Path) -> list[Path]:
    """Run folders under ``root``, the one last started or resumed first."""
    found = []
    for path in Path(root).glob("*/run.json"):
        with suppress(UserError):
            run = read_run(path.parent)
            stamps = [str(run.get("created", ""))] + [str(entry.get("at", "")) for entry in run.get("resumed", [])]
            found.append((max(stamps), path.parent.name, path.parent))
    return [path for *_, path in sorted(found, reverse=True)]


def latest(root: Path) -> Path:
    """The run last started or resumed under ``root``. Raises UserError when there is none."""
    found = runs(root)
    if not found:
        raise UserError(f"there is no run in {root}: make one with `lanternbench run --method eagle-2`.")
    return found[0]


def find(root: Path, ids: Sequence[str] = ()) -> list[Path]:
    """Folders of the named runs (ids under ``root`` or paths); the latest when none is named. Raises UserError."""
    if not ids:
        return [latest(root)]
    found = []
    for name in ids:
        places = [place for place in (Path(root) / name, Path(name)) if (place / "run.json").is_file()]
        if not places:
            known = [path.name for path in runs(root)]
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
            hint = f"did you mean {' or '.join(near)}?" if near else "make one with `lanternbench run`."
            raise UserError(f"there is no run {name!r} in {root}: {hint}")
        found.append(places[0])
    return found


def _start(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    """Write ``run.json`` into a new folder, but never among somebody's other files."""
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in (".lock", "images", "run.json.part"))
    if foreign:
        raise UserError(f"{path} exists but is no run folder (it has {foreign[0]}): choose another --out or run name.")
    _write_json(path / "run.json", new)
    return new


def _resume(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    """``run.json`` of an existing run, with this resumption noted. Raises UserError when the settings differ."""
    old = read_run(path)
    changes = differences(old.get("config", {}), new["config"])
    for part in ("source", "hash"):
        before, now = old.get("prompts", {}).get(part), new["prompts"].get(part)
        if not changes and now is not None and before != now:
            changes.append(f"prompts.{part}: {before} -> {now}")
    if changes:
        shown = "; ".join(changes[:5]) + (f"; and {len(changes) - 5} more" if len(changes) > 5 else "")
        raise UserError(
            f"run {path.name!r} exists with other settings ({shown}): "
            "give --fresh to start a new run beside it, or repeat the old settings to resume it."
        )
    entry: dict[str, Any] = {"at": new["created"]}
    if new["environment"] and new["environment"] != old.get("environment"):
        entry["environment"] = new["environment"]  # latencies from two machines: the summary says so
    run = {**old, "resumed": [*old.get("resumed", []), entry]}
    _write_json(path / "run.json", run)
    return run


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """What differs between two JSON values, as "dotted.key: old -> new" lines."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in [*old, *(key for key in new if key not in old)]:
            lines += differences(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
        return lines
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return []
    return [f"{prefix}: {json.dumps(old, ensure_ascii=False)} -> {json.dumps(new, ensure_ascii=False)}"]


def _parse(path: Path) -> tuple[int, list[Sample]]:
    """(bytes of whole lines, samples) of a samples.jsonl; a torn last line is left out of both."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, []
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): make it readable.") from None
    kept, samples, seen = 0, [], set()
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        last = number == len(lines)
        try:
            if last and not line.endswith(b"\n"):
                break
            fields = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            if last:
                break
            raise _damaged(path, number, error) from None
        if fields is not None:
            try:
                sample = Sample.model_validate(fields)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise _damaged(path, number, f"{where}: {first['msg']}" if where else first["msg"]) from None
            if sample.key in seen:
                raise _damaged(path, number, f"sample {sample.key!r} is there twice")
            seen.add(sample.key)
            samples.append(sample)
        kept += len(line)
    return kept, samples


def _damaged(path: Path, number: int, why: object) -> UserError:
    return UserError(f"{path} line {number} is damaged ({why}): delete that line to have the sample made again.")


def _image_name(sample: Sample) -> str:
    """A readable file name that is safe and unique for any prompt id and label."""
    parts = [_slug(sample.prompt_id), _slug(sample.label), str(sample.seed)]
    digest = hashlib.sha256(sample.key.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return "-".join([part for part in parts if part] + [digest]).lstrip("-") + ".png"


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]+", "-", plain)[:40].strip("-")


def _free(root: Path, run_id: str) -> Path:
    """The first of ``run_id``, ``run_id-2``, … that does not exist yet."""
    path, number = root / run_id, 1
    while path.exists():
        number += 1
        path = root / f"{run_id}-{number}"
    return path


def _acquire(path: Path) -> IO[bytes]:
    """The folder's lock: held while the file is open, so a killed process leaves none behind."""
    with _writing(path):
        lock = open(path / ".lock", "ab")  # noqa: SIM115 (held open on purpose)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UserError(f"{path} is in use by another process: wait for it to end, or give --fresh.") from None
    except OSError as error:
        lock.close()
        raise UserError(f"cannot lock {path} ({error.strerror}): choose a local folder with --out.") from None
    return lock


def _append_whole(fd: int, line: bytes) -> None:
    """Append in one write; a part of a line (disk full) is taken back."""
    size = os.fstat(fd).st_size
    try:
        if os.write(fd, line) != len(line):
            raise OSError(28, "No space left on device")
        os.fsync(fd)
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, size)
        raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns a full disk or a missing permission into one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"cannot write {path} ({reason}): free some space or choose another folder with --out."
        ) from None


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when whole and on disk."""
    part = path.with_name(path.name + ".part")
    with _writing(path):
        try:
            with open(part, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with _replacing(path) as file:
        file.write(
            json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
        )


def _plain(value: Any) -> Any:
    """The value as JSON gives it back: tuples as lists, paths and numpy scalars plain, NaN and infinity as null."""

    def plain(item: Any) -> Any:
        return item.item() if hasattr(item, "item") else str(item)

    return _finite(json.loads(json.dumps(_finite(value), default=plain)))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
