"""The papers' numbers beside the measured ones, with every difference of setup named."""

import csv
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

import pandas as pd

from lanternbench.methods.method import named, options, preset
from lanternbench.report.columns import COLUMN, MISSING, metric_column
from lanternbench.report.load import ReportRow
from lanternbench.report.tables import Cell, Table

# figures that papers report, in papers.csv with _ for -; tiny evaluators have other keys and so
# stand beside no paper
QUANTITIES = (
    *("speedup", "latency_s", "step_compression", "accept_len", "tree_depth"),
    *("fid", "clip", "image-reward", "hpsv2", "inception-score", "aesthetic"),
)
DATASETS = {"coco2017": "coco2017-val", "coco2014": "coco2014-val", "parti": "partiprompts"}
NONE = "No paper reports any of these methods on this target."
NAMES = {"lam": "lambda", "λ": "lambda", "δ": "delta", "depth0": "depth", "width0": "draft_top_k"}


@cache
def published_rows() -> tuple[dict[str, str], ...]:
    """The rows of papers.csv: figures from the papers' tables, as text; "" where a paper does not
    say.

    ``note``: how a figure comes from the paper (derived from seconds and steps, second-hand); CLIP
    scores are cosines.
    """
    text = files("lanternbench.report").joinpath("papers.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def published_beside(rows: list[ReportRow]) -> pd.DataFrame:
    """Measured rows with the papers' rows of the same method, closest setup first.

    Shown for each row: the papers' rows of equal setup; else those of the same target, dataset and
    temperature; else of the same target. Figures of another target say nothing about this one.
    Columns: `label`, `source`, `table`, `paper setup`, "<quantity> measured" and "<quantity>
    paper" for each quantity that either side has, `differs in`.
    """
    lines = []
    for row in rows:
        papers = [
            (paper, differences(row, paper))
            for paper in published_rows()
            if same_method(row, paper)
        ]
        papers = sorted(
            (pair for pair in papers if "target" not in pair[1]), key=lambda pair: len(pair[1])
        )
        tiers = [
            2 if {"dataset", "temperature"} & set(apart) else int("params" in apart)
            for _, apart in papers
        ]
        lines += [_line(row, *pair) for pair, tier in zip(papers, tiers) if tier == min(tiers)]
    if not lines:
        return pd.DataFrame(columns=["label", "source", "table", "paper setup", "differs in"])
    frame = pd.DataFrame(lines)
    # measured and paper stay side by side, so a quantity goes only when both of its columns are
    # empty
    pairs = [[f"{key} measured", f"{key} paper"] for key in QUANTITIES]
    return frame.drop(
        columns=[name for pair in pairs if frame[pair].isna().all(axis=None) for name in pair]
    )


def same_method(row: ReportRow, paper: dict[str, str]) -> bool:
    """Is it the same preset, with the same acceptance rule where the paper changed it?"""
    if row.method != paper["method"]:
        return False
    usual = preset(row.method).choices.acceptance
    return _by_name(row.options).get("acceptance", usual) == _params(paper).get(
        "acceptance", usual
    )


def differences(row: ReportRow, paper: dict[str, str]) -> dict[str, str]:
    """What of {target, dataset, temperature, params, hardware} differs, each with a phrase on the
    measured side.
    """
    differs: dict[str, str] = {}
    target, dataset, temperature = (
        row.target or "",
        DATASETS.get(row.dataset or "", row.dataset or ""),
        row.temperature,
    )
    if paper["target"].endswith("-stage-unstated") and target.startswith(
        paper["target"].removesuffix("-unstated")
    ):
        differs["stage"] = "stage of the target (paper does not say)"
    elif target != paper["target"]:
        differs["target"] = f"target ({target or 'unknown'})"
    if dataset != paper["dataset"]:
        differs["dataset"] = f"dataset ({dataset or 'unknown'})"
    if not paper["temperature"]:
        differs["temperature"] = "temperature (paper does not say)"
    elif temperature != float(paper["temperature"]):
        differs["temperature"] = (
            f"temperature ({'unknown' if temperature is None else f'{temperature:g}'})"
        )
    if params := _param_differences(row, paper):
        differs["params"] = f"parameters ({', '.join(params)})"
    if row.simulated:
        differs["acceptance"] = "acceptance (simulated)"
    hardware = re.sub(r"[^a-z0-9]", "", row.hardware.lower())
    if not paper["hardware"]:
        differs["hardware"] = "hardware (paper does not say)"
    elif not all(part in hardware for part in paper["hardware"].lower().split("-")):
        differs["hardware"] = f"hardware ({row.hardware})"
    return differs


def table(beside: pd.DataFrame) -> Table:
    """`published_beside` as a table, its quantities named as readers know them; a missing value
    prints as "–".
    """
    titles = {"label": ("method", "", True)}
    for key, side in product(QUANTITIES, ("measured", "paper")):
        titles[f"{key} {side}"] = (
            f"{(COLUMN.get(key) or metric_column(key)).title}, {side}",
            "",
            False,
        )
    heads = [titles.get(name, (name, "", True)) for name in beside.columns]
    records = beside.itertuples(index=False, name=None)
    lines = [
        [_cell(value, not text) for value, (_, _, text) in zip(record, heads)]
        for record in records
    ]
    return Table(heads, lines, tall=True)


def _cell(value: Any, numeric: bool) -> Cell:
    if pd.isna(value) or value == "":
        return Cell(MISSING, "" if numeric else None)
    return Cell(
        f"{value:.4g}" if isinstance(value, float) else str(value), value if numeric else None
    )


def _line(row: ReportRow, paper: dict[str, str], differs: dict[str, str]) -> dict[str, Any]:
    temperature = f"T={paper['temperature']}" if paper["temperature"] else ""
    setup = [
        paper["target"],
        paper["dataset"],
        temperature,
        paper["hardware"],
        paper["params"],
        paper["note"],
    ]
    line: dict[str, Any] = {"run": row.run} if row.run else {}
    line |= {"label": row.label, "source": paper["source"], "table": paper["table"]}
    line["paper setup"] = ", ".join(part for part in setup if part)
    for key in QUANTITIES:
        figure = paper[key.replace("-", "_")]
        line |= {
            f"{key} measured": row.value(key),
            f"{key} paper": float(figure) if figure else None,
        }
    return line | {"differs in": "; ".join(differs.values()) or "nothing"}


def _by_name(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names that papers have for them."""
    return {NAMES.get(str(name), str(name)): value for name, value in options.items()}


def _params(paper: dict[str, str]) -> dict[str, str]:
    return _by_name(dict(part.split("=", 1) for part in paper["params"].split()))


def _param_differences(row: ReportRow, paper: dict[str, str]) -> list[str]:
    """One entry per option that is not the same on both sides; a paper's silence is named, not
    guessed.

    What is not set of the method's options is what they are by default.
    """
    method = named(row.method)
    values = (
        {name: field.default for name, field in options().items()}
        | method.read
        | method.choices._asdict()
    )
    defaults = _by_name(values)
    if defaults["k"] is None and row.target != "tiny":
        defaults["k"] = method.resolve({}).read.get("k")
    measured, params, differs = _by_name(row.options), _params(paper), []
    for key in dict.fromkeys([*params, *measured]):
        value, published = measured.get(key, defaults.get(key)), params.get(key)
        if value is None:
            differs.append(f"{key} default; paper {published}")
        elif published is None:
            differs.append(f"{key}={value}; paper does not say")
        elif not _same_value(value, published):
            differs.append(f"{key}={value}; paper {published}")
    return differs


def _same_value(measured: Any, published: str) -> bool:
    try:
        return abs(float(measured) - float(published)) < 1e-9
    except (TypeError, ValueError):
        return str(measured) == published
