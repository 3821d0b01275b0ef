"""The results as a LaTeX table that fits a paper: chosen columns, names as papers write them, value ± interval."""

from collections.abc import Sequence

from lanternbench.measure.summary import Row
from lanternbench.report.columns import MISSING, Column, columns, tex_escape
from lanternbench.report.page import templates
from lanternbench.report.view import paper_name

COLUMN, PAGE = 219.0, 455.0  # points: \\columnwidth and \\textwidth of ACL, the narrowest of two-column venues
SIGN, BETWEEN = 4.7, 6.0  # points of a sign in \\small and between columns, \\tabcolsep being 3 points
ARROWS = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}


def latex_table(rows: Sequence[Row], caption: str = "", recipe: str = "", fixed: Sequence[Column] | None = None) -> str:
    """A booktabs table (needs \\usepackage{booktabs} and nothing else), all text escaped.

    It is one column wide if it fits, else a page (``table*``). Of columns that it chooses itself the last go until it
    fits a page, and a comment names them; ``fixed`` columns are kept. ``recipe``: how the run was made, as a comment.
    """
    every = list(columns(rows, "tex") if fixed is None else fixed)
    widths = [_width(column, rows) for column in every]
    fits = (n for n in range(len(every), 2, -1) if fixed is not None or sum(widths[:n]) <= PAGE)
    count = next(fits, min(2, len(every)))
    chosen, left_out = every[:count], [column.key for column in every[count:]]
    kind = "table" if sum(widths[:count]) <= COLUMN else "table*"
    heads = [c.latex + (r" (\%)" if c.form.endswith("%") else "") + ARROWS[c.better] for c in chosen]
    cells = [[_cell(c, row) for c in chosen] for row in rows]
    alignment, caption = "".join("r" if c.numeric else "l" for c in chosen), f"{tex_escape(caption, 1000)} ".lstrip()
    facts = {"recipe": " ".join(recipe.split()), "left_out": left_out, "caption": caption}
    template = templates().get_template("table.tex")
    return template.render(facts, kind=kind, alignment=alignment, heads=heads, rows=cells) + "\n"


def value_and_bound(column: Column, row: Row) -> tuple[str, str]:
    """A cell's value, and the distance to the farther end of its interval, both without unit; "" where unknown."""
    if not column.numeric:
        return paper_name(row) if column.key == "label" else column.value(row), ""
    value, low, high, *_ = column.figure(row)
    if value is None:
        return "", ""
    text = column.print(value).rstrip("×%")
    if not column.interval or low is None or high is None:
        return text, ""
    bound = column.print(max(high - value, value - low, 0.0)).rstrip("×%")
    return text, bound if float(bound) else ""


def _cell(column: Column, row: Row) -> str:
    value, bound = value_and_bound(column, row)
    if column.numeric:
        return (rf"${value}{{\scriptstyle\,\pm\,{bound}}}$" if bound else f"${value}$") if value else "--"
    text = tex_escape(value)
    return "{}" + text if text.startswith(("[", "*")) else text  # else the \\ before would take it as its argument


def _width(column: Column, rows: Sequence[Row]) -> float:
    """About how wide a column is, in points."""
    parts = [value_and_bound(column, row) for row in rows]
    # a bound is set in \\scriptstyle, about three quarters as wide, between thin spaces
    cells = [len(value) + (0.75 * len(bound) + 2.2 if bound else 0) for value, bound in parts]
    head = len(column.title) + (2 if column.better else 0) + (4 if column.form.endswith("%") else 0)
    return SIGN * max([head, len(MISSING), *cells]) + BETWEEN
