"""Tables of rows, of their categories and of acceptance, as Markdown, HTML and CSV and for the
terminal.
"""

import html
import re
from collections.abc import Container, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import pandas as pd
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row
from lanternbench.report.columns import (
    COLUMN,
    MISSING,
    Column,
    columns,
    glossary,
)
from lanternbench.report.load import ReportRow, View
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
    "warnings",
)
MOST_CATEGORIES = 40  # more are no overview
POSITIONS = 16  # of a draft
LEAST = 5e-4  # a position that fewer steps reach is left out
FIRST_LEFT_OUT = ("tree_depth", "step_compression")  # if the terminal is too narrow
ACCEPTANCE = (
    "Per position i: the share of steps that accepted the first i drafted tokens, and in brackets"
    " the share among those that accepted the i − 1 before. The bonus token is not counted; mean"
    " acceptance length counts it (τ)."
)


class Cell(NamedTuple):
    """A cell of a sortable table: its text, what to sort by (None: the text), and an interval in
    small print.
    """

    text: str
    value: float | str | None = None
    small: str = ""


class Head(NamedTuple):
    """The head of a column of a table."""

    title: str
    hint: str = ""
    is_text: bool = False


class Table(NamedTuple):
    """A table: sortable on the page, where ``folded`` columns are hidden by default."""

    heads: list[Head]
    rows: list[list[Cell]]
    folded: Sequence[int] = ()
    dispensable: Sequence[int] = ()  # the first to go if a table is too wide
    tall: bool = False

    def markdown(self) -> str:
        cells = [[f"{cell.text} {cell.small}".strip() for cell in row] for row in self.rows]
        titles = [head.title for head in self.heads]
        return markdown(titles, cells, [not head.is_text for head in self.heads])


def figure_cell(column: Column, row: Row) -> Cell:
    """Return a row's cell, with its interval in small print."""
    if not column.numeric:
        return Cell(column.value(row))
    value = column.figure(row).value
    return Cell(column.value(row), "" if value is None else value, column.bounds(row))


def column_head(column: Column) -> Head:
    return Head(column.title + column.arrow, column.help, not column.numeric)


def figure_table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    """Return a line per row and a column per figure."""
    lines = [[figure_cell(column, row) for column in columns] for row in rows]
    return Table(list(map(column_head, columns)), lines)


def table_of(lines: Sequence[Mapping[str, Cell]], words: Container[str]) -> Table:
    """Return a table of lines, which have cells by title; the columns ``words`` hold words."""
    titles = lines[0] if lines else ()
    heads = [Head(title, is_text=title in words) for title in titles]
    return Table(heads, [list(line.values()) for line in lines], tall=True)


