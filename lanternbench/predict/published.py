"""Published accepted lengths as input: rows of papers.csv as decodes to replay."""

from collections.abc import Collection, Mapping

import numpy as np

from lanternbench.costs.operators import count_operators
from lanternbench.errors import UserError
from lanternbench.methods.build import build_proposer
from lanternbench.methods.method import Method, method
from lanternbench.models.target import Target
from lanternbench.predict.replay import (
    BASE,
    PUBLISHED,
    Acceptance,
    Case,
    Cases,
    Trace,
    lacks_drafter,
    shape_of,
    without_drafter,
)
from lanternbench.registry import components
from lanternbench.report.papers import parameters, published_figures, published_rows

Paper = dict[str, str]  # a row of papers.csv
# options of published rows that change what a step costs
COSTLY = ("acceptance", "window", "siblings", "depth")
OF_ONE_ROW = "the windows of one row count, which flatters batches"
QUALITY = ("fid", "clip", "image-reward")


def rows_of(target: str) -> list[Paper]:
    """Return the published rows of a target, also those that do not name its stage."""
    found = []
    for paper in published_rows():
        family, unstated, _ = paper["target"].partition("-unstated")
        if paper["target"] == target or (unstated and target.startswith(family)):
            found.append(paper)
    return found


def accepted_length(paper: Paper) -> float | None:
    """Return the accepted length τ of a row, or else its step compression."""
    text = paper["accept_len"] or paper["step_compression"]
    return float(text) if text else None


def label_of(paper: Paper) -> str:
    """Return a row's method and its options as the paper has them."""
    return f"{paper['method']} {paper['params']}".strip()


def method_of(paper: Paper) -> Method | None:
    """Return the method of a row as far as it changes costs; None for ``ar`` and methods that are
    not implemented.
    """
    name = paper["method"]
    if name == BASE or name not in components("preset"):
        return None
    options = {key: value for key, value in parameters(paper).items() if key in COSTLY}
    return method(name, **options)


def steady(tau: float, nodes: int, depth: int, length: int) -> Trace:
    """Return a decode of ``length`` tokens in steps of one tree that commit ``tau`` on average, as
    evenly as possible.
    """
    steps = max(1, round((length - 1) / tau))
    ends = np.round(np.linspace(0, length - 1, steps + 1)).astype(np.int64)
    return Trace(np.diff(ends), np.full(steps, nodes), np.full(steps, depth))


def decode_of(paper: Paper, used: Method, target: Target, tau: float, guidance: str = "") -> Case:
    """Return a row's decode of ``target`` with the trees that the target has by default.

    A tree has at least as many nodes as it commits tokens.  A tree that adapts has the depth that
    the paper gives.  Raises UserError for a target on which the method cannot run.
    """
    proposer = build_proposer(target, used)
    size = proposer.size
    depth = size.max_depth
    if size.adapts and paper["tree_depth"]:
        depth = round(float(paper["tree_depth"]))
    shape = shape_of(target)
    acceptance = acceptance_of(paper, guidance)
    if used.choices.order != "raster" and depth:
        warning = "; ".join(filter(None, [acceptance.warning, OF_ONE_ROW]))
        acceptance = acceptance._replace(warning=warning)
    nodes = max(size.nodes, int(np.ceil(tau)))
    return Case(
        label=label_of(paper),
        method=used,
        shape=shape,
        drafter=proposer.network(),
        measured=proposer,
        operators=count_operators(used, target.options),
        traces=[steady(tau, nodes, depth, shape.length)],
        acceptance=acceptance,
    )


def acceptance_of(paper: Paper, guidance: str) -> Acceptance:
    """Return the origin of a published accepted length."""
    setup = [
        paper["dataset"] or "prompts not reported",
        paper["hardware"] or "GPU not named",
        f"T {paper['temperature'] or 'not reported'}",
        f"guidance {guidance or 'not reported'}",
    ]
    place = f"{paper['source']}, table {paper['table']} ({', '.join(setup)})"
    speedup = float(paper["speedup"]) if paper["speedup"] else None
    return Acceptance(PUBLISHED, place, speedup, quality_of(paper), paper["note"])


def quality_of(paper: Paper) -> str:
    """Return figures of a row next to those of ``ar`` in the same table."""
    setup = ("source", "table", "target", "dataset", "temperature")
    for base in published_rows():
        if base["method"] == BASE and all(base[key] == paper[key] for key in setup):
            figures, plain = published_figures(paper), published_figures(base)
            pairs = [key for key in QUALITY if key in figures and key in plain]
            return ", ".join(f"{key} {figures[key]} (ar {plain[key]})" for key in pairs)
    return ""


def published_cases(
    target: Target,
    temperature: float,
    guidance: Mapping[str, str],
    methods: Collection[str] | None = None,
) -> Cases:
    """Return the published decodes of ``target`` at a temperature, of ``methods`` if given; rows
    whose accepted length or drafter is not published are named in the notes.

    ``guidance``: what is known of it, by paper.  A row that does not state its temperature counts.
    """
    found = Cases([], [])
    lacking = []
    for paper in rows_of(target.name):
        used = method_of(paper)
        if used is None or (methods is not None and used.preset not in methods):
            continue
        if paper["temperature"] and float(paper["temperature"]) != temperature:
            continue
        tau = accepted_length(paper)
        if tau is None:
            if paper["speedup"]:
                found.notes.append(without_length(paper))
        elif lacks_drafter(used, target):
            lacking.append(paper["method"])
        else:
            try:
                scale = guidance.get(paper["source"], "")
                found.cases.append(decode_of(paper, used, target, tau, scale))
            except UserError as error:
                found.notes.append(f"{paper['method']} is left out: {error}")
    found.notes.extend(without_drafter(lacking, shape_of(target)))
    unknown = set(methods or ()) - {case.method.preset for case in found.cases} - {BASE}
    if unknown:
        names = ", ".join(sorted(unknown))
        found.notes.append(f"no accepted length is published for {target.name}: {names}")
    return found


def without_length(paper: Paper) -> str:
    """Return a note on a row that has a speedup but no accepted length."""
    return (
        f"no accepted length is published for {label_of(paper)}: {paper['source']}, table "
        f"{paper['table']}, has a speedup of {paper['speedup']}×"
    )
