"""gpu.md from what the pieces left: every bar with its figure, or "not measured", then the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.pieces import PIECES
from benchmarks.gpu.result import DONE, Result, read

NOT_MEASURED = "not measured"
# beside gpu.md: {part of a GPU's name: {piece: {row's first cell: {column: value}}}}
EXPECTED = "gpu-expected.json"
VERDICT = {True: "pass", False: "**miss**", None: "no bar on this machine"}


def write(folder: Path) -> Path:
    """The report beside ``folder``, under its name; returns its path."""
    path = folder.with_suffix(".md")
    found = {name: read(folder, name) for name in PIECES}
    path.write_text(
        "\n".join(lines(found, expectations(path.with_name(EXPECTED)))) + "\n", encoding="utf-8"
    )
    return path


def expectations(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def lines(found: dict[str, Result | None], expected: dict[str, Any]) -> list[str]:
    """``expected``: see ``EXPECTED``."""
    measured = [r for r in found.values() if r is not None and (r.tables or r.status == DONE)]
    text = ["# On a GPU", ""]
    if any(r.small for r in measured):
        text += ["**A rehearsal in small shapes: no time below means anything.**", ""]
    if not measured:
        text += [
            "No GPU was available: nothing below is measured. `make gpu` measures it ([how](../../docs/gpu.md)).",
            "",
        ]
    machines = dict.fromkeys(
        f"{r.device}, torch {r.facts.get('torch')}, commit {_commit(r)}" for r in measured
    )
    text += [
        f"Measured by `make gpu` ([how](../../docs/gpu.md)) on {place}." for place in machines
    ]
    text += ["", *bars(found)]
    for name, piece in PIECES.items():
        result = found[name]
        here = next(
            (v for gpu, v in expected.items() if result and gpu.lower() in result.device.lower()),
            {},
        )
        text += ["", f"## {piece.title}", "", *section(result, here.get(name, {}))]
    return text


def _commit(result: Result) -> str:
    commit, _, changes = str(result.facts.get("commit") or "unknown").partition("+")
    return commit[:12] + (" with changes" if changes else "")


def bars(found: dict[str, Result | None]) -> list[str]:
    text = ["| what must hold | measured | |", "|---|---|---|"]
    for name, piece in PIECES.items():
        result = found[name]
        shown = {b["bar"]: b for b in result.bars} if result else {}
        for bar in piece.bars:
            kept = shown.get(bar)
            text.append(
                f"| {bar} | {kept['value'] if kept else NOT_MEASURED} | {VERDICT[kept['passed']] if kept else ''} |"
            )
    return text


def section(result: Result | None, expected: dict[str, Any]) -> list[str]:
    if result is None or not (result.tables or result.said):
        return [NOT_MEASURED.capitalize() + "."]
    text = []
    if result.status != DONE:
        text += [f"Not measured whole: {result.said or 'it was cut off'}.", ""]
    for title, rows in result.tables.items():
        text += [f"{title[0].upper()}{title[1:]}:", "", *markdown(_beside(rows, expected)), ""]
    text += [f"{note}\n" for note in result.notes]
    return [*text, f"{result.date}, {result.seconds:.0f} s."]


def _beside(rows: list[dict[str, Any]], expected: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows with what was expected of them: of ``{"cool-sd": {"step": 1.2}}`` a column "step,
    expected".
    """
    return [
        row
        | {
            f"{key}, expected": value
            for key, value in expected.get(str(next(iter(row.values()))), {}).items()
        }
        for row in rows
    ]


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    head = list(dict.fromkeys(key for row in rows for key in row))
    text = ["| " + " | ".join(key.replace("_", " ") for key in head) + " |"]
    numbers = [all(isinstance(row.get(key, 0), int | float) for row in rows) for key in head]
    text.append("|" + "|".join("---:" if number else "---" for number in numbers) + "|")
    return text + [
        "| " + " | ".join(_cell(row.get(key, "")) for key in head) + " |" for row in rows
    ]


def _cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
