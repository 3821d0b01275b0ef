"""The results as a LaTeX table that fits a paper: chosen columns, names as papers write them, value ± interval."""

from collections.abc import Sequence

from lanternbench.measure.summaries import Row
from lanternbench.report.columns import MISSING, Column, columns, tex_escape
from lanternbench.report.view import paper_name

COLUMN, PAGE = 219.0, 455.0  # points: \\columnwidth and \\textwidth of ACL, the narrowest of two-column venues
SIGN, BETWEEN = 4.7, 6.0  # points of a sign in \\small and between columns, \\tabcolsep being 3 points
ARROWS = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}
PLUS_MINUS = r"$\pm$: the farther end of the 95\,\% bootstrap interval over prompts."


def latex_table(rows: Sequence[Row], caption: str = "", recipe: str = "", fixed: Sequence[Column] | None = None) -> str:
    """A booktabs table (needs \\usepackage{booktabs} and nothing else), all text escaped.

    It is one column wide if it fits, else a page (``table*``). Of columns that it chooses itself the last go until it
    fits a page, and a comment names them; ``fixed`` columns are kept. ``recipe``: how the run was made, as a comment.
    """
    chosen = list(columns(rows, "tex") if fixed is None else fixed)
    left_out: list[str] = []
    while fixed is None and _width(rows, chosen) > PAGE and len(chosen) > 2:
        left_out.insert(0, chosen.pop().key)
    kind = "table" if _width(rows, chosen) <= COLUMN else "table*"
    fix = "; name the columns you want with --columns"
    heads = [c.latex + (r" (\%)" if c.form.endswith("%") else "") + ARROWS[c.better] for c in chosen]
    lines = [
        "% needs \\usepackage{booktabs}",
        *([f"% recipe: {' '.join(recipe.split())}"] if recipe else []),
        *([f"% too wide for a page: {', '.join(left_out)}{fix}"] if left_out else []),
        rf"\begin{{{kind}}}[t]",
        r"\centering\small\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{tex_escape(caption, 1000)}{' ' if caption else ''}{PLUS_MINUS}}}",
        rf"\begin{{tabular}}{{{''.join('r' if c.numeric else 'l' for c in chosen)}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(_cell(c, row) for c in chosen) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


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


def _width(rows: Sequence[Row], table_columns: Sequence[Column]) -> float:
    """About how wide the table is, in points."""
    total = 0.0
    for column in table_columns:
        parts = [value_and_bound(column, row) for row in rows]
        # a bound is set in \\scriptstyle, about three quarters as wide, between thin spaces
        cells = [len(value) + (0.75 * len(bound) + 2.2 if bound else 0) for value, bound in parts]
        head = len(column.title) + (2 if column.better else 0) + (4 if column.form.endswith("%") else 0)
        total += SIGN * max([head, len(MISSING), *cells]) + BETWEEN
    return total
