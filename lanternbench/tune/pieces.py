"""The intermediate results of ``tune``: each is stored in a file or line of its folder as soon as it is computed.

An interrupted search resumes from them.  A file is valid if its SHA-256 is the one stored in ``DIGESTS``.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lanternbench.errors import UserError
from lanternbench.tune.recorded_drafts import Record
from lanternbench.utils.files import APPEND, FRESH, OUT, acquire, open_file, replacing, writing
from lanternbench.utils.json_values import differences, plain

SETTINGS, DIGESTS, LINES = "tune.json", "digests.json", "measured.jsonl"


class Measured(BaseModel):
    """One line of ``measured.jsonl``: one image with one candidate's sizes.  Times in seconds."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str
    prompt: str
    tokens: int = Field(ge=1, le=2**40)
    steps: int = Field(ge=1, le=2**40)
    decode_s: float = Field(gt=0)
    robust_s: float = Field(gt=0)
    fidelity_loss: float | None = None


class Pieces:
    """Results in files of a folder, locked for this process.

    ``settings``: all that they depend on; its "weights" are digests of the target's files.  Raises UserError for a
    folder that is in use, or that holds pieces of other settings or weights.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        with writing(folder, OUT):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        with acquire(folder, FRESH) as locks:
            _refuse_others(folder, self._stored(SETTINGS), plain(settings))
            self._write(SETTINGS, _json(settings))
            self.digests = self._stored(DIGESTS)
            self.close = locks.pop_all().close

    def json(self, name: str, make: Callable[[], Any]) -> Any:
        return json.loads(self._piece(name, lambda: _json(make())))

    def arrays(self, name: str, make: Callable[[], Record]) -> Record:
        def npz() -> bytes:
            file = io.BytesIO()
            np.savez_compressed(file, **make())  # type: ignore[arg-type]
            return file.getvalue()

        with np.load(io.BytesIO(self._piece(f"{name}.npz", npz))) as arrays:
            return dict(arrays)

    def measured(self, expected: Collection[tuple[str, str]]) -> list[Measured]:
        """The complete lines, of ``expected`` (name, prompt); an incomplete last line is dropped.  Raises UserError."""
        content = self._read(LINES) or b""
        complete = content[: content.rfind(b"\n") + 1]
        if complete != content:
            self._write(LINES, complete)
        lines, missing = list[Measured](), set(expected)
        for number, line in enumerate(complete.splitlines(), 1):
            with suppress(ValidationError, KeyError):
                measured = Measured.model_validate_json(line)
                missing.remove((measured.name, measured.prompt))
                lines.append(measured)
                continue
            path = self.folder / LINES
            raise UserError(f"{path} line {number} is damaged: delete it, and the same command measures it again")
        return lines

    def append(self, line: Measured) -> None:
        path = self.folder / LINES
        with writing(path, OUT), open(os.open(path, os.O_CREAT | APPEND, 0o644), "ab") as file:
            file.write(line.model_dump_json().encode() + b"\n")

    def _piece(self, name: str, make: Callable[[], bytes]) -> bytes:
        """The content of a file, computed where it is missing.  Raises UserError for a changed file."""
        content = self._read(name)
        if content is None or name not in self.digests:
            content = make()
            self._write(name, content)
            self.digests[name] = hashlib.sha256(content).hexdigest()
            self._write(DIGESTS, _json(self.digests))
        if hashlib.sha256(content).hexdigest() != self.digests[name]:
            raise self._damaged(name)
        return content

    def _stored(self, name: str) -> dict[str, Any]:
        """A JSON object that this class wrote, {} where the file is missing.  Raises UserError."""
        with suppress(ValueError, RecursionError):
            if isinstance(value := json.loads(self._read(name) or b"{}"), dict):
                return value
        raise self._damaged(name)

    def _read(self, name: str) -> bytes | None:
        try:
            with open_file(self.folder / name) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError:
            raise self._damaged(name) from None

    def _write(self, name: str, content: bytes) -> None:
        with replacing(self.folder / name, OUT) as file:
            file.write(content)

    def _damaged(self, name: str) -> UserError:
        return UserError(f"{self.folder / name} is damaged: delete it, and the same command makes it again")


def _json(value: Any) -> bytes:
    return json.dumps(plain(value), ensure_ascii=False, indent=1).encode("utf-8", "replace")


def _refuse_others(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises UserError where ``folder`` has pieces of another search than ``new``."""
    if old and (weights := differences(old.pop("weights", {}), new["weights"])):
        raise UserError(
            f"{folder} was begun with other weights ({'; '.join(weights[:5])}): put the old files back, or {FRESH}"
        )
    settings = {name: value for name, value in new.items() if name != "weights"}
    if old and (changes := differences(old, settings)):
        text = "; ".join(line[:200] for line in changes[:5])
        raise UserError(f"{folder} has pieces of a search with other settings ({text}): {FRESH}")
