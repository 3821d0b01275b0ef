"""What a piece found, on disk after every row, so that a piece that is cut off leaves what it has."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from benchmarks.gpu.bars import GPU_ONLY
from lanternbench.utils.files import OUT, replacing
from lanternbench.utils.json_values import plain

RUNNING = "running"
DONE = "done"
FAILED = "failed"
SAME = "the same"
Cell = float | str | None
Row = dict[str, Cell]


class Bar(TypedDict):
    """``passed``: None if this machine is not the one that the bar is set for."""

    bar: str
    value: str
    passed: bool | None


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass
class Result:
    """``tables``: rows by title, whose cells are numbers or words."""

    piece: str
    device: str
    small: bool = False
    status: str = RUNNING
    said: str = ""  # why it failed
    seconds: float = 0.0
    date: str = field(default_factory=now)
    facts: dict[str, object] = field(default_factory=dict)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # of single presets
    folder: Path | None = None

    def row(self, table: str, /, **cells: Cell) -> None:
        self.tables.setdefault(table, []).append(cells)
        self.save()

    def bar(self, bar: str, value: str, passed: bool | None) -> None:
        """Note what was measured against a promise; see ``Bar``.  A rehearsal judges no time."""
        if self.small and bar in GPU_ONLY:
            passed = None
        self.bars.append({"bar": bar, "value": value, "passed": passed})
        self.save()

    def judge(self, bar: str, found: Mapping[str, str], what: str = "presets") -> None:
        """Judge a promise of equality by what was found of each case: it is kept if there were
        cases and all are ``SAME``.
        """
        equal = [case for case, text in found.items() if text == SAME]
        value = f"{len(equal)} of {len(found)} {what}"
        others = [f"{case}: {text}" for case, text in found.items() if text != SAME]
        if others:
            value += f" ({'; '.join(others[:3])})"
        self.bar(bar, value, bool(found) and not others)

    @contextmanager
    def attempt(self, name: str, found: dict[str, str] | None = None) -> Iterator[None]:
        """Let the piece go on if a preset fails: the reason is kept, in ``found`` too, and the
        traceback goes to the piece's log.
        """
        try:
            yield
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            self.failures.append(f"{name}: {line}")
            if found is not None:
                found[name] = line
            self.save()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.save()

    def end(self, promised: tuple[str, ...], seconds: float) -> None:
        """Close the piece: it is done if no preset failed and every promise was judged."""
        judged = {bar["bar"] for bar in self.bars}
        faults = list(self.failures)
        faults += [f"nothing was judged of: {bar}" for bar in promised if bar not in judged]
        self.status = FAILED if faults else DONE
        self.said = "; ".join(faults)
        self.seconds = seconds
        self.save()

    def save(self) -> None:
        """Write the result; the old file stays whole until the new one is."""
        if self.folder is None:
            return
        kept = {key: value for key, value in asdict(self).items() if key != "folder"}
        text = json.dumps(plain(kept), indent=1, ensure_ascii=False) + "\n"
        with replacing(self.folder / f"{self.piece}.json", OUT) as file:
            file.write(text.encode())


def read(folder: Path, piece: str) -> Result | None:
    """Return what a piece left; None if it left nothing that can be read."""
    try:
        found = Result(**json.loads((folder / f"{piece}.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    found.folder = folder
    return found
