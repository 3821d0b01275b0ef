"""The leaderboard: submissions of a folder by target and device, as Markdown and as a page."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, PackageLoader

from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.summary import Row
from lanternbench.report.columns import BASE, MISSING, Column, columns
from lanternbench.report.load import Run
from lanternbench.report.tables import Cell, Head, Table, column_head, figure_cell, markdown
from lanternbench.report.write import templates
from lanternbench.suite.protocol import Submission, judged, ms_per_token, of_stamp, read
from lanternbench.utils.text import one_line

NAMES = ("LEADERBOARD.md", "leaderboard.html")
LABEL = 25  # signs of a method in Markdown: its tables fit 80 columns
_ONE = {c.key: c for c in BASE}
AR = Column(
    "ar_ms",
    "AR ms/token",
    "",
    ".2f",
    "",
    True,
    help="milliseconds of an autoregressive token in the same run",
)
BRIEF = (AR, _ONE["accept_len"], _ONE["fidelity_loss"])


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
        facts = {
            "": f"{environment.dtype}, {environment.compile}, {environment.threads} CPU threads",
            "torch": environment.torch,
            "lanternbench": environment.lanternbench,
            "commit": (environment.commit or MISSING)[:12],
            "weights": weights.get("target") or weights.get("model") or MISSING,
            "load": None if load is None else f"{load:.1f} on {environment.cores} cores",
            "measured": self.submission.run.created[:10],
        }
        return [f"{name} {value}".strip() for name, value in facts.items() if value is not None]


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
    def lines(self) -> list[tuple[int, Row]]:
        """(number of its entry, row) of every method but the baseline, the fastest first."""
        lines = []
        for number, entry in enumerate(self.entries, 1):
            ar = ms_per_token(entry.run.rows)
            for row in entry.run.rows:
                if row.label != BASELINE:
                    figures = row.figures | {AR.key: ar}
                    lines.append((number, row.model_copy(update={"figures": figures})))
        lines.sort(key=lambda line: (line[1].label, line[0]))
        return sorted(lines, key=lambda line: line[1].value("speedup") or 0.0, reverse=True)


def read_folder(folder: Path) -> tuple[list[Entry], dict[str, list[str]]]:
    """Return the submissions that fit, and by file the reasons why the others do not."""
    entries = []
    refused = {}
    for path in sorted(folder.glob("*.json")):
        try:
            submission = read(path)
            summary, reasons = judged(submission)
        except UserError as error:
            summary, reasons = None, [str(error)]
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
    titles = ["method", "speedup ↑", "AR ms", "τ ↑", "loss ↓", "file"]
    is_right = [title != "method" for title in titles]
    tables = []
    for board in boards:
        lines = []
        for number, row in board.lines:
            brief = [column.value(row) for column in BRIEF]
            label = one_line(row.label, LABEL)
            lines.append([label, _ONE["speedup"].cell(row), *brief, str(number)])
        tables.append((board, markdown(titles, lines, is_right)))
    return _rendered("leaderboard.md", tables)


def html_page(boards: Sequence[Board]) -> str:
    """One file without network: a sortable table for each suite and device."""
    return _rendered("leaderboard.html", [(board, _table(board)) for board in boards])


def _table(board: Board) -> Table:
    """Every column of a report; those that were not chosen for Markdown are folded."""
    rows = itertools.chain.from_iterable(entry.run.rows for entry in board.entries)
    first, *others = columns(list(rows))
    speedup = _ONE["speedup"]
    chosen = [first, speedup, AR, *(column for column in others if column.key != speedup.key)]
    folded = frozenset(i for i, column in enumerate(chosen) if i > 1 and column not in BRIEF)
    lines = []
    for number, row in board.lines:
        cells = [figure_cell(column, row) for column in chosen]
        lines.append([*cells, Cell(str(number), number)])
    heads = [*map(column_head, chosen), Head("file", "number of the submission below")]
    return Table(heads, lines, folded)


def _rendered(name: str, boards: list[tuple[Board, Any]]) -> str:
    environment = templates()
    environment.loader = ChoiceLoader(
        [PackageLoader("lanternbench.suite"), PackageLoader("lanternbench.report")]
    )
    return environment.get_template(name).render(boards=boards)
