"""What a piece found, on disk after every row, so that a piece that is cut off leaves what it has."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lanternbench.utils.files import OUT, replacing
from lanternbench.utils.json_values import plain

RUNNING, DONE, FAILED = "running", "done", "failed"


@dataclass
class Result:
    """``tables``: rows by title, whose cells are numbers or words; ``bars``: what was promised,
    and was it kept?
    """

    piece: str
    device: str
    small: bool = False
    status: str = RUNNING
    said: str = ""  # why it failed
    seconds: float = 0.0
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    facts: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    bars: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None

    def row(self, table: str, /, **cells: Any) -> None:
        self.tables.setdefault(table, []).append(cells)
        self.save()

    def bar(self, bar: str, value: str, passed: bool | None) -> None:
        """``passed``: None where this machine is not the one that the bar is set for."""
        self.bars.append({"bar": bar, "value": value, "passed": passed})
        self.save()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.save()

    def save(self) -> None:
        """The old file stays whole until the new one is."""
        if self.folder is not None:
            kept = {k: v for k, v in asdict(self).items() if k != "folder"}
            with replacing(self.folder / f"{self.piece}.json", OUT) as file:
                file.write((json.dumps(plain(kept), indent=1, ensure_ascii=False) + "\n").encode())


def read(folder: Path, piece: str) -> Result | None:
    """What a piece left; None where it left nothing that can be read."""
    try:
        found = Result(**json.loads((folder / f"{piece}.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    found.folder = folder
    return found
