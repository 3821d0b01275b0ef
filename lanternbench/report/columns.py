"""What the tables show: one list of columns, columns.csv, for the terminal, Markdown, LaTeX and
HTML.
"""

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
    """One column: the figure `key` (or a fact of the row), how to title and print it, and which
    tables carry it.
    """

    key: str
    title: str
    tex: str = ""  # the title in LaTeX, where that is not the title with a capital letter
    form: str = ".2f"  # format spec of the number; "text" for words, "yes" for true/false
    better: str = ""  # "higher", "lower" or nothing
    interval: bool | str = False  # does the table show the interval?
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
        """What the column shows of a row, where that is a number."""
        if self.key == "n":
            return Estimate(row.n)
        estimate = row.figure(self.key)
        return Estimate(estimate.p) if self.test else estimate

    def value(self, row: Row) -> str:
        """The cell without its interval."""
        if self.form == "text":
            return str(getattr(row, self.key, None) or MISSING)
        if self.form == "yes":
            return {True: "yes", False: "no", None: MISSING}[getattr(row, self.key)]
        value = self.figure(row).value
        return MISSING if value is None else self.print(value)

    def bounds(self, row: Row) -> str:
        """The interval as "[lo, hi]", or "" without one."""
        value, low, high, *_ = self.figure(row)
        if not self.interval or low is None or high is None or value is None:
            return ""
        return f"[{self.print(low).rstrip('×')}, {self.print(high).rstrip('×')}]"

    def cell(self, row: Row) -> str:
        """Value and interval, as in "1.83× [1.75, 1.90]"."""
        return f"{self.value(row)} {self.bounds(row)}".strip()

    def print(self, value: float) -> str:
        return f"{value:{self.form.rstrip('×')}}" + ("×" if self.form.endswith("×") else "")


ALL = "full md tex terminal"
APART = 0.05  # by how much two speedups of a row differ where the clock was disturbed
_FIELDS = csv.DictReader(
    files("lanternbench.report").joinpath("columns.csv").read_text("utf-8").splitlines()
)
_EVERY = [Column(**fields) for fields in _FIELDS]  # type: ignore[arg-type]
_FIRST = [column.key for column in _EVERY].index("n")
BASE, DETAIL = _EVERY[:_FIRST], _EVERY[_FIRST:]  # the quality metrics stand between them
COLUMN = {column.key: column for column in BASE}
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
    """The column of a quality metric, as the metric describes itself; an unknown one keeps its
    name.
    """
    metric = metrics.column(key)
    better = {True: "higher", False: "lower", None: ""}[metric.higher_is_better]
    return Column(key, metric.title, tex_escape(metric.title), metric.form, better, True, ALL)


def metric_keys(rows: Sequence[Row]) -> list[str]:
    """The quality metrics of these rows: every figure that is no column of the base."""
    base = {column.key for column in BASE + DETAIL}
    return [
        key for key in dict.fromkeys(key for row in rows for key in row.figures) if key not in base
    ]


def disturbed(row: Row) -> bool:
    """Does the speedup of the wall clock differ from the robust one, as other programs make it?"""
    speedup, robust = row.value("speedup"), row.value("robust_speedup")
    return speedup is not None and robust is not None and abs(robust - speedup) > APART * speedup


def columns(rows: Sequence[Row], view: str = "full") -> list[Column]:
    """The columns to show for these rows in "full", "md", "tex" or "terminal"; those without any
    value are left out.
    """
    quality = [metric_column(key) for key in metric_keys(rows)]
    tests = [
        Column(c.key, f"p, {c.title}", f"p, {c.tex}", ".3f", help=PAIRED, test=True)
        for c in quality
    ]
    batched = any(row.value("latency_s") is None and row.method != IMPORTED for row in rows)
    views = {
        view,
        "batched" if batched else view,
        "disturbed" if any(map(disturbed, rows)) else view,
    }
    every = BASE + quality + tests + DETAIL
    return [
        c
        for c in every
        if views & {*c.views.split()} and any(c.value(row) != MISSING for row in rows)
    ]


def glossary(columns: Sequence[Column]) -> list[str]:
    """What the columns mean whose titles do not say it."""
    return [
        c.help if ":" in c.help else f"{c.title}: {c.help}" for c in columns if c.key in EXPLAINED
    ]


TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "–": "--", "×": r"$\times$", "λ": r"$\lambda$", "δ": r"$\delta$", "ω": r"$\omega$",
    "ν": r"$\nu$", "β": r"$\beta$", "τ": r"$\tau$", "α": r"$\alpha$", "γ": r"$\gamma$", "·": r"$\cdot$",
    "θ": r"$\theta$", "ε": r"$\epsilon$", "ρ": r"$\rho$", "∞": r"$\infty$",
}  # fmt: skip


def tex_escape(text: str, limit: int = 200) -> str:
    """Text that LaTeX prints as it stands; line ends become blanks, and what its fonts lack
    becomes "?".
    """
    line = one_line(text, limit)
    beyond = {sign for sign in line if sign >= "\u0180"} - TEX.keys()
    plain = {
        ord(s): unicodedata.normalize("NFKD", s).encode("ascii", "ignore").decode() or "?"
        for s in beyond
    }
    return line.translate(plain).translate({ord(sign): text for sign, text in TEX.items()})


def run_of(row: Row) -> str | None:
    """The name of the run that a row is of, where there are several."""
    return getattr(row, "run", None)


def runs_of(rows: Sequence[Row]) -> list[str | None]:
    """The names of the runs that rows are of, in their order."""
    return list(dict.fromkeys(map(run_of, rows)))


def name_of(row: Row, runs: Sequence[str | None]) -> str:
    """A row's label, with its run's number where there are several."""
    return one_line(row.label, 60) + (f" ({runs.index(run_of(row)) + 1})" if len(runs) > 1 else "")
