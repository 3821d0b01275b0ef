"""The run folder: everything that a run writes, in a way that no crash costs a finished sample.

``results/<run-id>/`` holds ``run.json`` (configuration, environment), ``samples.jsonl`` (a line per image, append-only,
flushed per line), ``images/``, and, once finished, ``tokens.safetensors`` and ``summary.json``; ``devices.jsonl`` where
several devices made the samples.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import save

from lanternbench.errors import UserError
from lanternbench.experiment.run_reader import iter_samples, read_run, samples_digest, whole_lines
from lanternbench.measure.figures import Figures
from lanternbench.measure.samples import Sample, image_name, setting_name, without_momentary
from lanternbench.measure.summary import Summary
from lanternbench.utils.files import APPEND, FRESH, OUT, acquire, replacing, writing
from lanternbench.utils.json_values import config_hash, differences, plain, versioned


class RunFolder(AbstractContextManager["RunFolder"]):
    """A run folder opened by this process alone (``with``); ``figures`` of its samples, ``images`` by label."""

    def __init__(self, path: Path, run: dict[str, Any], lock: ExitStack, environment: Any = None) -> None:
        self.path, self.run = path, run
        moved = without_momentary(environment) != without_momentary(run.get("environment"))
        self._elsewhere = environment if moved else None
        self._setting = setting_name(environment)
        self._keys, self.figures, self.images = set[str](), Figures(), dict[str, list[Path]]()
        self._samples, end = path / "samples.jsonl", 0
        stored = whole_lines(self._samples) if self._samples.exists() else ()
        for end, sample in stored:  # noqa: B007 (the last one counts)
            self._count(sample)
        with writing(self._samples, OUT):
            self._fd = os.open(self._samples, os.O_CREAT | APPEND, 0o644)
            os.ftruncate(self._fd, end)  # an incomplete last line is removed: its sample is decoded again
        self._resources = lock.pop_all()
        self._resources.callback(lambda: os.close(self._fd))

    @classmethod
    def open(
        cls, root: Path, run_id: str, config: Mapping[str, Any], *, fresh: bool = False, **facts: Any
    ) -> RunFolder:
        """Create the run ``root/run_id``, or resume it when it exists with the same configuration and prompts.

        ``fresh`` never deletes: beside an existing run it starts ``<run_id>-2``, ``-3``, … ``facts``: environment,
        prompts and target, and methods as {"label", "key", "method", "options", "lossless"} in the order of reports.
        Raises UserError when the run exists with other settings, is in use by another process, is damaged, or cannot
        be written.
        """
        if not re.fullmatch(r"[^\s/\\.][^/\\\0\n]{0,199}", run_id):
            raise UserError(f"{run_id!r} is no run name: give a name without slashes that starts with no dot or space.")
        path = free(Path(root) / run_id) if fresh else Path(root) / run_id
        with writing(path, OUT):
            (path / "images").mkdir(parents=True, exist_ok=True)
        head: dict[str, Any] = {"run_id": path.name, "created": datetime.now(UTC).isoformat(timespec="microseconds")}
        head |= {"config": config, "config_hash": config_hash(config)}
        new = plain(head | {"environment": {}, "prompts": {}, "target": {}, "methods": []} | facts)
        with acquire(path, FRESH) as lock:
            run = _resume(path, new) if (path / "run.json").exists() else _start(path, new)
            return cls(path, run, lock, new["environment"])

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Open a run folder as it is, for scoring its images again. Raises UserError when it is none or in use."""
        run = read_run(path)
        with acquire(Path(path), FRESH) as lock:
            return cls(Path(path), run, lock)

    def done(self) -> set[str]:
        """Keys of the finished samples."""
        return set(self._keys)

    def samples(self) -> Iterator[Sample]:
        """The finished samples in the order in which they were written, read from disk one at a time."""
        return iter_samples(self.path)

    def append(
        self, sample: Sample, image: Image.Image | None = None, where: Mapping[str, Any] | None = None
    ) -> Sample:
        """Store one finished sample, the image first, and return it with ``image`` filled in.

        ``where``: the device that decoded it, where there are several, for ``devices.jsonl``.
        Raises ValueError for a key already stored, UserError when the disk is full or not writable.
        """
        if sample.key in self._keys:
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
            with writing(devices, OUT), open(os.open(devices, os.O_CREAT | APPEND, 0o644), "ab") as file:
                file.write(json.dumps({"key": sample.key, **where}).encode() + b"\n")
        with writing(self._samples, OUT):
            _append_whole(self._fd, sample.model_dump_json().encode() + b"\n")
        self._count(sample)
        return sample

    def _count(self, sample: Sample) -> None:
        self._keys.add(sample.key)
        self.figures.add(sample)
        self.images.setdefault(sample.label, []).extend([self.path / sample.image] if sample.image else [])

    def record(self, **facts: Any) -> None:
        """Write facts about the run into ``run.json``."""
        if any(self.run.get(name) != fact for name, fact in facts.items()):
            self.run |= facts
            _write_json(self.path / "run.json", self.run)

    def replace(self, samples: Iterable[Sample]) -> None:
        """Rewrite ``samples.jsonl`` as a whole, atomically: for metrics computed after the run (``score``)."""
        figures = Figures()
        with replacing(self._samples, OUT) as file:
            for sample in samples:
                file.write(sample.model_dump_json().encode() + b"\n")
                figures.add(sample)
        self.figures = figures
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
        """Write ``tokens.safetensors`` (key → int32 [tokens]) and ``summary.json``, both atomically."""
        self._check()
        tokens = {sample.key: np.asarray(sample.token_ids, np.int32) for sample in self.samples()}
        with replacing(self.path / "tokens.safetensors", OUT) as file:
            file.write(save(tokens))
        _write_json(self.path / "summary.json", replace(summary, samples=samples_digest(self.path)))

    def close(self) -> None:
        """Give the folder back to other processes; calling it twice is harmless."""
        self._resources.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _start(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    """Write ``run.json`` into a new folder, but never among other files."""
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
        before, after = old.get("prompts", {}).get(part), new["prompts"].get(part)
        if not changes and after is not None and before != after:
            changes.append(f"prompts.{part}: {before} -> {after}")
    what, fix = "exists with other settings", "or repeat the old settings to resume it"
    before, after = (run.get("target", {}).get("weights") or {} for run in (old, new))
    if not changes and before and after:
        changes = differences(before, after)
        what, fix = "was begun with other weights", "or put the old files back"
    if changes:
        first = "; ".join(changes[:5]) + (f"; and {len(changes) - 5} more" if len(changes) > 5 else "")
        raise UserError(f"run {path.name!r} {what} ({first}): give --fresh to start a new run beside it, {fix}.")
    run = {**old, "resumed": [*old.get("resumed", []), {"at": new["created"]}]}
    _write_json(path / "run.json", run)
    return run


def free(path: Path) -> Path:
    """The first of ``path``, ``path-2``, ``path-3``, … that does not exist yet."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{number}") for number in itertools.count(2)))
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
