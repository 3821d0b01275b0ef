"""The results by category of prompt, where prompts have a few of them, as in PartiPrompts."""

from __future__ import annotations

from lanternbench.measure.figures import Figures
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summaries import Row
from lanternbench.report.columns import columns
from lanternbench.report.tables import markdown

MOST = 40  # more categories are no overview


def category_table(figures: Figures, labels: list[str]) -> str:
    """A Markdown table by category and method; empty where prompts have fewer than two categories, or too many."""
    rows = category_rows(figures)
    if not 2 <= len({category for category, _ in rows}) <= MOST:
        return ""
    order = {label: i for i, label in enumerate(labels)}
    rows.sort(key=lambda found: (found[0], order.get(found[1].label, len(order))))
    shown = columns([row for _, row in rows])
    cells = [[category, *(column.cell(row) for column in shown)] for category, row in rows]
    titles = ["Category", *(column.title + column.arrow for column in shown)]
    return markdown(titles, cells, [False, *(column.numeric for column in shown)])


def category_rows(figures: Figures) -> list[tuple[str, Row]]:
    """(category, row) for each category and label: speedup, τ, fidelity loss and each metric; no intervals."""
    names, rows = ["speedup", "accept_len", "fidelity_loss", *figures.metrics], []
    for category, code in figures.categories.items():
        for label in figures.labels if category else ():
            own = figures.of(label) & (figures.codes("category") == code)
            if own.any():
                found = {name: Estimate(value) for name in names if (value := figures.ratio(name, own)) is not None}
                rows.append((str(category), Row(label, figures.methods[label][0], int(own.sum()), found)))
    return rows
