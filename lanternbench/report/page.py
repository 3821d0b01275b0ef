"""`report.html`: one file without network, with the answer, tables, plots and images of the runs."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lanternbench.measure.steps import Steps
from lanternbench.notes import Note
from lanternbench.report import pairs
from lanternbench.report.columns import MISSING, columns, glossary
from lanternbench.report.drawing import svg
from lanternbench.report.grid import image_grid
from lanternbench.report.load import Contents, ReportRow, Run
from lanternbench.report.pairs import Pair
from lanternbench.report.palette import colour
from lanternbench.report.pictures import Picture
from lanternbench.report.tables import Table, figure_table, markdown_escape
from lanternbench.report.view import View
from lanternbench.utils.text import one_line


class Part(NamedTuple):
    """One run in a report: its data, its methods compared in pairs, and its findings."""

    run: Run
    contents: Contents
    pairs: list[Pair]
    answer: list[str]


def templates() -> Environment:
    """The templates of this package: every text that is put in is escaped, and cut to one printable line."""
    environment = Environment(loader=PackageLoader("lanternbench.report"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters["plain"] = lambda text, limit=200: one_line(str(text), limit)
    environment.filters["svg"] = svg
    environment.filters["md"] = lambda text, limit=200: Markup(markdown_escape(str(text), limit))
    return environment


def html_page(
    parts: Sequence[Part],
    rows: list[ReportRow],
    notes: list[Note],
    pictures: tuple[list[Picture], list[Picture]],
    view: View,
    published: Table | None = None,
) -> str:
    """The whole page; ``pictures``: of speeds, and of steps.

    Every text that comes from a file is escaped; a CSP forbids network besides.
    """
    runs = [part.run for part in parts]
    grids = [image_grid(part.run, part.contents, view) for part in parts]
    answers = {sentence for part in parts for sentence in part.answer}
    notes = [note for note in dict.fromkeys(notes) if note.text not in answers]
    notes += [Note("info", None, text) for grid in grids for text in grid.notes]
    facts = {
        "Target": [run.target for run in runs],
        "Prompts": [run.recipe["prompts"] for run in runs],
        "Hardware": [run.hardware for run in runs],
        "Made": [str(run.info.get("created") or MISSING).replace("T", " ")[:16] for run in runs],
    }
    return templates().get_template("report.html").render(
        parts=parts,
        several=len(parts) > 1,
        title=", ".join(run.run_id for run in runs),
        facts={name: " · ".join(dict.fromkeys(values)) for name, values in facts.items()},
        warnings=[note for note in notes if note.kind != "info"],
        remarks=[note for note in dict.fromkeys(notes) if note.kind == "info"],
        results=results_table(rows, view),
        glossary=glossary(columns(rows)),
        plots=pictures[0],
        step_pictures=pictures[1],
        steps=[[_steps(view.name(row.label, row.method), row.method, part.contents.figures.steps[row.label])
                for row in part.run.rows if row.label in part.contents.figures.steps] for part in parts],
        pair_intro=pairs.INTRO,
        pair_tables=[pairs.pair_table(part.pairs) for part in parts],
        published=published,
        grids=grids,
        drawn=any(run.draws for run in runs),
        environments=[[(name, _flat(run.part(name))) for name in ("environment", "config")] for run in runs],
    )  # fmt: skip


def results_table(rows: list[ReportRow], view: View) -> Table:
    """All columns; those not selected, by default those that do not fit a terminal, are folded."""
    every, compact = columns(rows), view.shown(rows, "terminal")
    folded = frozenset(i for i, c in enumerate(every) if c not in compact and (view.columns or c.key != "lossless"))
    dispensable = frozenset(i for i, c in enumerate(every) if c.key in ("lossless", "step_compression", "tree_depth"))
    return figure_table(rows, every)._replace(folded=folded, dispensable=dispensable)


def _steps(label: str, method: str, steps: Steps) -> dict[str, Any]:
    """What the page draws of one method's steps."""
    percentiles, histogram, by_position = steps.percentiles(), steps.histogram(), steps.accept_len_by_position()
    shares = [(n, 100 * count / sum(histogram)) for n, count in enumerate(histogram) if n]
    seconds = [percentiles.get(f"step_p{rank}_s") for rank in (50, 95, 99)]
    return {
        "label": label,
        "colour": colour(method),
        "times": [MISSING if value is None else f"{1000 * value:.1f}" for value in seconds],
        "histogram": shares,
        "most": max((share for _, share in shares), default=0.0),
        "by_position": by_position,
        "highest": max([value for value in by_position if value is not None], default=1.0),
    }


def _flat(content: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested dicts as ("outer.inner", text) pairs."""
    pairs = []
    for key, value in content.items():
        if isinstance(value, dict) and value and prefix.count(".") < 8:
            pairs += _flat(value, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, default=str)))
    return pairs
