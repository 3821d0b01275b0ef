"""The papers' numbers beside the measured ones, with every difference of setup named."""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from lanternbench.methods.method import named, options, preset
from lanternbench.report.columns import BASE, MISSING, metric_column
from lanternbench.report.load import ReportRow

# measured key -> column of papers.csv; tiny evaluators have other keys and so are never set beside a paper's number
QUANTITIES = {
    "speedup": "speedup",
    "latency_s": "latency_s",
    "step_compression": "step_compression",
    "accept_len": "accept_len",
    "tree_depth": "tree_depth",
    "fid": "fid",
    "clip": "clip",
    "image-reward": "image_reward",
    "hpsv2": "hpsv2",
    "inception-score": "inception_score",
    "aesthetic": "aesthetic",
}
DATASETS = {"coco2017": "coco2017-val", "coco2014": "coco2014-val", "parti": "partiprompts"}
NONE = "No paper reports any of these methods on this target."
NAMES = {"lam": "lambda", "λ": "lambda", "δ": "delta", "depth0": "depth", "width0": "draft_top_k"}


@cache
def published_rows() -> tuple[dict[str, str], ...]:
    """The rows of papers.csv: figures from the papers' tables, as text; "" where a paper does not say.

    ``note``: how a figure comes from the paper (derived from seconds and steps, second-hand); CLIP scores are cosines.
    """
    text = files("lanternbench.report").joinpath("papers.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def published_beside(rows: list[ReportRow]) -> pd.DataFrame:
    """Measured rows with the papers' rows of the same method, closest setup first.

    Shown for each row: the papers' rows of equal setup; else those of the same target, dataset and temperature; else
    of the same target. Figures of another target say nothing about this one. Columns: `label`, `source`, `table`,
    `paper setup`, "<quantity> measured" and "<quantity> paper" for each quantity that either side has, `differs in`.
    """
    lines = []
    for row in rows:
        compared = [(paper, differences(row, paper)) for paper in published_rows() if same_method(row, paper)]
        compared = [(paper, found) for paper, found in compared if "target" not in found]
        if not compared:
            continue
        closest = min(_tier(found) for _, found in compared)
        kept = [(paper, found) for paper, found in compared if _tier(found) == closest]
        lines += [_line(row, paper, found) for paper, found in sorted(kept, key=lambda item: len(item[1]))]
    if not lines:
        return pd.DataFrame(columns=["label", "source", "table", "paper setup", "differs in"])
    frame = pd.DataFrame(lines)
    setup = ["run", "label", "source", "table", "paper setup"]
    numeric = [str(c) for c in frame.columns if c not in [*setup, "differs in"]]
    # measured and paper stay side by side, so a quantity goes only when both of its columns are empty
    empty = {c.rsplit(" ", 1)[0] for c in numeric} - {c.rsplit(" ", 1)[0] for c in numeric if frame[c].notna().any()}
    shown = [c for c in numeric if c.rsplit(" ", 1)[0] not in empty]
    return frame[[c for c in setup if c in frame] + shown + ["differs in"]]


def same_method(row: ReportRow, paper: dict[str, str]) -> bool:
    """Is it the same preset, with the same acceptance rule where the paper changed it?"""
    name = row.method
    if name != paper["method"]:
        return False
    usual = preset(name).choices.acceptance
    return _options(row).get("acceptance", usual) == _params(paper).get("acceptance", usual)


def differences(row: ReportRow, paper: dict[str, str]) -> dict[str, str]:
    """What of {target, dataset, temperature, params, hardware} differs, each with a phrase for the reader.

    The phrase gives the measured side; the paper's side stands in its row.
    """
    found: dict[str, str] = {}
    target = row.target or ""
    if paper["target"].endswith("-stage-unstated") and target.startswith(paper["target"].removesuffix("-unstated")):
        found["stage"] = "stage of the target (paper does not say)"
    elif target != paper["target"]:
        found["target"] = f"target ({target or 'unknown'})"
    dataset = DATASETS.get(row.dataset or "", row.dataset or "")
    if dataset != paper["dataset"]:
        found["dataset"] = f"dataset ({dataset or 'unknown'})"
    temperature = row.temperature
    if not paper["temperature"]:
        found["temperature"] = "temperature (paper does not say)"
    elif temperature != float(paper["temperature"]):
        here = "unknown" if temperature is None else f"{temperature:g}"
        found["temperature"] = f"temperature ({here})"
    params = _param_differences(_options(row), _params(paper), _defaults(row))
    if params:
        found["params"] = f"parameters ({', '.join(params)})"
    if row.simulated:
        found["acceptance"] = "acceptance (simulated)"
    if not paper["hardware"]:
        found["hardware"] = "hardware (paper does not say)"
    elif not _same_hardware(row.hardware, paper["hardware"]):
        found["hardware"] = f"hardware ({row.hardware})"
    return found


def title(column: str) -> str:
    """The heading of a column of `published_beside`, as readers know the quantity."""
    key, _, side = column.rpartition(" ")
    if side not in ("measured", "paper") or key not in QUANTITIES:
        return {"label": "method"}.get(column, column)
    names = {c.key: c.title for c in BASE}
    return f"{names.get(key) or metric_column(key).title}, {side}"


def cell(column: str, value: Any) -> str:
    """A cell of `published_beside` as text; a missing value prints as "–"."""
    if value is None or (isinstance(value, float) and pd.isna(value)) or value == "":
        return MISSING
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tier(found: dict[str, str]) -> int:
    if "dataset" in found or "temperature" in found:
        return 2
    return 1 if "params" in found else 0


def _line(row: ReportRow, paper: dict[str, str], found: dict[str, str]) -> dict[str, Any]:
    temperature = f"T={paper['temperature']}" if paper["temperature"] else ""
    setup = [paper["target"], paper["dataset"], temperature, paper["hardware"], paper["params"], paper["note"]]
    line: dict[str, Any] = {"run": row.run} if row.run else {}
    line |= {"label": row.label, "source": paper["source"], "table": paper["table"]}
    line["paper setup"] = ", ".join(part for part in setup if part)
    for key, column in QUANTITIES.items():
        line[f"{key} measured"] = row.value(key)
        line[f"{key} paper"] = float(paper[column]) if paper[column] else None
    return line | {"differs in": "; ".join(found.values()) or "nothing"}


def _options(row: ReportRow) -> dict[str, Any]:
    return {NAMES.get(str(k), str(k)): v for k, v in row.options.items()}


def _defaults(row: ReportRow) -> dict[str, Any]:
    """What holds of the method's options where they are not set."""
    made = named(row.method)
    values = {name: field.default for name, field in options().items()} | made.read | made.choices._asdict()
    found = {NAMES.get(name, name): value for name, value in values.items()}
    if found["k"] is None and row.target != "tiny":
        found["k"] = made.resolve({}).read.get("k")
    return found


def _params(paper: dict[str, str]) -> dict[str, str]:
    pairs = (part.split("=", 1) for part in paper["params"].split())
    return {NAMES.get(name, name): value for name, value in pairs}


def _param_differences(options: dict[str, Any], params: dict[str, str], defaults: dict[str, Any]) -> list[str]:
    """One entry per option that is not the same on both sides; a paper's silence is named, not guessed."""
    found = []
    for key in dict.fromkeys([*params, *options]):
        here, there = options.get(key, defaults.get(key)), params.get(key)
        if here is None:
            found.append(f"{key} default; paper {there}")
        elif there is None:
            found.append(f"{key}={here}; paper does not say")
        elif not _same_value(here, there):
            found.append(f"{key}={here}; paper {there}")
    return found


def _same_value(here: Any, there: str) -> bool:
    try:
        return abs(float(here) - float(there)) < 1e-9
    except (TypeError, ValueError):
        return str(here) == there


def _same_hardware(here: str, paper: str) -> bool:
    name = re.sub(r"[^a-z0-9]", "", here.lower())
    return all(part in name for part in paper.lower().split("-"))
