"""gpu.md from what the pieces left: every bar with its figure, or "not measured", then the tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.gpu import bars
from benchmarks.gpu.pieces import PIECES
from benchmarks.gpu.result import DONE, Cell, Result, Row, read

NOT_MEASURED = "not measured"
# next to gpu.md: {part of a GPU's name: {piece: {row's first cell: {column: value}}}}
EXPECTED = "gpu-expected.json"
VERDICT = {True: "pass", False: "**miss**", None: "no bar on this machine"}
Expected = Mapping[str, Mapping[str, Row]]  # of one GPU


def write(folder: Path) -> Path:
    """Write the report next to ``folder``, under its name; return its path."""
    path = folder.with_suffix(".md")
    found = {name: read(folder, name) for name in PIECES}
    text = lines(found, expectations(path.with_name(EXPECTED)))
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def expectations(path: Path) -> dict[str, Expected]:
    """Return what is expected by part of a GPU's name."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def broken(result: Result) -> list[str]:
    """Return the promises of equality that a piece found broken."""
    return [
        f"{bar['bar']}: {bar['value']}"
        for bar in result.bars
        if bar["passed"] is False and bar["bar"] in bars.EQUALITY
    ]


def lines(found: Mapping[str, Result | None], expected: Mapping[str, Expected]) -> list[str]:
    """Return the report; ``expected``: see ``EXPECTED``."""
    measured = [r for r in found.values() if r is not None and (r.tables or r.status == DONE)]
    text = ["# On a GPU", ""]
    if any(result.small for result in measured):
        text += ["**A rehearsal in small shapes: no time below means anything.**", ""]
    how = "([how](../../docs/gpu.md))"
    if not measured:
        text += [
            f"No GPU was available: nothing below is measured. `make gpu` measures it {how}.",
            "",
        ]
    machines = dict.fromkeys(_machine(result) for result in measured)
    text += [f"Measured by `make gpu` {how} on {machine}." for machine in machines]
    text += ["", *promises(found)]
    for name, piece in PIECES.items():
        result = found[name]
        own = {} if result is None else _of_device(expected, result.device).get(name, {})
        text += ["", f"## {piece.title}", "", *section(result, own)]
    return text


def _machine(result: Result) -> str:
    commit, _, changes = str(result.facts.get("commit") or "unknown").partition("+")
    suffix = " with changes" if changes else ""
    torch = result.facts.get("torch")
    return f"{result.device}, torch {torch}, commit {commit[:12]}{suffix}"


def _of_device(expected: Mapping[str, Expected], device: str) -> Expected:
    for gpu, pieces in expected.items():
        if gpu.lower() in device.lower():
            return pieces
    return {}


def promises(found: Mapping[str, Result | None]) -> list[str]:
    text = ["| what must hold | measured | |", "|---|---|---|"]
    for name, piece in PIECES.items():
        result = found[name]
        judged = {bar["bar"]: bar for bar in result.bars} if result else {}
        for title in piece.bars:
            if title in judged:
                bar = judged[title]
                text.append(f"| {title} | {bar['value']} | {VERDICT[bar['passed']]} |")
            else:
                text.append(f"| {title} | {NOT_MEASURED} |  |")
    return text


def section(result: Result | None, expected: Mapping[str, Row]) -> list[str]:
    if result is None or not (result.tables or result.said):
        return [NOT_MEASURED.capitalize() + "."]
    text = []
    if result.status != DONE:
        text += [f"Not measured whole: {result.said or 'it was cut off'}.", ""]
    for title, rows in result.tables.items():
        table = markdown([_with_expected(row, expected) for row in rows])
        text += [f"{title[0].upper()}{title[1:]}:", "", *table, ""]
    text += [f"{note}\n" for note in result.notes]
    return [*text, f"{result.date}, {result.seconds:.0f} s."]


def _with_expected(row: Row, expected: Mapping[str, Row]) -> Row:
    """Return a row with what was expected of it: of ``{"cool-sd": {"step": 1.2}}`` a column
    "step, expected".
    """
    first = next(iter(row.values()))
    columns = expected.get(str(first), {})
    return row | {f"{column}, expected": value for column, value in columns.items()}


def markdown(rows: Sequence[Row]) -> list[str]:
    head = list(dict.fromkeys(key for row in rows for key in row))
    text = ["| " + " | ".join(key.replace("_", " ") for key in head) + " |"]
    rules = []
    for key in head:
        numbers = all(isinstance(row.get(key, 0), int | float) for row in rows)
        rules.append("---:" if numbers else "---")
    text.append("|" + "|".join(rules) + "|")
    for row in rows:
        cells = [_cell(row.get(key, "")) for key in head]
        text.append("| " + " | ".join(cells) + " |")
    return text


def _cell(value: Cell) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
