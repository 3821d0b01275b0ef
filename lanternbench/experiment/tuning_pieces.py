"""The intermediate results of ``tune``: each is a file, or a line, of its folder as soon as it is computed.

So an interrupted search goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from lanternbench.analysis.tree_search import Record
from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import acquire
from lanternbench.utils.files import OUT, replacing, writing
from lanternbench.utils.json_values import plain


class Measured(BaseModel):
    """One line of ``measured.jsonl``: one image with one candidate's sizes.  Times in seconds."""

    name: str
    prompt: str
    tokens: int
    steps: int
    decode_s: float
    robust_s: float
    fidelity_loss: float | None = None


class Pieces:
    """Results in files of a folder that this process alone writes."""

    def __init__(self, folder: Path, config: BaseModel):
        with writing(folder, OUT):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.lock = folder, acquire(folder)
        self.json("tune.json", lambda: config.model_dump(mode="json"))

    def close(self) -> None:
        self.lock.close()

    def json(self, name: str, make: Callable[[], Any]) -> Any:
        path = self.folder / name
        if not path.exists():
            with replacing(path, OUT) as file:
                file.write(json.dumps(plain(make()), ensure_ascii=False, indent=1).encode())
        try:
            return json.loads(path.read_bytes())
        except ValueError:
            raise UserError(f"{path} is damaged: delete it, and the same command makes it again") from None

    def arrays(self, name: str, make: Callable[[], Record]) -> Record:
        path = self.folder / f"{name}.npz"
        if not path.exists():
            with replacing(path, OUT) as file:
                np.savez_compressed(file, **make())  # type: ignore[arg-type]
        with np.load(path) as found:
            return dict(found)

    def measured(self) -> list[Measured]:
        """The whole lines; a torn last one is dropped."""
        path = self.folder / "measured.jsonl"
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        if path.exists() and len(whole) + 1 < path.stat().st_size:
            with replacing(path, OUT) as file:
                file.write(whole + b"\n" if whole else b"")
        return [Measured.model_validate_json(line) for line in whole.splitlines() if line.strip()]

    def append(self, found: Measured) -> None:
        path = self.folder / "measured.jsonl"
        with writing(path, OUT), open(path, "a", encoding="utf-8") as file:
            file.write(found.model_dump_json() + "\n")
