"""Rows of summaries as tests write them: a figure's parts next to each other, such as ``speedup``,
``speedup_lo``, ``speedup_hi``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lanternbench import __version__
from lanternbench.experiment.run_folder import samples_digest
from lanternbench.measure.figures import acceptance
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row, seal_of
from lanternbench.notes import Note
from lanternbench.report.columns import Column, columns
from lanternbench.report.tables import figure_table
from lanternbench.utils.json_values import plain, versioned


def whole(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The row as summary.json has it."""
    ends = Estimate._fields[1:]
    facts = {name: flat[name] for name in Row.model_fields if name in flat}
    parts = {f"{name}_{end}" for name in flat for end in ends}
    figures = {}
    for name in flat:
        if name in facts or name in parts:
            continue
        figures[name] = {"value": flat[name]} | {end: flat.get(f"{name}_{end}") for end in ends}
    if "acceptance" not in facts:
        facts["acceptance"] = acceptance(flat.get("accept_histogram", []))
    return {"n": 0} | facts | {"figures": figures}


def row_of(flat: Mapping[str, Any]) -> Row:
    return Row.model_validate(whole(flat))


def write_summary(
    folder: Path, rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()
) -> None:
    """Write a summary.json of the folder's samples, as if this version had made it of them."""
    content = {
        "rows": [whole(row) for row in rows],
        "notes": [Note("info", None, text) for text in notes],
        "sets": sorted({name[:-2] for row in rows for name in row if name.endswith("_n")}),
    }
    seal(folder, versioned(content))


def seal(folder: Path, content: Mapping[str, Any]) -> None:
    """Write this summary of the folder's samples, sealed as this version does."""
    content = plain(content) | {"lanternbench": __version__, "samples": samples_digest(folder)}
    content["seal"] = seal_of(content)
    (folder / "summary.json").write_text(json.dumps(content))


def markdown_table(rows: Sequence[Row], chosen: Sequence[Column] | None = None) -> str:
    """The rows as Markdown, by default with the columns that a report chooses."""
    return figure_table(rows, columns(rows, "md") if chosen is None else chosen).markdown()
