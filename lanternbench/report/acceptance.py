"""Acceptance by position: a table, and a small plot for every method."""

from __future__ import annotations

from collections.abc import Sequence

from lanternbench.measure.summaries import Row
from lanternbench.report.columns import MISSING
from lanternbench.report.palette import colour
from lanternbench.report.pareto import name_of, runs_of
from lanternbench.report.scene import (
    LINE,
    NARROW,
    QUIET,
    Bar,
    Group,
    Item,
    Line,
    Mark,
    Scene,
    Sign,
    Text,
    legend,
    stroke,
    swatch,
    wrap,
)  # fmt: skip
from lanternbench.report.tables import markdown

INTRO = (
    "Per position i: the share of steps that accepted the first i drafted tokens, and in brackets the share among "
    "those that accepted the i − 1 before. The bonus token is not counted; mean acceptance length counts it (τ)."
)
POSITIONS = 16
LEAST = 5e-4  # a position that fewer steps reach is left out
HEIGHT = 64  # pixels of a small plot


def table(rows: Sequence[Row]) -> str:
    """Both rates of every row that drafts, as Markdown; nothing if no row does."""
    shown = [row for row in rows if row.acceptance]
    if not shown:
        return ""
    count = _positions(shown)
    titles = ["method", "acceptance rate", "mean acceptance length", *(str(i + 1) for i in range(count))]
    runs = runs_of(rows)
    cells = []
    for row in shown:
        rate = row.value("acceptance_rate")
        line = [MISSING if rate is None else f"{rate:.1%}", f"{row.acceptance['mean_acceptance_length']:.2f}"]
        both = list(zip(row.acceptance["per_position"], row.acceptance["conditional_per_position"]))[:count]
        line += [f"{joint:.1%} ({conditional:.1%})" for joint, conditional in both]
        cells.append([name_of(row, runs), *line, *[MISSING] * (count - len(both))])
    return markdown(titles, cells, [False] + [True] * (count + 2))


def records(rows: Sequence[Row]) -> list[dict[str, object]]:
    """A record per row and position, in full precision."""
    return [
        {"run": getattr(row, "run", None), "label": row.label, "position": i + 1, "per_position": joint,
         "conditional_per_position": conditional}
        for row in rows if row.acceptance
        for i, (joint, conditional) in enumerate(zip(row.acceptance["per_position"],
                                                     row.acceptance["conditional_per_position"]))
    ]  # fmt: skip


def panels(rows: Sequence[Row], width: int) -> Scene | None:
    """A small plot per method: bars of per-position rates, a line of conditional ones; None if no row drafts."""
    shown, runs = [row for row in rows if row.acceptance], runs_of(rows)
    if not shown:
        return None
    across = 2 if width <= NARROW else 4
    each = (width - 12 - 14 * (across - 1)) / across
    groups: list[Group] = []
    y = 4.0
    for begin in range(0, len(shown), across):
        line = shown[begin : begin + across]
        titles = [wrap(name_of(row, runs), each) for row in line]
        top = y + LINE * max(map(len, titles)) + 10
        for i, (row, title) in enumerate(zip(line, titles)):
            groups.append(_panel(row, title, 6 + i * (each + 14), each, top))
        y = top + HEIGHT + 24
    signs: list[Sign] = [swatch("accepted, with all before it (joint)", QUIET, "share"),
                         stroke("accepted, given all before it were (conditional)", "curve"),
                         ("across: position in the draft", "", None)]  # fmt: skip
    below, bottom = legend(signs, 6, width - 6, y)
    return Scene("acceptance by position of the draft", width, bottom + 6, (*groups, *below))


def _positions(rows: Sequence[Row]) -> int:
    return max(sum(rate >= LEAST for rate in row.acceptance["per_position"][:POSITIONS]) for row in rows)


def _panel(row: Row, title: Sequence[str], left: float, width: float, top: float) -> Group:
    count = max(5, _positions([row]))  # across
    joint = row.acceptance["per_position"][:count]
    conditional = row.acceptance["conditional_per_position"][:count]
    items: list[Item] = [
        Text(left, top - 11 - LINE * (len(title) - 1 - i), line, "name") for i, line in enumerate(title)
    ]
    for share, text in ((0.0, "0"), (0.5, "½"), (1.0, "1")):
        y = top + (1 - share) * HEIGHT
        items += [Line(((left + 12, y), (left + width, y)), "grid"), Text(left + 9, y + 4, text, "tick", "end")]
    step = (width - 12) / count
    at = [left + 12 + step * (i + 0.5) for i in range(count)]
    items += [Bar(round(x - 0.36 * step, 1), round(top + (1 - rate) * HEIGHT, 1), round(0.72 * step, 1),
                  round(rate * HEIGHT, 1), "share") for x, rate in zip(at, joint)]  # fmt: skip
    points = tuple((round(x, 1), round(top + (1 - rate) * HEIGHT, 1)) for x, rate in zip(at, conditional))
    items += [Line(points, "curve")] if len(points) > 1 else []
    items += [Mark(*point, "small") for point in points]
    every = max(1, -(-count * (12 if count < 10 else 20) // int(width - 12)))
    items += [Text(round(at[i], 1), top + HEIGHT + 14, str(i + 1), "tick", "middle") for i in range(0, count, every)]
    told = ", ".join(f"{i + 1}: {a:.0%} ({b:.0%})" for i, (a, b) in enumerate(zip(joint, conditional)))
    return Group(tuple(items), colour(row.method), f"{row.label}: {told}")
