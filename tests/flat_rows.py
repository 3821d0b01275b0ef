"""Rows of summaries as tests write them: a figure's parts next to each other, such as ``speedup``,
``speedup_lo``, ``speedup_hi``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lanternbench.measure.figures import acceptance
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row
from lanternbench.notes import Note
from lanternbench.utils.json_values import versioned


def whole(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The row as summary.json has it."""
    ends = Estimate._fields[1:]
    facts = {name: flat[name] for name in Row.model_fields if name in flat}
    parts = {f"{name}_{end}" for name in flat for end in ends}
    figures = {}
    for name in flat.keys() - facts.keys() - parts:
        figures[name] = {"value": flat[name]} | {end: flat.get(f"{name}_{end}") for end in ends}
    if "acceptance" not in facts:
        facts["acceptance"] = acceptance(flat.get("accept_histogram", []))
    return {"n": 0} | facts | {"figures": figures}


def row_of(flat: Mapping[str, Any]) -> Row:
    return Row.model_validate(whole(flat))


def summary_text(rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
    """The content of a summary.json."""
    content = {
        "rows": [whole(row) for row in rows],
        "notes": [Note("info", None, text) for text in notes],
        "sets": sorted({name[:-2] for row in rows for name in row if name.endswith("_n")}),
    }
    return json.dumps(versioned(content))
