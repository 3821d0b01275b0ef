"""Run folders as they lie on disk: which there are, and what is in them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lanternbench.errors import UserError
from lanternbench.experiment.samples import Sample

_KINDS = {"config": dict, "environment": dict, "prompts": dict, "target": dict, "methods": list, "resumed": list}


def read_run(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder. Raises UserError when there is none or it is damaged."""
    try:
        run = json.loads((Path(path) / "run.json").read_bytes())
        if not isinstance(run, dict):
            raise ValueError("no JSON object")
        for name, kind in _KINDS.items():
            if not isinstance(run.get(name, kind()), kind):
                raise ValueError(f"'{name}' is no JSON {'object' if kind is dict else 'list'}")
        if not all(isinstance(entry, dict) for name in ("methods", "resumed") for entry in run.get(name, [])):
            raise ValueError("'methods' and 'resumed' must hold JSON objects")
    except OSError as error:
        raise UserError(
            f"{path} is no run folder (run.json: {error.strerror}): give a folder that `run` made."
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}/run.json is damaged ({error}): restore it or start again with --fresh.") from None
    return run


def read_samples(path: Path) -> list[Sample]:
    """Samples of a run folder, read only: a torn last line is left out. Raises UserError for a damaged line."""
    return whole_lines(Path(path) / "samples.jsonl")[1]


def whole_lines(path: Path) -> tuple[int, list[Sample]]:
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