def markdown(titles: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Return a Markdown table; ``right`` marks right-aligned columns.  All text is escaped."""
    rule = "|".join(" ---: " if is_right else " :--- " for is_right in right)
    head, *lines = [" | ".join(map(markdown_escape, line)) for line in [titles, *cells]]
    return f"| {head} |\n|{rule}|\n" + "".join(f"| {line} |\n" for line in lines)


def category_table(figures: Figures, names: Mapping[str, str]) -> Table:
    """Return a table by category and method, the methods in the order of ``names``, which
    are given by label; empty if prompts have fewer than two categories, or too many.
    """
    lines = category_rows(figures, names)
    if not 2 <= len({category for category, _ in lines}) <= MOST_CATEGORIES:
        return Table([], [])
    rows = [row for _, row in lines]
    table = figure_table(rows, columns(rows))
    heads = [Head("Category", is_text=True), *table.heads]
    cells = [[Cell(category), *line] for (category, _), line in zip(lines, table.rows)]
    return Table(heads, cells)


def category_rows(figures: Figures, names: Mapping[str, str]) -> list[tuple[str, Row]]:
    """Return (category, row) for each category and method: speedup, τ, fidelity loss and each
    metric, without intervals.
    """
    keys = ["speedup", "accept_len", "fidelity_loss", *figures.metrics]
    rows = []
    for category, label in product(sorted(filter(None, figures.categories)), names):
        of_category = figures.codes("category") == figures.categories[category]
        samples = figures.of(label) & of_category
        if samples.any():
            values = {}
            for key in keys:
                value = figures.ratio(key, samples)
                if value is not None:
                    values[key] = Estimate(value)
            method, _ = figures.methods[label]
            count = int(samples.sum())
            row = Row(label=names[label], method=method, n=count, figures=values)
            rows.append((category, row))
    return rows


def position_rates(row: Row) -> list[tuple[float, float]]:
    """Return (joint, conditional) rates of acceptance by position of the draft."""
    return list(zip(row.acceptance["per_position"], row.acceptance["conditional_per_position"]))


def positions(rows: Sequence[Row]) -> int:
    """Return the number of positions of the draft that are worth showing."""
    return max(sum(joint >= LEAST for joint, _ in position_rates(row)[:POSITIONS]) for row in rows)


def acceptance_table(rows: Sequence[ReportRow]) -> str:
    """Return both rates of every row that drafts, as Markdown; nothing if no row does."""
    drafting = [row for row in rows if row.acceptance]
    if not drafting:
        return ""
    count = positions(drafting)
    titles = ["method", "acceptance rate", "mean acceptance length"]
    titles += [str(position) for position in range(1, count + 1)]
    cells = []
    for row in drafting:
        line = [
            row.name,
            COLUMN["acceptance_rate"].value(row),
            f"{row.acceptance['mean_acceptance_length']:.2f}",
        ]
        line += [f"{joint:.1%} ({given:.1%})" for joint, given in position_rates(row)[:count]]
        line += [MISSING] * (len(titles) - len(line))
        cells.append(line)
    return markdown(titles, cells, [False] + [True] * (count + 2))


def acceptance_page(rows: Sequence[ReportRow]) -> str:
    """Return ``acceptance_table`` with what its figures mean; nothing if no row drafts."""
    rates = acceptance_table(rows)
    return f"{ACCEPTANCE}\n\n{rates}" if rates else ""


class PositionRate(NamedTuple):
    """The acceptance rates of a row at a position of the draft, in full precision."""

    run: str | None
    label: str
    position: int
    per_position: float
    conditional_per_position: float


def acceptance_records(rows: Sequence[ReportRow]) -> list[PositionRate]:
    records = []
    for row in rows:
        if row.acceptance:
            for position, rates in enumerate(position_rates(row), 1):
                records.append(PositionRate(row.run, row.label, position, *rates))
    return records


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a row per method: facts and figures with full precision; ``<figure>_lo``, ``_hi``,
    ``_n`` and ``_p`` if known.
    """
    records = []
    for row in rows:
        facts = {name: getattr(row, name, None) for name in FACTS}
        record = {name: fact for name, fact in facts.items() if fact is not None}
        for name, estimate in row.figures.items():
            record[name] = estimate.value
            if estimate.value is not None:
                parts = zip(("lo", "hi", "n", "p"), estimate[1:])
                record |= {f"{name}_{part}": end for part, end in parts if end is not None}
        records.append(record)
    return pd.DataFrame(records)


def csv_text(records: Sequence[object] | pd.DataFrame, warnings: Sequence[str] = ()) -> str:
    """Return records as CSV, "" without any; nested values as text, missing = empty, and no cell
    that a spreadsheet would run.

    ``warnings``: sentences that every record has in a last column.
    """
    frame = pd.DataFrame(records)
    if frame.empty:
        return ""
    if warnings:
        frame["warnings"] = " ".join(warnings)
    return frame.map(csv_cell).to_csv(index=False, lineterminator="\n")


def terminal_table(
    rows: Sequence[ReportRow],
    width: int | None = None,
    view: View = View(),  # noqa: B008
) -> RichTable:
    """Return the compact table for the terminal: the columns that ``view`` names, or the most
    important ones, that fit ``width``.

    Rows keep the order of their run, the baseline `ar` first.  The caption says what columns mean
    and which are missing.
    """
    rows = sorted(rows, key=lambda row: (row.place, row.label != BASELINE))
    wanted = view.columns_for(rows, "md")
    shown = fitting(rows, view.columns_for(rows, "terminal"), width)
    notes = glossary(shown)
    left_out = [one_line(column.title, 32) for column in wanted if column not in shown]
    if left_out:
        notes.append(f"not shown: {', '.join(left_out)} (lanternbench report writes all columns)")
    table = RichTable(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
        caption=Text("; ".join(notes)) if notes else None,
        caption_justify="left",
    )
    # Text, not str: a label such as "[red]" must not be read as markup
    for column in shown:
        title = Text(column.title + column.arrow)
        table.add_column(title, justify="right" if column.numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(terminal_cell(column, row)) for column in shown))
    return table


def terminal_cell(column: Column, row: Row) -> str:
    """Return a cell's text, with its interval if it is the speedup's."""
    return one_line(column.cell(row) if column.key == "speedup" else column.value(row))


def fitting(rows: Sequence[Row], wanted: Sequence[Column], width: int | None) -> list[Column]:
    """Return the columns that fit ``width``, at least two; the last ones are left out after
    ``FIRST_LEFT_OUT``.
    """
    widths: dict[Column, int] = {}
    for column in wanted:
        texts = [column.title + column.arrow, *(terminal_cell(column, row) for row in rows)]
        widths[column] = max(map(len, texts)) + 3  # its padding and a divider
    dispensable = [column for key in FIRST_LEFT_OUT for column in wanted if column.key == key]
    dispensable += [column for column in reversed(wanted) if column not in dispensable]
    while width and sum(widths.values()) > width and len(widths) > 2:
        del widths[dispensable.pop(0)]
    return list(widths)


def markdown_escape(text: str, limit: int = 200) -> str:
    """Return text that Markdown prints as it is, on one line."""
    return re.sub(r"[\\|*_`\[\]]", r"\\\g<0>", html.escape(one_line(text, limit), quote=False))


def csv_cell(value: object) -> object:
    """Return the value as a spreadsheet may have it: a leading quote keeps a text such as
    "=HYPERLINK(...)" from running.
    """
    if isinstance(value, dict):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # a reader may take it for the end of a row
    return "'" + text if text.lstrip().startswith(("=", "+", "-", "@")) else text
