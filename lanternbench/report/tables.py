"""Tables of rows, of their categories and of acceptance: for Markdown and the page, as CSV, for
the terminal.
"""

import html
import re
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import pandas as pd
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from lanternbench.measure.figures import Figures
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row
from lanternbench.report.columns import (
    MISSING,
    Column,
    columns,
    glossary,
    name_of,
    run_of,
    runs_of,
)
from lanternbench.utils.text import one_line

FACTS = (
    "run",
    "label",
    "method",
    "options",
    "target",
    "dataset",
    "temperature",
    "lossless",
    "simulated",
    "n",
)
MOST_CATEGORIES = 40  # more are no overview
POSITIONS = 16  # of a draft
LEAST = 5e-4  # a position that fewer steps reach is left out
ACCEPTANCE = (
    "Per position i: the share of steps that accepted the first i drafted tokens, and in brackets the share among "
    "those that accepted the i − 1 before. The bonus token is not counted; mean acceptance length counts it (τ)."
)


class Cell(NamedTuple):
    """A cell of a sortable table: its text, what to sort by (None: the text), and an interval in
    small print.
    """

    text: str
    value: float | str | None = None
    small: str = ""


class Table(NamedTuple):
    """A table: sortable on the page, where ``folded`` columns are hidden by default."""

    heads: list[tuple[str, str, bool]]  # title, hint, is it text
    rows: list[list[Cell]]
    folded: frozenset[int] = frozenset()
    dispensable: frozenset[int] = frozenset()  # the first to go where a table is too wide
    tall: bool = False

    def markdown(self) -> str:
        cells = [[f"{cell.text} {cell.small}".strip() for cell in row] for row in self.rows]
        return markdown(
            [title for title, _, _ in self.heads], cells, [not text for _, _, text in self.heads]
        )


def figure_cell(column: Column, row: Row) -> Cell:
    """A row's cell, with its interval in small print."""
    value = column.figure(row).value if column.numeric else None
    return Cell(
        column.value(row), "" if column.numeric and value is None else value, column.bounds(row)
    )


def figure_table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    """A line per row, a column per figure."""
    heads = [(c.title + c.arrow, c.help, not c.numeric) for c in columns]
    return Table(heads, [[figure_cell(c, row) for c in columns] for row in rows])


def markdown_table(rows: Sequence[Row], chosen: Sequence[Column] | None = None) -> str:
    """GitHub Markdown, by default with the most important columns; intervals in brackets."""
    return figure_table(rows, columns(rows, "md") if chosen is None else chosen).markdown()


def markdown(titles: list[str], cells: list[list[str]], right: list[bool]) -> str:
    """A Markdown table; `right` marks right-aligned columns. Cells may hold any text, it is
    escaped.
    """
    rule = ["---:" if r else ":---" for r in right]
    escaped = [[markdown_escape(cell) for cell in line] for line in [titles, *cells]]
    return "".join("| " + " | ".join(line) + " |\n" for line in [escaped[0], rule, *escaped[1:]])


def category_table(figures: Figures, labels: list[str]) -> str:
    """A Markdown table by category and method; empty where prompts have fewer than two categories,
    or too many.
    """
    rows = category_rows(figures)
    if not 2 <= len({category for category, _ in rows}) <= MOST_CATEGORIES:
        return ""
    categories, plain = zip(
        *sorted(rows, key=lambda pair: (pair[0], [*labels, pair[1].label].index(pair[1].label)))
    )
    table = figure_table(plain, columns(plain))
    cells = [[Cell(category), *line] for category, line in zip(categories, table.rows)]
    return table._replace(heads=[("Category", "", True), *table.heads], rows=cells).markdown()


def category_rows(figures: Figures) -> list[tuple[str, Row]]:
    """(category, row) for each category and label: speedup, τ, fidelity loss and each metric; no
    intervals.
    """
    names, rows = ["speedup", "accept_len", "fidelity_loss", *figures.metrics], []
    for (category, code), label in product(figures.categories.items(), figures.labels):
        samples = figures.of(label) & (figures.codes("category") == code)
        if category and samples.any():
            ratios = {name: figures.ratio(name, samples) for name in names}
            values = {name: Estimate(value) for name, value in ratios.items() if value is not None}
            rows.append(
                (
                    str(category),
                    Row(
                        label=label,
                        method=figures.methods[label][0],
                        n=int(samples.sum()),
                        figures=values,
                    ),
                )
            )
    return rows


def position_rates(row: Row) -> list[tuple[float, float]]:
    """(joint, conditional) rates of acceptance by position of the draft."""
    return list(zip(row.acceptance["per_position"], row.acceptance["conditional_per_position"]))


