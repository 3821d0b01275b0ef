"""Run folders as they lie on disk: which there are, and what is in them.

The models of their JSON files are here too: the JSON Schemas in ``docs/schema`` are generated from them.
"""

import difflib
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lanternbench.errors import UserError
from lanternbench.measure.run_notes import asked_for
from lanternbench.measure.samples import Sample
from lanternbench.measure.summary import Summary, read_summary
from lanternbench.utils.files import open_file
from lanternbench.utils.json_values import SCHEMA_VERSION, read_object

_HASH = r"-[0-9a-f]{8}(-\d+)?"  # what a run's folder has after its name


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
    """``run.json``: what was run, on what, and where; the lines of ``samples.jsonl`` are of its version."""

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
    """``run.json`` of a run folder. Raises UserError when there is none, it is damaged, or of a later version."""
    try:
        run = read_object(Path(path) / "run.json")
        RunFile.model_validate(run)
    except OSError as error:
        raise UserError(f"{path} is no run folder ({error.strerror}): give a folder that `run` made.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}/run.json is damaged ({reason(error)}): restore it or give --fresh.") from None
    return run


def reason(error: Exception) -> str:
    """What is wrong first, and where."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


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
    """(where its line ends in bytes, sample) of a samples.jsonl.  Raises UserError for a damaged or repeated line."""
    keys: set[str] = set()
    for number, end, sample, why in scan(path):
        if sample and sample.key in keys:
            why = f"sample {sample.key!r} is there twice"
        if why or sample is None:
            fix = "delete that line to have the sample made again."
            raise UserError(f"{path} line {number} is damaged ({why}): {fix}")
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
    try:
        with open_file(Path(path) / "samples.jsonl") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError:
        return None


def runs(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Run folders under ``root`` with their run.json, the one last started or resumed first."""
    readable = []
    for path in Path(root).glob("*/run.json"):
        with suppress(UserError):
            readable.append((path.parent, read_run(path.parent)))
    return sorted(readable, key=lambda item: (_last_start(item[1]), item[0].name), reverse=True)


def _last_start(run: dict[str, Any]) -> str:
    return max([str(run.get("created", "")), *(str(entry.get("at", "")) for entry in run.get("resumed", []))])


def no_run(root: Path) -> UserError:
    return UserError(f"there is no run in {root}: make one with `lanternbench run --method eagle-2`.")


def latest(root: Path) -> Path:
    """The run last started or resumed under ``root``. Raises UserError when there is none."""
    readable = [path for path, _ in runs(root)]
    broken = [path.parent for path in Path(root).glob("*/run.json") if path.parent not in readable]
    newest = max([*readable[:1], *broken], key=lambda path: (path / "run.json").stat().st_mtime, default=None)
    if newest is None:
        raise no_run(root)
    if newest in broken:
        read_run(newest)  # raises UserError for a damaged run
    return newest


def find(root: Path, ids: Sequence[str] = ()) -> list[Path]:
    """Folders of runs: ids under ``root``, paths, names (the latest); by default the latest.  Raises UserError."""
    return [_named(Path(root), name) for name in ids] or [latest(root)]


def _named(root: Path, name: str) -> Path:
    places = [place for place in (root / name, Path(name)) if (place / "run.json").is_file()]
    if places:
        return places[0]
    known = [path for path, _ in runs(root)]
    if matches := [path for path in known if re.fullmatch(rf"{re.escape(name)}{_HASH}", path.name)]:
        return matches[0]
    names = [path.name for path in known]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "make one with `lanternbench run`."
    raise UserError(f"there is no run {name!r} in {root}: {hint}")


def listing(root: Path) -> list[dict[str, Any]]:
    """A row per run, the last started first; ``disturbed``: None without a summary.  Raises UserError without runs."""
    rows = [_row(folder, run) for folder, run in runs(root)]
    if not rows:
        raise no_run(root)
    return rows


def _row(folder: Path, run: dict[str, Any]) -> dict[str, Any]:
    prompts, target, (labels, each) = run.get("prompts", {}), run.get("target", {}), asked_for(run)
    samples, of = 0, each * len(labels)
    disturbed: bool | None = None
    with suppress(OSError), open_file(folder / "samples.jsonl") as file:
        samples = sum(line.endswith(b"\n") for line in file)
    with suppress(UserError):
        notes = read_summary(folder).notes
        disturbed = any(note.metric == "latency_s" and note.kind in ("unfit", "warning") for note in notes)
    row: dict[str, Any] = {"name": folder.name, "date": _last_start(run)[:16].replace("T", " ")}
    source = f"{prompts.get('dataset') or prompts.get('source') or '–'} {prompts.get('count') or ''}".strip()
    row |= {"target": target.get("name") or "–", "prompts": source, "methods": len(labels), "samples": samples}
    return row | {"of": of, "finished": disturbed is not None and samples >= of, "disturbed": disturbed}
