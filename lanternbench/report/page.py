"""`report.html`: one file without network, with the answer, tables, plots and images of the runs."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lanternbench.notes import Note
from lanternbench.report import pairs
from lanternbench.report.columns import MISSING, columns, glossary
from lanternbench.report.grid import image_grid
from lanternbench.report.load import Contents, ReportRow, Run
from lanternbench.report.pairs import Pair
from lanternbench.report.pictures import Picture
from lanternbench.report.scene import colour
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
    """The templates of this package: text is escaped for HTML but in LaTeX, and cut to one printable line."""
    loader, escaped = PackageLoader("lanternbench.report"), lambda name: not (name or "").endswith(".tex")
    environment = Environment(loader=loader, autoescape=escaped, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.globals["colour"] = colour
    environment.filters["plain"] = lambda text, limit=200: one_line(str(text), limit)
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
    """The whole page; ``pictures``: of speeds, and of steps.  Text from files is escaped; a CSP forbids network."""
    runs = [part.run for part in parts]
    grids = [image_grid(part.run, part.contents, view) for part in parts]
    answers = {sentence for part in parts for sentence in part.answer}
    notes = [note for note in notes if note.text not in answers]
    notes += [Note("info", None, text) for grid in grids for text in grid.notes]
    facts = {
        "Target": [run.target for run in runs],
        "Prompts": [run.recipe["prompts"] for run in runs],
        "Hardware": [run.hardware for run in runs],
        "Made": [str(run.info.get("created") or MISSING).replace("T", " ")[:16] for run in runs],
    }
    # columns that were not chosen, by default those that do not fit a terminal, are folded
    every, compact = columns(rows), view.columns_for(rows, "terminal")
    folded = frozenset(i for i, c in enumerate(every) if c not in compact and (view.columns or c.key != "lossless"))
    dispensable = frozenset(i for i, c in enumerate(every) if c.key in ("lossless", "step_compression", "tree_depth"))
    page = templates().get_template("report.html")
    return page.render(
        parts=parts,
        facts={name: " · ".join(dict.fromkeys(values)) for name, values in facts.items()},
        notes=list(dict.fromkeys(notes)),
        results=figure_table(rows, every)._replace(folded=folded, dispensable=dispensable),
        glossary=glossary(every),
        plots=pictures[0],
        step_pictures=pictures[1],
        view=view,
        pair_intro=pairs.INTRO,
        pair_tables=[pairs.pair_table(part.pairs) for part in parts],
        published=published,
        grids=grids,
        drawn=any(run.draws for run in runs),
        environments=[[(name, _flat(run.part(name))) for name in ("environment", "config")] for run in runs],
    )


def _flat(content: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested dicts as ("outer.inner", text) pairs."""
    flat = []
    for key, value in content.items():
        if isinstance(value, dict) and value and prefix.count(".") < 8:
            flat += _flat(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, default=str)))
    return flat
