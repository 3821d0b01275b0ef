"""What the tables show: one list of columns, as data, for the terminal, Markdown, LaTeX and HTML."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from lanternbench import metrics
from lanternbench.measure.samples import IMPORTED
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summaries import Row
from lanternbench.utils.text import one_line

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """One column: the figure `key` (or a fact of the row), how to title and print it, and which tables carry it."""

    key: str
    title: str
    tex: str
    form: str = ".2f"  # format spec of the number; "text" for words, "yes" for true/false
    better: str = ""  # "higher", "lower" or nothing
    interval: bool = False  # is the interval worth its room?
    views: tuple[str, ...] = ("full",)
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
        found = row.figure(self.key)
        return Estimate(found.p) if self.test else found

    def value(self, row: Row) -> str:
        """The cell without its interval."""
        if self.form == "text":
            return str(getattr(row, self.key, None) or MISSING)
        if self.form == "yes":
            return {True: "yes", False: "no", None: MISSING}[getattr(row, self.key)]
        found = self.figure(row).value
        return MISSING if found is None else self.print(found)

    def bounds(self, row: Row) -> str:
        """The interval as "[lo, hi]", or nothing where there is none."""
        value, low, high, *_ = self.figure(row)
        if not self.interval or low is None or high is None or value is None:
            return ""
        return f"[{self.print(low).rstrip('×')}, {self.print(high).rstrip('×')}]"

    def cell(self, row: Row) -> str:
        """Value and interval, as in "1.83× [1.75, 1.90]"."""
        return f"{self.value(row)} {self.bounds(row)}".strip()

    def print(self, found: float) -> str:
        if self.form.endswith("%"):
            return f"{found:{self.form}}"
        return f"{found:{self.form.rstrip('×')}}" + ("×" if self.form.endswith("×") else "")


ALL = ("full", "md", "tex", "terminal")
LEAN = ("full", "md", "terminal")  # but not in a paper
BATCHED = "batched"  # in every table with a row that has no latency, as those of batches
DISTURBED = "disturbed"  # in every table with a row whose two speedups differ by more than APART
APART = 0.05
BASE = [
    Column("run", "run", "Run", "text", views=ALL),
    Column("label", "method", "Method", "text", views=ALL),
    Column("lossless", "lossless", "Lossless", "yes", views=("full", "md"),
           help="does the method keep the target's distribution?"),
    Column(
        "speedup", "speedup", "Speedup", ".2f×", "higher", True, ALL,
        "against ar, ratio of paired latencies, bootstrap 95 % interval over prompts",
    ),
    Column(
        "robust_speedup", "robust", "Robust speedup", ".2f×", "higher", True, ("full", DISTURBED),
        "robust speedup: against ar, ratio of paired robust latencies",
    ),
    Column(
        "latency_s", "latency (s)", "Latency (s)", ".3f", "lower", True, ("full", "md"),
        "decode time per image: the autoregressive loop only, at batch 1",
    ),
    Column("stated_s", "stated (s)", "Stated (s)", ".3f", "", True, ALL,
           "stated: seconds per image of imported images as their maker states them, not measured here"),
    Column("images_per_s", "images/s", "Images/s", ".3f", "higher", views=("full", BATCHED),
           help="images per second of decoding"),
    Column(
        "accept_len", "τ", r"$\tau$", ".2f", "higher", True, ALL,
        "τ: accepted length, tokens committed per step, bonus token included",
    ),
    Column(
        "step_compression", "step compr.", "Step compr.", ".2f×", "higher", True, LEAN,
        "step compression: tokens / target forwards, prefill included",
    ),
    Column("tree_depth", "depth d̄", r"$\bar d$", ".2f", views=LEAN,
           help="depth d̄: mean depth of the draft tree, positions drafted ahead"),
    Column(
        "fidelity_loss", "fidelity loss", "Fidelity loss", ".3f", "lower", True, ALL,
        "mean over tokens of the total variation between the target's distribution and what the method draws from",
    ),
]  # fmt: skip
DETAIL = [  # shown after the quality metrics
    Column("n", "images", "Images", ".0f", help="number of images behind the row"),
    Column("acceptance_rate", "acceptance rate", "Acc. rate", ".1%", "higher", True,
           help="accepted drafted tokens / drafted positions (mean tree depth), bonus token not counted"),
    Column("first_token_acceptance", "first token", "First token", ".1%", "higher",
           help="first-token acceptance: share of steps whose next token was drafted, by any sibling on a tree"),
    Column("drafter_top1", "drafter top-1", "Drafter top-1", ".1%", "higher", True,
           help="share of tokens where the drafter's likeliest token is the target's"),
    Column("drafter_top3", "drafter top-3", "Drafter top-3", ".1%", "higher", True,
           help="share of tokens where the target's likeliest token is among the drafter's three likeliest"),
    Column("drafter_tv", "TV(p, q)", "TV$(p, q)$", ".3f", "lower", True,
           help="total variation between drafter and target, mean over tokens with drafts"),
    Column("log_prob", "log-prob.", "Log-prob.", ".3f", "higher", True,
           help="mean log-probability of a token under the target, in nats, after guidance and warping"),
    Column("perplexity", "perplexity", "Perplexity", ".2f", "lower", True, help="exp of minus that"),
    Column("entropy", "entropy", "Entropy", ".3f", "", True, help="mean entropy of the target's distribution, in nats"),
    Column("top1_prob", "top-1 prob.", "Top-1 prob.", ".3f", "", True,
           help="mean probability of the target's likeliest token"),
    Column("robust_latency_s", "robust latency (s)", "Robust latency (s)", ".3f", "lower", True,
           help="what other programs disturb least: the CPU time of one thread, else median step time × steps"),
    Column("latency_p50_s", "latency p50 (s)", "Latency p50 (s)", ".3f", "lower", help="median over images"),
    Column("latency_p95_s", "latency p95 (s)", "Latency p95 (s)", ".3f", "lower", help="95th percentile over images"),
    Column("step_p50_s", "step p50 (s)", "Step p50 (s)", ".4f", "lower", help="median time of a step"),
    Column("step_p95_s", "step p95 (s)", "Step p95 (s)", ".4f", "lower", help="95th percentile of step times"),
    Column("step_p99_s", "step p99 (s)", "Step p99 (s)", ".4f", "lower", help="99th percentile of step times"),
    Column("tokens_per_s", "tokens/s", "Tokens/s", ".1f", "higher", help="tokens per second of decoding"),
    Column("end_to_end_s", "end to end (s)", "End to end (s)", ".3f", "lower", True,
           help="from caption to image: text encoder, prefill, decoding, image decoder"),
    Column("end_to_end_speedup", "end-to-end speedup", "End-to-end speedup", ".2f×", "higher", True,
           help="against ar, ratio of paired end-to-end latencies"),
    Column("draft_fraction", "drafting", "Drafting", ".1%", "lower", help="share of a step in the drafter's forwards"),
    Column("overhead_fraction", "overhead", "Overhead", ".1%", "lower", help="share of a step outside model forwards"),
    Column("peak_memory_mb", "memory (MB)", "Memory (MB)", ".0f", "lower",
           help="GPU memory at its peak while the method decoded, all that the run holds included"),
]  # fmt: skip

PAIRED = "two-sided p-value of the paired permutation test against ar, over prompts"


def metric_column(key: str) -> Column:
    """The column of a quality metric, as the metric describes itself; an unknown one keeps its name."""
    found = metrics.column(key)
    better = {True: "higher", False: "lower", None: ""}[found.higher_is_better]
    return Column(key, found.title, tex_escape(found.title), found.form, better, True, ALL)


def metric_keys(rows: Sequence[Row]) -> list[str]:
    """The quality metrics of these rows: every figure that is no column of the base."""
    base = {column.key for column in BASE + DETAIL}
    return [key for key in dict.fromkeys(key for row in rows for key in row.figures) if key not in base]


def disturbed(row: Row) -> bool:
    """Does the speedup of the wall clock differ from the robust one, as other programs make it?"""
    speedup, robust = row.value("speedup"), row.value("robust_speedup")
    return speedup is not None and robust is not None and abs(robust - speedup) > APART * speedup


def columns(rows: Sequence[Row], view: str = "full") -> list[Column]:
    """The columns to show for these rows in "full", "md", "tex" or "terminal"; those without any value are left out."""
    quality = [metric_column(key) for key in metric_keys(rows)]
    tests = [Column(c.key, f"p, {c.title}", f"p, {c.tex}", ".3f", help=PAIRED, test=True) for c in quality]
    every = BASE + quality + tests + DETAIL
    views = {view}
    if any(row.value("latency_s") is None and row.method != IMPORTED for row in rows):
        views.add(BATCHED)
    if any(disturbed(row) for row in rows):
        views.add(DISTURBED)
    return [c for c in every if views & {*c.views} and any(c.value(row) != MISSING for row in rows)]


EXPLAINED = ("stated_s", "accept_len", "step_compression", "tree_depth", "fidelity_loss", "robust_speedup")


def glossary(shown: Sequence[Column]) -> list[str]:
    """What the columns mean whose titles do not say it."""
    return [c.help if ":" in c.help else f"{c.title}: {c.help}" for c in shown if c.key in EXPLAINED]


TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "–": "--", "×": r"$\times$", "λ": r"$\lambda$", "δ": r"$\delta$", "ω": r"$\omega$",
    "ν": r"$\nu$", "β": r"$\beta$", "τ": r"$\tau$", "α": r"$\alpha$", "γ": r"$\gamma$", "·": r"$\cdot$",
    "∞": r"$\infty$",
}  # fmt: skip


def tex_escape(text: str, limit: int = 200) -> str:
    """Text that LaTeX prints as it stands; line ends become blanks, and what its fonts lack becomes "?"."""

    def known(sign: str) -> str:
        if sign in TEX or sign < "\u0180":
            return TEX.get(sign, sign)
        return unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"

    return "".join(map(known, one_line(text, limit)))
