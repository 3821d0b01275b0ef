"""The columns of all tables: one list, columns.csv, for the terminal, Markdown, LaTeX and HTML."""

import csv
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from lanternbench import metrics
from lanternbench.measure.samples import IMPORTED
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row
from lanternbench.utils.text import one_line

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """One column: the figure ``key`` (or a fact of the row), its title and format, and which
    tables have it.
    """

    key: str
    title: str
    tex: str = ""  # the title in LaTeX, unless it is the title with a capital letter
    form: str = ".2f"  # format of the number; "text" for words, "yes" for true/false
    better: str = ""  # "higher", "lower" or nothing
    interval: bool | str = False  # whether the table shows the interval
    views: str = "full"
    help: str = ""
    test: bool = False  # the figure's p-value instead of its value

    @property
    def arrow(self) -> str:
        return {"higher": "\u00a0↑", "lower": "\u00a0↓"}.get(self.better, "")

    @property
    def numeric(self) -> bool:
        return self.form not in ("text", "yes")

    def figure(self, row: Row) -> Estimate:
        """Return what the column shows of a row, if that is a number."""
        if self.key == "n":
            return Estimate(row.n)
        estimate = row.figure(self.key)
        return Estimate(estimate.p) if self.test else estimate

    def value(self, row: Row) -> str:
        """Return the cell without its interval."""
        if self.form == "text":
            return str(getattr(row, self.key, None) or MISSING)
        if self.form == "yes":
            return {True: "yes", False: "no", None: MISSING}[getattr(row, self.key)]
        return self.print(self.figure(row).value)

    def bounds(self, row: Row) -> str:
        """Return the interval as "[lo, hi]", or "" without one."""
        _, low, high, *_ = self.figure(row)
        if not self.interval or low is None or high is None:
            return ""
        return f"[{self.print(low)}, {self.print(high)}]".replace("×", "")

    def cell(self, row: Row) -> str:
        """Return value and interval, as in "1.83× [1.75, 1.90]"."""
        return f"{self.value(row)} {self.bounds(row)}".strip()

    def print(self, value: float | None) -> str:
        if value is None:
            return MISSING
        number, times, _ = self.form.partition("×")
        return f"{value:{number}}{times}"


ALL = "full md tex terminal"
APART = 0.05  # by how much two speedups of a row differ if the timing was disturbed
RENDERED = 0.2  # the image decoder's share of the whole time that makes it worth a column
_FIELDS = csv.DictReader(
    files("lanternbench.report").joinpath("columns.csv").read_text("utf-8").splitlines()
)
_EVERY = [Column(**fields) for fields in _FIELDS]  # type: ignore[arg-type]
_FIRST = [column.key for column in _EVERY].index("n")
# the quality metrics are between them
BASE = _EVERY[:_FIRST]
DETAIL = _EVERY[_FIRST:]
COLUMN = {column.key: column for column in _EVERY}
PAIRED = "two-sided p-value of the paired permutation test against ar, over prompts"
EXPLAINED = (
    "stated_s",
    "accept_len",
    "step_compression",
    "tree_depth",
    "fidelity_loss",
    "robust_speedup",
)


def metric_column(key: str) -> Column:
    """Return the column of a figure; a quality metric describes itself, and an unknown one keeps
    its name.
    """
    if key in COLUMN:
        return COLUMN[key]
    metric = metrics.column(key)
    better = {True: "higher", False: "lower", None: ""}[metric.higher_is_better]
    return Column(key, metric.title, tex_escape(metric.title), metric.form, better, True, ALL)


def metric_keys(rows: Sequence[Row]) -> list[str]:
    """Return the quality metrics of these rows: every figure without a column of its own."""
    keys = dict.fromkeys(key for row in rows for key in row.figures)
    return [key for key in keys if key not in COLUMN]


def disturbed(row: Row) -> bool:
    """Return whether the speedup differs from the robust one, a sign of other programs."""
    speedup = row.value("speedup")
    robust = row.value("robust_speedup")
    return speedup is not None and robust is not None and abs(robust - speedup) > APART * speedup


def slowly_rendered(row: Row) -> bool:
    """Return whether the image decoder takes a large part of the time, as diffusion models do."""
    render = row.value("render_s")
    whole = row.value("end_to_end_s")
    return render is not None and whole is not None and render > RENDERED * whole


def columns(rows: Sequence[Row], view: str = "full") -> list[Column]:
    """Return the columns to show for these rows in "full", "md", "tex" or "terminal"; those
    without any value are left out.
    """
    quality = [metric_column(key) for key in metric_keys(rows)]
    tests = []
    for column in quality:
        titles = (f"p, {column.title}", f"p, {column.tex}")
        tests.append(Column(column.key, *titles, ".3f", help=PAIRED, test=True))
    views = {view}
    if any(row.value("latency_s") is None and row.method != IMPORTED for row in rows):
        views.add("batched")
    if any(map(disturbed, rows)):
        views.add("disturbed")
    if any(map(slowly_rendered, rows)):
        views.add("rendered")
    every = [*BASE, *quality, *tests, *DETAIL]
    wanted = [column for column in every if not views.isdisjoint(column.views.split())]
    return [column for column in wanted if any(column.value(row) != MISSING for row in rows)]


def glossary(columns: Sequence[Column]) -> list[str]:
    """Return the meaning of columns whose titles do not say it."""
    meanings = []
    for column in columns:
        if column.key in EXPLAINED:
            has_title = ":" in column.help
            meanings.append(column.help if has_title else f"{column.title}: {column.help}")
    return meanings


TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "×": r"$\times$",
    "λ": r"$\lambda$",
    "δ": r"$\delta$",
    "ω": r"$\omega$",
    "ν": r"$\nu$",
    "β": r"$\beta$",
    "τ": r"$\tau$",
    "α": r"$\alpha$",
    "γ": r"$\gamma$",
    "·": r"$\cdot$",
    "θ": r"$\theta$",
    "ε": r"$\epsilon$",
    "ρ": r"$\rho$",
    "∞": r"$\infty$",
}


def tex_escape(text: str, limit: int = 200) -> str:
    """Return text that LaTeX prints as it is; line ends become blanks, and what its fonts lack
    becomes "?".
    """
    plain = "".join(map(in_tex_fonts, one_line(text, limit)))
    return plain.translate({ord(character): tex for character, tex in TEX.items()})


def in_tex_fonts(character: str) -> str:
    """Return the character, or its nearest form in ASCII if LaTeX's fonts lack it."""
    if character < "\u0180" or character in TEX:
        return character
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"