def positions(rows: Sequence[Row]) -> int:
    """How many positions of the draft are worth showing."""
    return max(sum(joint >= LEAST for joint, _ in position_rates(row)[:POSITIONS]) for row in rows)


def acceptance_table(rows: Sequence[Row]) -> str:
    """Both rates of every row that drafts, as Markdown; nothing if no row does."""
    drafting, runs = [row for row in rows if row.acceptance], runs_of(rows)
    if not drafting:
        return ""
    count = positions(drafting)
    titles = [
        "method",
        "acceptance rate",
        "mean acceptance length",
        *(str(i + 1) for i in range(count)),
    ]
    cells = []
    for row in drafting:
        rate, length = (
            row.value("acceptance_rate"),
            f"{row.acceptance['mean_acceptance_length']:.2f}",
        )
        rates = [
            f"{joint:.1%} ({conditional:.1%})"
            for joint, conditional in position_rates(row)[:count]
        ]
        first = [name_of(row, runs), MISSING if rate is None else f"{rate:.1%}", length]
        cells.append([*first, *rates, *[MISSING] * (count - len(rates))])
    return markdown(titles, cells, [False] + [True] * (count + 2))


def acceptance_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A record per row and position, in full precision."""
    return [
        {
            "run": run_of(row),
            "label": row.label,
            "position": i,
            "per_position": joint,
            "conditional_per_position": rate,
        }
        for row in rows
        if row.acceptance
        for i, (joint, rate) in enumerate(position_rates(row), 1)
    ]


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """A row per method: facts and figures with full precision; `<figure>_lo`, `_hi`, `_n` and `_p`
    where known.
    """
    records = []
    for row in rows:
        record = {name: value for name in FACTS if (value := getattr(row, name, None)) is not None}
        for name, (value, *ends) in row.figures.items():
            parts = zip(("lo", "hi", "n", "p"), ends if value is not None else ())
            record |= {name: value} | {
                f"{name}_{part}": end for part, end in parts if end is not None
            }
        records.append(record)
    return pd.DataFrame(records)


def csv_text(records: Sequence[dict[str, Any]] | pd.DataFrame) -> str:
    """Records as CSV; nested values as text, missing = empty, and no cell that a spreadsheet would
    run.
    """
    return pd.DataFrame(records).map(csv_cell).to_csv(index=False, lineterminator="\n")


def terminal_table(
    rows: Sequence[Row], width: int | None = None, chosen: Sequence[Column] | None = None
) -> RichTable:
    """The compact table for the terminal, by default of the most important columns, as far as they
    fit ``width``.

    Rows keep the order of their run, the baseline `ar` first. The caption says what columns mean
    and which are missing.
    """
    runs = runs_of(rows)
    rows = sorted(rows, key=lambda row: (runs.index(run_of(row)), row.label != "ar"))
    first, wanted = (
        columns(rows, table) if chosen is None else chosen for table in ("terminal", "md")
    )
    cells = {
        c: [one_line(c.cell(row) if c.key == "speedup" else c.value(row)) for row in rows]
        for c in first
    }
    # a column costs its padding and a divider too
    widths = {c: max(map(len, [c.title + c.arrow, *texts])) + 3 for c, texts in cells.items()}
    while width and sum(widths.values()) > width and len(widths) > 2:
        dispensable = (
            c for key in ("tree_depth", "step_compression") for c in widths if c.key == key
        )
        del widths[next(dispensable, [*widths][-1])]
    notes = glossary([*widths])
    if left_out := [one_line(c.title, 32) for c in wanted if c not in widths]:
        notes.append(f"not shown: {', '.join(left_out)} (lanternbench report writes all columns)")
    caption = Text("; ".join(notes)) if notes else None
    table = RichTable(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
        caption=caption,
        caption_justify="left",
    )
    for c in widths:
        table.add_column(
            Text(c.title + c.arrow), justify="right" if c.numeric else "left", no_wrap=True
        )
    for line in zip(*(cells[c] for c in widths)):
        # Text, not str: a label such as "[red]" must not be read as markup
        table.add_row(*map(Text, line))
    return table


def markdown_escape(text: str, limit: int = 200) -> str:
    """Text that Markdown prints as it stands, on one line."""
    return re.sub(r"[\\|*_`\[\]]", r"\\\g<0>", html.escape(one_line(text, limit), quote=False))


def csv_cell(value: Any) -> Any:
    """The value as a spreadsheet may have it: a leading quote keeps a text such as
    "=HYPERLINK(...)" from running.
    """
    if isinstance(value, dict):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # a reader may take it for the end of a row
    return "'" + text if text.lstrip().startswith(("=", "+", "-", "@")) else text
