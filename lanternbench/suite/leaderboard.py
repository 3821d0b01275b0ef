"""The leaderboard: submissions of a folder by target and device, as Markdown and as a page."""

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from jinja2 import ChoiceLoader, PackageLoader

from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.summary import Row
from lanternbench.report.columns import (
    COLUMN,
    MISSING,
    Column,
    metric_column,
    metric_keys,
)
from lanternbench.report.load import Run
from lanternbench.report.rendering import templates
from lanternbench.report.tables import Cell, Head, Table, column_head, figure_cell, markdown
from lanternbench.suite.protocol import Submission, judged, ms_per_token, of_stamp, read
from lanternbench.utils.json_values import config_hash
from lanternbench.utils.text import one_line

NAMES = ("LEADERBOARD.md", "leaderboard.html")
LABEL = 20  # signs of a method in Markdown: its tables fit 80 columns
AR = Column(
    "ar_ms",
    "AR ms/token",
    "",
    ".2f",
    "",
    True,
    help="milliseconds of an autoregressive token in the same run",
)
SPEEDUP, TAU, LOSS = (COLUMN[key] for key in ("speedup", "accept_len", "fidelity_loss"))
SHORT = {AR.key: "AR ms", "fidelity_loss": "loss"}  # titles in Markdown


class Entry(NamedTuple):
    """A submission that fits, and its run, named after the file, with the rows that its samples
    give.
    """

    submission: Submission
    run: Run

    @property
    def about(self) -> list[str]:
        """Facts that a reader needs to compare it with another."""
        environment, weights = self.run.record.environment, self.run.weights
        load = self.submission.clock.get("load")
        baseline = next((row for row in self.run.rows if row.label == BASELINE), None)
        share = None if baseline is None else baseline.value("bandwidth_share")
        facts = {
            "": f"{environment.dtype}, {environment.compile}, {environment.threads} CPU threads",
            "torch": environment.torch,
            "lanternbench": environment.lanternbench,
            "commit": (environment.commit or MISSING)[:12],
            "weights": weights.get("target") or weights.get("model") or MISSING,
            "ar reads at": None if share is None else f"{share:.0%} of the bandwidth",
            "load": None if load is None else f"{load:.1f} on {environment.cores} cores",
            "measured": self.submission.run.created[:10],
        }
        return [f"{name} {value}".strip() for name, value in facts.items() if value is not None]


class Line(NamedTuple):
    """A line of a board: its rank, the number of its entry, and its row."""

    rank: int
    file: int
    row: Row

    @property
    def speedup(self) -> float:
        return self.row.value("speedup") or 0.0


class Board(NamedTuple):
    """The entries of one suite on one device, in the order of their files."""

    suite: str
    device: str
    entries: list[Entry]

    @property
    def recipe(self) -> str:
        """The settings that the suite froze."""
        protocol = of_stamp(self.suite)
        return protocol.recipe if protocol else MISSING

    @property
    def lines(self) -> list[Line]:
        """The rows of every method but the baseline, the fastest first, without ranks."""
        lines = []
        for number, entry in enumerate(self.entries, 1):
            ar = ms_per_token(entry.run.rows)
            for row in entry.run.rows:
                if row.label != BASELINE:
                    figures = row.figures | {AR.key: ar}
                    lines.append(Line(0, number, row.model_copy(update={"figures": figures})))
        return sorted(lines, key=lambda line: (-line.speedup, line.row.label, line.file))

    @property
    def rankings(self) -> dict[str, list[Line]]:
        """The lossless methods and the others, ranked separately, by title."""
        lossless = [line for line in self.lines if line.row.lossless]
        relaxed = [line for line in self.lines if not line.row.lossless]
        titles = {"Lossless": ranked(lossless), "Relaxed": ranked(relaxed)}
        return {title: lines for title, lines in titles.items() if lines}


def ranked(lines: Sequence[Line]) -> list[Line]:
    """Return lines, the fastest first, with ranks; those whose speedup's interval overlaps that of
    the first of a rank share it.
    """
    found: list[Line] = []
    rank = 1
    lowest = inf
    for place, line in enumerate(lines, 1):
        speedup = line.row.figure("speedup")
        highest = line.speedup if speedup.hi is None else speedup.hi
        if place == 1 or highest < lowest:
            rank = place
            lowest = line.speedup if speedup.lo is None else speedup.lo
        found.append(line._replace(rank=rank))
    return found


