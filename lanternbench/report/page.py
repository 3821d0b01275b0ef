"""`report.html`: one file without network, with the answer, tables, plots and images of the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lanternbench.measure.steps import Steps
from lanternbench.measure.summaries import Row
from lanternbench.notes import Note
from lanternbench.report import pairs
from lanternbench.report.columns import MISSING, Column, columns, glossary
from lanternbench.report.grid import image_grid
from lanternbench.report.load import Contents, ReportRow, Run
from lanternbench.report.pairs import Pair
from lanternbench.report.palette import colour
from lanternbench.report.pictures import Picture
from lanternbench.report.recipe import recipe
from lanternbench.report.svg import svg
from lanternbench.report.tables import markdown_escape
from lanternbench.report.view import View
from lanternbench.utils.text import one_line


class Part(NamedTuple):
    """One run in a report: what was read of it, its methods against each other, and what it says."""

    run: Run
    contents: Contents
    pairs: list[Pair]
    answer: list[str]


class Cell(NamedTuple):
    """A cell of a sortable table: its text, what to sort by (None: the text), and an interval in small print."""

    text: str
    value: float | str | None = None
    small: str = ""


class Table(NamedTuple):
    """A sortable table; ``folded`` columns show when the reader asks for them."""

    heads: list[tuple[str, str, bool]]  # title, hint, is it text
    rows: list[list[Cell]]
    folded: frozenset[int] = frozenset()
    dispensable: frozenset[int] = frozenset()  # the first to go where a table is too wide
    tall: bool = False


def templates() -> Environment:
    """The templates of this package: every text that is put in is escaped, and cut to one printable line."""
    found = Environment(loader=PackageLoader("lanternbench.report"), autoescape=True, undefined=StrictUndefined)
    found.trim_blocks = found.lstrip_blocks = True
    found.filters["plain"] = lambda text, limit=200: one_line(str(text), limit)
    found.filters["svg"] = svg
    found.filters["md"] = lambda text, limit=200: Markup(markdown_escape(str(text), limit))
    return found


def html_page(
    parts: Sequence[Part],
    rows: list[ReportRow],
    notes: list[Note],
    pictures: tuple[list[Picture], list[Picture]],
    view: View,
    beside: pd.DataFrame | None = None,
) -> str:
    """The whole page; ``pictures``: of speeds, and of steps.

    Every text that comes from a file is escaped; a CSP forbids network besides.
    """
    grids = [image_grid(part.run, part.contents, view) for part in parts]
    said = {sentence for part in parts for sentence in part.answer}
    notes = [note for note in notes if note.text not in said]
    notes += [Note("info", None, text) for grid in grids for text in grid.notes]
    return templates().get_template("report.html").render(
        parts=parts,
        several=len(parts) > 1,
        title=", ".join(part.run.run_id for part in parts),
        facts=_facts([part.run for part in parts]),
        recipes=[recipe(part.run) for part in parts],
        warnings=[note for note in dict.fromkeys(notes) if note.kind != "info"],
        remarks=[note for note in dict.fromkeys(notes) if note.kind == "info"],
        results=results_table(rows, view),
        glossary=glossary(columns(rows)),
        plots=pictures[0],
        step_pictures=pictures[1],
        steps=[[_steps(view.name(row.label, row.method), row.method, part.contents.figures.steps[row.label])
                for row in part.run.rows if row.label in part.contents.figures.steps] for part in parts],
        pair_intro=pairs.INTRO,
        pair_tables=[_pair_table(part.pairs) for part in parts],
        published=None if beside is None else _published(beside),
        grids=grids,
        drawn=any(part.run.draws for part in parts),
        environments=[[(name, _flat(part.run.part(name))) for name in ("environment", "config")] for part in parts],
    )  # fmt: skip


def _facts(runs: list[Run]) -> dict[str, str]:
    def joined(values: list[str]) -> str:
        return " · ".join(dict.fromkeys(values))

    return {
        "Target": joined([run.target for run in runs]),
        "Prompts": joined([recipe(run)["prompts"] for run in runs]),
        "Hardware": joined([run.hardware for run in runs]),
        "Made": joined([str(run.info.get("created") or MISSING).replace("T", " ")[:16] for run in runs]),
    }


def results_table(rows: list[ReportRow], view: View) -> Table:
    """All columns; those that were not chosen, or else that a terminal has no room for, are folded."""
    shown, compact = columns(rows), view.shown(rows, "terminal")
    lines = [[figure_cell(c, row) for c in shown] for row in rows]
    folded = frozenset(i for i, c in enumerate(shown) if c not in compact and (view.columns or c.key != "lossless"))
    dispensable = frozenset(i for i, c in enumerate(shown) if c.key in ("lossless", "step_compression", "tree_depth"))
    return Table([(c.title + c.arrow, c.help, not c.numeric) for c in shown], lines, folded, dispensable)


def figure_cell(c: Column, row: Row) -> Cell:
    """A row's cell, with its interval in small print."""
    found = c.figure(row).value if c.numeric else None
    return Cell(c.value(row), "" if c.numeric and found is None else found, c.bounds(row))


def _steps(label: str, method: str, steps: Steps) -> dict[str, Any]:
    """What the page draws of one method's steps."""
    percentiles, histogram = steps.percentiles(), steps.histogram()
    committed, by_position = sum(histogram), steps.accept_len_by_position()
    return {
        "label": label,
        "colour": colour(method),
        "times": [f"{1000 * percentiles[k]:.1f}" if k in percentiles else MISSING
                  for k in ("step_p50_s", "step_p95_s", "step_p99_s")],
        "histogram": [(n, 100 * count / committed) for n, count in enumerate(histogram) if n],
        "most": max((100 * count / committed for count in histogram[1:]), default=0.0),
        "by_position": by_position,
        "highest": max([value for value in by_position if value is not None], default=1.0),
    }  # fmt: skip


def _pair_table(found: list[Pair]) -> Table | None:
    if not found:
        return None
    lines = []
    for pair in found:
        values = (None, None, None, pair.prompts, "" if pair.value is None else pair.value, None, pair.p)
        lines.append([Cell(text, value) for text, value in zip(pair.cells(), values, strict=True)])
    return Table([(title, "", i in (0, 1, 2, 5)) for i, title in enumerate(pairs.TITLES)], lines, tall=True)


def _published(beside: pd.DataFrame) -> Table:
    from lanternbench.report import papers  # not for every report: it loads all methods

    names = [str(name) for name in beside.columns]
    numeric = [name.endswith((" measured", " paper")) for name in names]
    lines = []
    for record in beside.to_dict("records"):
        texts = [papers.cell(name, record[name]) for name in names]
        sorts = [("" if text == MISSING else record[name]) for name, text in zip(names, texts)]
        lines.append([Cell(text, by if number else None) for text, by, number in zip(texts, sorts, numeric)])
    return Table([(papers.title(name), "", not number) for name, number in zip(names, numeric)], lines, tall=True)


def _flat(content: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested dicts as ("outer.inner", text) pairs."""
    found = []
    for key, value in content.items():
        if isinstance(value, dict) and value and prefix.count(".") < 8:
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, default=str)))
    return found
