"""A table of results as LaTeX, as wide as a paper's column or page."""

from collections.abc import Sequence
from typing import NamedTuple

from lanternbench.report.columns import MISSING, Column, tex_escape
from lanternbench.report.load import ReportRow, View, intervals_of, paper_name
from lanternbench.report.rendering import templates

# points: \\columnwidth and \\textwidth of ACL, the narrowest of two-column venues
COLUMN, PAGE = 219.0, 455.0
# points of a character in \\small and between columns, \\tabcolsep being 3 points
CHARACTER, BETWEEN = 4.7, 6.0
ARROWS = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}


class TexCell(NamedTuple):
    """A cell as LaTeX, and about how many characters wide it is."""

    tex: str
    width: float


def latex_table(
    rows: Sequence[ReportRow],
    caption: str = "",
    recipe: str = "",
    view: View = View(),  # noqa: B008
) -> str:
    """Return a booktabs table (needs \\usepackage{booktabs} and nothing else), all text escaped.

    It is one column wide if it fits, else a page (``table*``). Of columns that it chooses itself
    the last go until it fits a page, and a comment names them; those that ``view`` names are kept.
    ``recipe``: how the run was made, as a comment.
    """
    chosen = view.columns_for(rows, "tex")
    cells = [[tex_head(column), *(tex_cell(column, row) for row in rows)] for column in chosen]
    widths = [CHARACTER * max(cell.width for cell in each) + BETWEEN for each in cells]
    left_out: list[str] = []
    while not view.columns and sum(widths) > PAGE and len(chosen) > 2:
        left_out.insert(0, chosen.pop().key)
        widths.pop()
    head, *lines = zip(*([cell.tex for cell in each] for each in cells[: len(chosen)]))
    template = templates().get_template("table.tex")
    text = template.render(
        kind="table" if sum(widths) <= COLUMN else "table*",
        alignment="".join("r" if column.numeric else "l" for column in chosen),
        caption=f"{tex_escape(caption, 4000)} ".lstrip(),
        recipe=" ".join(recipe.split()),
        left_out=left_out,
        intervals=tex_escape(intervals_of(rows)),
        heads=head,
        rows=lines,
    )
    return f"{text}\n"


def tex_head(column: Column) -> TexCell:
    title = column.tex or tex_escape(column.title[:1].upper() + column.title[1:])
    width = len(column.title)
    if column.form.endswith("%"):
        title += r" (\%)"
        width += 4
    if column.better:
        width += 2
    return TexCell(title + ARROWS[column.better], width)


def tex_cell(column: Column, row: ReportRow) -> TexCell:
    """Return a figure ± the distance to the farther end of its interval, both without unit."""
    if not column.numeric:
        words = paper_name(row) if column.key == "label" else column.value(row)
        text = tex_escape(words)
        # else the \\ before takes it
        return TexCell("{}" + text if text.startswith(("[", "*")) else text, len(words))
    value, low, high, *_ = column.figure(row)
    if value is None:
        return TexCell("--", len(MISSING))
    number = column.print(value).rstrip("×%")
    if not column.interval or low is None or high is None:
        return TexCell(f"${number}$", len(number))
    bound = column.print(max(high - value, value - low, 0.0)).rstrip("×%")
    if not float(bound):
        return TexCell(f"${number}$", len(number))
    # a bound is set in \\scriptstyle, about three quarters as wide, between thin spaces
    width = len(number) + 0.75 * len(bound) + 2.2
    return TexCell(rf"${number}{{\scriptstyle\,\pm\,{bound}}}$", width)
