"""Run folders as they lie on disk: which there are, and what is in them."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from lanternbench.errors import UserError
from lanternbench.experiment.schema import RunFile
from lanternbench.measure.samples import Sample
from lanternbench.utils.files import open_file
from lanternbench.utils.json_values import check_version

_HASH = r"-[0-9a-f]{8}(-\d+)?"  # what a run's folder has after its name


def read_run(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder. Raises UserError when there is none, it is damaged, or of a later version."""
    try:
        with open_file(Path(path) / "run.json") as file:
            run = json.loads(file.read())
        if not isinstance(run, dict):
            raise ValueError("no JSON object")
        check_version(run, f"{path}/run.json")
        RunFile.model_validate(run)
    except OSError as error:
        raise UserError(
            f"{path} is no run folder (run.json: {error.strerror}): give a folder that `run` made."
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        why = reason(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{path}/run.json is damaged ({why}): restore it or start again with --fresh.") from None
    return run


class Line(NamedTuple):
    """One line of samples.jsonl: its number, where it ends in bytes, and its sample, or why there is none."""

    number: int
    end: int
    sample: Sample | None
    why: str = ""


def scan(path: Path) -> Iterator[Line]:
    """Every line of a samples.jsonl, one at a time; a torn last line, which a crash leaves behind, is left out."""
    try:
        with open_file(path) as lines:
            end, doubtful = 0, None  # a line that cannot be read is damaged unless it is the last
            for number, line in enumerate(lines, 1):
                if doubtful:
                    yield doubtful
                end, doubtful = end + len(line), None
                if not line.strip():
                    continue
                try:
                    found = Line(number, end, Sample.model_validate_json(line))
                except ValidationError as error:
                    found = Line(number, end, None, reason(error))
                    if error.errors()[0]["type"] == "json_invalid":
                        doubtful = found
                if not line.endswith(b"\n"):
                    return
                if not doubtful:
                    yield found
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): make it readable.") from None


def reason(error: ValidationError) -> str:
    """What is wrong first, and where."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def whole_lines(path: Path) -> Iterator[tuple[int, Sample]]:
    """(where its line ends in bytes, sample) of a samples.jsonl.  Raises UserError for a damaged or repeated line."""
    seen: set[str] = set()
    for number, end, sample, why in scan(path):
        if sample and sample.key in seen:
            why = f"sample {sample.key!r} is there twice"
        if why or sample is None:
            fix = "delete that line to have the sample made again."
            raise UserError(f"{path} line {number} is damaged ({why}): {fix}")
        seen.add(sample.key)
        yield end, sample


def iter_samples(path: Path) -> Iterator[Sample]:
    """Samples of a run folder, one at a time.  Raises UserError for a damaged line."""
    return (sample for _, sample in whole_lines(Path(path) / "samples.jsonl"))


def samples_digest(path: Path) -> str | None:
    """The SHA-256 of a run folder's samples.jsonl; None where there is none."""
    try:
        with open_file(Path(path) / "samples.jsonl") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError:
        return None


class _Tokens(BaseModel):
    key: str
    token_ids: list[int] = []


def iter_tokens(path: Path) -> Iterator[tuple[str, list[int]]]:
    """(key, tokens) of each sample of a run folder whose lines are known to be whole."""
    with open_file(Path(path) / "samples.jsonl") as lines:
        for line in lines:
            if line.strip():
                found = _Tokens.model_validate_json(line)
                yield found.key, found.token_ids


def read_samples(path: Path) -> list[Sample]:
    """All samples of a run folder, in memory.  Raises UserError for a damaged line."""
    return list(iter_samples(path))


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
    broken = [path.parent for path in Path(root).glob("*/run.json") if path.parent not in found]
    newest = max([*found[:1], *broken], key=lambda path: (path / "run.json").stat().st_mtime, default=None)
    if newest in broken:
        read_run(newest)  # says what is wrong with it
    if not found:
        raise UserError(f"there is no run in {root}: make one with `lanternbench run --method eagle-2`.")
    return found[0]


def find(root: Path, ids: Sequence[str] = ()) -> list[Path]:
    """Folders of the named runs: ids under ``root``, paths, or names, of which the latest counts.  Raises UserError.

    Without any the latest run of all.
    """
    if not ids:
        return [latest(root)]
    found = []
    for name in ids:
        places = [place for place in (Path(root) / name, Path(name)) if (place / "run.json").is_file()]
        places = places or [path for path in runs(root) if re.fullmatch(rf"{re.escape(name)}{_HASH}", path.name)]
        if not places:
            known = [path.name for path in runs(root)]
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
            hint = f"did you mean {' or '.join(near)}?" if near else "make one with `lanternbench run`."
            raise UserError(f"there is no run {name!r} in {root}: {hint}")
        found.append(places[0])
    return found