def read_folder(folder: Path) -> tuple[list[Entry], dict[str, list[str]]]:
    """Return the submissions that fit, and by file the reasons why the others do not."""
    entries = []
    refused = {}
    files: dict[str, str] = {}  # by the digest of their samples
    for path in sorted(folder.glob("*.json")):
        try:
            submission = read(path)
            summary, reasons = judged(submission)
        except UserError as error:
            refused[path.name] = [str(error)]
            continue
        first = files.setdefault(config_hash(submission.samples), path.name)
        if first != path.name:
            reasons = [*reasons, f"its samples are those of {first}"]
        if summary is None or reasons:
            refused[path.name] = reasons
        else:
            run = Run(Path(path.name), submission.run, summary.rows, [])
            entries.append(Entry(submission, run))
    return entries, refused


def boards(entries: Sequence[Entry]) -> list[Board]:
    """Return the boards by suite, then by device."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.submission.suite, entry.run.hardware), []).append(entry)
    return [Board(suite, device, group) for (suite, device), group in sorted(groups.items())]


def markdown_page(boards: Sequence[Board]) -> str:
    """LEADERBOARD.md: no line of text over 80 columns, no table wider."""
    return _rendered("leaderboard.md", boards, _brief_table)


def html_page(boards: Sequence[Board]) -> str:
    """One file without network: sortable tables for each suite and device."""
    return _rendered("leaderboard.html", boards, _table)


def shown(lines: Sequence[Line]) -> list[Column]:
    """Return the columns after the speedup: the loss of relaxed methods, and the first metric."""
    rows = [line.row for line in lines]
    keys = [key for key in metric_keys(rows) if key != AR.key]
    quality = [metric_column(key) for key in keys[:1]]
    if all(row.lossless for row in rows):
        return [AR, TAU, *quality]
    return [LOSS, AR, TAU, *quality]


def _brief_table(lines: Sequence[Line]) -> str:
    """Return a ranking as Markdown."""
    chosen = shown(lines)
    titles = [SHORT.get(column.key, column.title) + column.arrow for column in chosen]
    cells = []
    for rank, file, row in lines:
        figures = [column.value(row) for column in chosen]
        label = one_line(row.label, LABEL)
        cells.append([str(rank), label, half_interval(row), *figures, str(file)])
    titles = ["", "method", "speedup ↑", *titles, "file"]
    return markdown(titles, cells, [title != "method" for title in titles])


def half_interval(row: Row) -> str:
    """Return the speedup ± the distance to the farther end of its interval."""
    value, lo, hi, *_ = row.figure("speedup")
    if value is None or lo is None or hi is None:
        return SPEEDUP.value(row)
    return f"{value:.2f}× ± {max(hi - value, value - lo):.2f}"


def _table(lines: Sequence[Line]) -> Table:
    """Return a ranking as a table; on a narrow screen its last columns are folded."""
    chosen = [SPEEDUP, *shown(lines)]
    cells = []
    for rank, file, row in lines:
        figures = [figure_cell(column, row) for column in chosen]
        cells.append([Cell(row.label), Cell(str(rank), rank), *figures, Cell(str(file), file)])
    heads = [
        Head("method", is_text=True),
        Head("rank", "methods of overlapping intervals share a rank"),
        *map(column_head, chosen),
        Head("file", "number of the submission below"),
    ]
    return Table(heads, cells, dispensable=range(3, len(heads)))


def _rendered(
    name: str, boards: Sequence[Board], table: Callable[[Sequence[Line]], str | Table]
) -> str:
    environment = templates()
    environment.loader = ChoiceLoader(
        [PackageLoader("lanternbench.suite"), PackageLoader("lanternbench.report")]
    )
    pages = []
    for board in boards:
        tables = {title: table(lines) for title, lines in board.rankings.items()}
        pages.append((board, tables))
    return environment.get_template(name).render(boards=pages)
