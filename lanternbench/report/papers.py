"""The papers' numbers next to the measured ones, with every difference of setup named."""

import csv
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from lanternbench.methods.method import named, options, preset
from lanternbench.report.columns import MISSING, metric_column
from lanternbench.report.load import ReportRow
from lanternbench.report.tables import Cell, Table, table_of

# figures that papers report, in papers.csv with _ for -; those of the toy evaluators have other
# keys and are compared with no paper
QUANTITIES = (
    *("speedup", "latency_s", "step_compression", "accept_len", "tree_depth"),
    *("fid", "clip", "image-reward", "hpsv2", "inception-score", "aesthetic"),
)
DATASETS = {"coco2017": "coco2017-val", "coco2014": "coco2014-val", "parti": "partiprompts"}
NONE = "No paper reports any of these methods on this target."
NAMES = {"lam": "lambda", "λ": "lambda", "δ": "delta", "depth0": "depth", "width0": "draft_top_k"}


@cache
def published_rows() -> tuple[dict[str, str], ...]:
    """Return the rows of papers.csv: figures from the papers' tables, as text; "" if a paper does
    not say.

    ``note``: how a figure comes from the paper (derived from seconds and steps, second-hand); CLIP
    scores are cosines.
    """
    text = files("lanternbench.report").joinpath("papers.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def published_figures(paper: Mapping[str, str]) -> dict[str, str]:
    """Return the figures that a published row has, as the paper writes them."""
    columns = {key: paper[key.replace("-", "_")] for key in QUANTITIES}
    return {key: text for key, text in columns.items() if text}


def published_beside(rows: list[ReportRow]) -> pd.DataFrame:
    """Return measured rows with the papers' rows of the same method, closest setup first.

    Shown for each row: the papers' rows of equal setup; else those of the same target, dataset and
    temperature; else of the same target. Figures of another target say nothing about this one.
    Columns: `label`, `source`, `table`, `paper setup`, "<quantity> measured" and "<quantity>
    paper" for each quantity that either side has, `differs in`.
    """
    lines = []
    for row in rows:
        for paper, differs in closest(row):
            lines.append(comparison(row, paper, differs))
    if not lines:
        return pd.DataFrame()
    frame = pd.DataFrame(lines)
    for key in QUANTITIES:
        pair = [f"{key} measured", f"{key} paper"]
        if frame[pair].isna().all(axis=None):
            frame = frame.drop(columns=pair)
    return frame


def closest(row: ReportRow) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Return the papers' rows of the closest setup, each with its differences."""
    papers = [paper for paper in published_rows() if same_method(row, paper)]
    pairs = [(paper, differences(row, paper)) for paper in papers]
    pairs = [pair for pair in pairs if "target" not in pair[1]]
    pairs.sort(key=lambda pair: len(pair[1]))
    nearest = min((distance(differs) for _, differs in pairs), default=0)
    return [pair for pair in pairs if distance(pair[1]) == nearest]


def distance(differs: Mapping[str, str]) -> int:
    """Return 2 for another dataset or temperature, 1 for other parameters, else 0."""
    if "dataset" in differs or "temperature" in differs:
        return 2
    return 1 if "params" in differs else 0


def same_method(row: ReportRow, paper: dict[str, str]) -> bool:
    """Return whether it is the same preset, with the acceptance rule that the paper used."""
    if row.method != paper["method"]:
        return False
    usual = preset(row.method).choices.acceptance
    measured = named_as_in_papers(row.options).get("acceptance", usual)
    return measured == parameters(paper).get("acceptance", usual)


def differences(row: ReportRow, paper: dict[str, str]) -> dict[str, str]:
    """Return which of {target, dataset, temperature, params, hardware} differ, each with a phrase
    on the measured side.
    """
    differs: dict[str, str] = {}
    target = row.target or "unknown"
    dataset = DATASETS.get(row.dataset or "", row.dataset) or "unknown"
    temperature = "unknown" if row.temperature is None else f"{row.temperature:g}"
    stage, unstated, _ = paper["target"].partition("-unstated")
    if unstated and target.startswith(stage):
        differs["stage"] = "stage of the target (paper does not say)"
    elif target != paper["target"]:
        differs["target"] = f"target ({target})"
    if dataset != paper["dataset"]:
        differs["dataset"] = f"dataset ({dataset})"
    if not paper["temperature"]:
        differs["temperature"] = "temperature (paper does not say)"
    elif row.temperature != float(paper["temperature"]):
        differs["temperature"] = f"temperature ({temperature})"
    if params := different_parameters(row, paper):
        differs["params"] = f"parameters ({', '.join(params)})"
    if row.simulated:
        differs["acceptance"] = "acceptance (simulated)"
    hardware = re.sub(r"[^a-z0-9]", "", row.hardware.lower())
    if not paper["hardware"]:
        differs["hardware"] = "hardware (paper does not say)"
    elif not all(part in hardware for part in paper["hardware"].lower().split("-")):
        differs["hardware"] = f"hardware ({row.hardware})"
    return differs


def table(frame: pd.DataFrame) -> Table:
    """Return `published_beside` as a table, its quantities named as readers know them; a missing
    value prints as "–".
    """
    lines = []
    for record in frame.to_dict("records"):
        lines.append({title_of(str(name)): table_cell(value) for name, value in record.items()})
    return table_of(lines, words=frame.columns)


def page(frame: pd.DataFrame) -> str:
    """Return `published_beside` as Markdown."""
    return f"{NONE}\n" if frame.empty else table(frame).markdown()


def title_of(name: str) -> str:
    """Return the title of a column of `published_beside`, which is its name if it has words."""
    key, _, side = name.rpartition(" ")
    if key not in QUANTITIES:
        return name
    return f"{metric_column(key).title}, {side}"


def table_cell(value: str | float | None) -> Cell:
    if isinstance(value, str):
        return Cell(value or MISSING)
    if pd.isna(value):
        return Cell(MISSING, "")
    return Cell(f"{value:.4g}", value)


def comparison(
    row: ReportRow, paper: dict[str, str], differs: dict[str, str]
) -> dict[str, str | float | None]:
    """Return a line of `published_beside`."""
    temperature = f"T={paper['temperature']}" if paper["temperature"] else ""
    setup = [paper["target"], paper["dataset"], temperature]
    setup += [paper[name] for name in ("hardware", "params", "note")]
    line: dict[str, str | float | None] = {"run": row.run} if row.run else {}
    line |= {"label": row.label, "source": paper["source"], "table": paper["table"]}
    line["paper setup"] = ", ".join(filter(None, setup))
    published = published_figures(paper)
    for key in QUANTITIES:
        line[f"{key} measured"] = row.value(key)
        line[f"{key} paper"] = float(published[key]) if key in published else None
    line["differs in"] = "; ".join(differs.values()) or "nothing"
    return line


def named_as_in_papers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by the names that papers have for them."""
    return {NAMES.get(name, name): value for name, value in options.items()}


def parameters(paper: dict[str, str]) -> dict[str, str]:
    return named_as_in_papers(dict(part.split("=", 1) for part in paper["params"].split()))


def different_parameters(row: ReportRow, paper: dict[str, str]) -> list[str]:
    """Return an entry for each option that is not the same on both sides; a paper's silence is
    named, not guessed.

    An option of the method that is not set has its default.
    """
    method = named(row.method)
    defaults = {name: field.default for name, field in options().items()}
    defaults = named_as_in_papers(defaults | method.read | method.choices._asdict())
    if defaults["k"] is None and row.target != "tiny":
        defaults["k"] = method.resolve({}).read.get("k")
    measured = named_as_in_papers(row.options)
    published = parameters(paper)
    differs = []
    for key in dict.fromkeys([*published, *measured]):
        value = measured.get(key, defaults.get(key))
        if value is None:
            differs.append(f"{key} default; paper {published[key]}")
        elif key not in published:
            differs.append(f"{key}={value}; paper does not say")
        elif not same_value(value, published[key]):
            differs.append(f"{key}={value}; paper {published[key]}")
    return differs


def same_value(measured: str | float, published: str) -> bool:
    """Return whether an option is the same, as numbers or as text."""
    try:
        return abs(float(measured) - float(published)) < 1e-9
    except (TypeError, ValueError):
        return str(measured) == published
