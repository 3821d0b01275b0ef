"""`report.html`: one file without network, with the tables, interactive plots and images of the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import pandas as pd
from plotly.offline import get_plotlyjs

from lanternbench.report import papers
from lanternbench.report.columns import MISSING, Column, columns, plain
from lanternbench.report.grid import PROMPTS, grid_section
from lanternbench.report.load import Row, Run, number
from lanternbench.report.pairs import INTRO, PAIR_TITLES, pair_cells
from lanternbench.report.palette import marker
from lanternbench.report.pareto import pareto_data, quality_columns


def html_page(runs: list[Run], rows: list[Row], notes: list[str], beside: pd.DataFrame | None = None,
              pairs: Sequence[tuple[Run, list[Row]]] = (), prompts: int = PROMPTS) -> str:  # fmt: skip
    """The whole page. Every text that comes from a file is escaped; a CSP forbids network besides.

    Args: runs as loaded; rows joined over the runs; notes to show on top; the papers' rows, if wanted; the methods of
    each run against each other; prompts to show in each image grid.
    """
    grids, extra = [], []
    for run in runs:
        section, left_out = grid_section(run, prompts)
        heading = f"<h3>{escape(plain(run.run_id))}</h3>" if len(runs) > 1 and section else ""
        grids.append(heading + section)
        extra += [f"{run.run_id}: {note}" if len(runs) > 1 else note for note in left_out]
    plots = [pareto_data(rows, quality) for quality in quality_columns(rows)]
    for plot in plots:  # plotly reads a few HTML tags in its texts
        plot |= {name: escape(plot[name]) for name in ("title", "x_title", "y_title")}
        for point in plot["points"]:
            point |= {"name": escape(point["name"]), "symbol": marker(point["method"])[1]}
            point["method"] = escape(plain(point["method"], 40))
    template = Template(files("lanternbench.report").joinpath("template.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(plain(", ".join(run.run_id for run in runs))),
        facts=_facts(runs),
        notes=_notes([*notes, *extra]),
        table=_results(rows),
        plots_hidden="" if plots else "hidden",
        options="".join(f'<option value="{i}">{plot["title"]}</option>' for i, plot in enumerate(plots)),
        pairs=_pairs(pairs),
        published=_published(beside),
        grids_hidden="" if any(grids) else "hidden",
        grids="".join(grids),
        environment="".join(map(_environment, runs)),
        data=_script_json(plots),
        plotly=get_plotlyjs().replace("</script", "<\\/script") if plots else "",
    )


def _facts(runs: list[Run]) -> str:
    def joined(values: list[str]) -> str:
        return escape(plain(" · ".join(dict.fromkeys(values))))

    facts = {
        "Target": joined([run.target for run in runs]),
        "Prompts": joined([f"{run.dataset}{_count(run)}" for run in runs]),
        "Hardware": joined([run.hardware for run in runs]),
        "Made": joined([str(run.info.get("created") or MISSING).replace("T", " ")[:16] for run in runs]),
    }
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())


def _count(run: Run) -> str:
    prompts = run.info.get("prompts")
    count = prompts.get("count") if isinstance(prompts, dict) else None
    return f" ({count} prompts)" if isinstance(count, int) else ""


def _notes(notes: list[str]) -> str:
    items = "".join(f"<li>{escape(plain(note, 400))}</li>" for note in dict.fromkeys(notes))
    return f'<section class="notes"><h2>Notes</h2><ul>{items}</ul></section>' if items else ""


def _results(rows: list[Row]) -> str:
    shown = columns(rows)
    head = "".join(_heading(c.title + c.arrow, c.help, c.form in ("text", "yes")) for c in shown)
    body = "".join(f"<tr>{''.join(_result_cell(c, row) for c in shown)}</tr>" for row in rows)
    return _sortable(head, body)


def _result_cell(column: Column, row: Row) -> str:
    bounds = column.bounds(row)
    small = f"<small>{escape(bounds)}</small>" if bounds else ""
    value = escape(plain(column.value(row)))
    if column.form in ("text", "yes"):
        return f'<td class="text">{value}</td>'
    found = number(row, column.key)
    return f'<td data-value="{"" if found is None else found}">{value}{small}</td>'


def _heading(title: str, hint: str = "", text: bool = False) -> str:
    tip = f' title="{escape(hint, quote=True)}"' if hint else ""
    css = ' class="text"' if text else ""
    return f'<th scope="col"{css}{tip}><button type="button">{escape(title)}</button></th>'


def _sortable(head: str, body: str, css: str = "scroll") -> str:
    table = f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="{css}" tabindex="0">{table}</div>'


def _pairs(pairs: Sequence[tuple[Run, list[Row]]]) -> str:
    tables = []
    for run, rows in pairs:
        head = "".join(_heading(title, text=i in (0, 1, 2, 5)) for i, title in enumerate(PAIR_TITLES))
        body = "".join(f"<tr>{''.join(_pair_cells(row))}</tr>" for row in rows)
        name = f"<h3>{escape(plain(run.run_id))}</h3>" if len(pairs) > 1 else ""
        tables += [name + _sortable(head, body, "scroll tall")] if rows else []
    if not tables:
        return ""
    intro = f'<p class="quiet">{escape(INTRO)}</p>'
    return f"<section><h2>Methods against each other</h2>{intro}{''.join(tables)}</section>"


def _pair_cells(row: Row) -> list[str]:
    words, keys = pair_cells(row), (None, None, None, "prompts", "value", None, "p")
    cells = []
    for word, key in zip(words, keys, strict=True):
        shown = escape(plain(word))
        cells.append(f'<td class="text">{shown}</td>' if key is None else f'<td data-value="{row[key]}">{shown}</td>')
    return cells


def _published(beside: pd.DataFrame | None) -> str:
    if beside is None:
        return ""
    intro = (
        "Figures from the papers' tables beside the measured ones. They were taken on other hardware, prompts or "
        "weights unless the last column says “nothing”."
    )
    if beside.empty:
        body = '<p class="quiet">No paper reports any of these methods.</p>'
    else:
        numeric = {str(c) for c in beside.columns if str(c).endswith((" measured", " paper"))}
        head = "".join(_heading(papers.title(str(c)), text=str(c) not in numeric) for c in beside.columns)
        body = _sortable(
            head, "".join(_published_row(line, numeric) for line in beside.to_dict("records")), "scroll tall"
        )
    return f'<section><h2>Beside the papers</h2><p class="quiet">{intro}</p>{body}</section>'


def _published_row(line: dict[Any, Any], numeric: set[str]) -> str:
    cells = []
    for name, value in line.items():
        text = escape(plain(papers.cell(str(name), value), 300))
        if str(name) in numeric:
            cells.append(f'<td data-value="{"" if text == MISSING else value}">{text}</td>')
        else:
            cells.append(f'<td class="{"wide" if name in ("differs in", "paper setup") else "text"}">{text}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _environment(run: Run) -> str:
    parts = []
    for name in ("environment", "config"):
        content = run.info.get(name)
        pairs = _flat(content) if isinstance(content, dict) else []
        lines = "".join(f"<dt>{escape(plain(k))}</dt><dd>{escape(plain(v, 400))}</dd>" for k, v in pairs)
        parts.append(f"<div><h3>{name.capitalize()}</h3><dl>{lines or '<dt>not recorded</dt>'}</dl></div>")
    return f"<details><summary>{escape(plain(run.run_id))}</summary><div class='two'>{''.join(parts)}</div></details>"


def _flat(content: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested dicts as ("outer.inner", text) pairs."""
    pairs = []
    for key, value in content.items():
        if isinstance(value, dict) and value and prefix.count(".") < 8:
            pairs += _flat(value, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, default=str)))
    return pairs


def _script_json(value: Any) -> str:
    """JSON that no text in it can break out of a <script> element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
