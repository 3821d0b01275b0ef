"""The leaderboard: submissions of a folder by target and device, as Markdown and as a page."""

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
        """What a reader must know to compare it with another."""
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
        """What the suite froze."""
        protocol = of_stamp(self.suite)
        return protocol.recipe if protocol else MISSING

    @property
    def lines(self) -> list[tuple[int, Row]]:
        """(number of its entry, row) of every method but the baseline, the fastest first."""
        runs = [(i, e.run.rows, ms_per_token(e.run.rows)) for i, e in enumerate(self.entries, 1)]
        rows = [(i, row, ar) for i, rows, ar in runs for row in rows if row.label != BASELINE]
        lines = [
            (i, row.model_copy(update={"figures": row.figures | {AR.key: ar}}))
            for i, row, ar in rows
        ]
        return sorted(
            lines, key=lambda line: (-(line[1].value("speedup") or 0.0), line[1].label, line[0])
        )


def read_folder(folder: Path) -> tuple[list[Entry], dict[str, list[str]]]:
    """The submissions that fit, and by file the reasons why the others do not."""
    entries, refused = [], {}
    for path in sorted(folder.glob("*.json")):
        try:
            submission = read(path)
            summary, reasons = judged(submission)
        except UserError as error:
            summary, reasons = None, [str(error)]
        if summary is None or reasons:
            refused[path.name] = reasons
        else:
            entries.append(
                Entry(submission, Run(Path(path.name), submission.run, summary.rows, []))
            )
    return entries, refused


def boards(entries: Sequence[Entry]) -> list[Board]:
    """By suite, then by device."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.submission.suite, entry.run.hardware), []).append(entry)
    return [Board(suite, device, group) for (suite, device), group in sorted(groups.items())]


def markdown_page(boards: Sequence[Board]) -> str:
    """LEADERBOARD.md: no line of text over 80 columns, no table wider."""
    titles, right = ["method", "speedup ↑", "AR ms", "τ ↑", "loss ↓", "file"], [False] + [True] * 5
    tables = []
    for board in boards:
        cells = [
            [
                one_line(row.label, LABEL),
                _ONE["speedup"].cell(row),
                *(c.value(row) for c in BRIEF),
                str(i),
            ]
            for i, row in board.lines
        ]
        tables.append(markdown(titles, cells, right))
    return _rendered("leaderboard.md", list(zip(boards, tables)))


def html_page(boards: Sequence[Board]) -> str:
    """One file without network: a sortable table for each suite and device."""
    return _rendered("leaderboard.html", [(board, _table(board)) for board in boards])


def _table(board: Board) -> Table:
    """Every column of a report; those that were not chosen for Markdown are folded."""
    first, *others = columns([row for entry in board.entries for row in entry.run.rows])
    chosen = [first, _ONE["speedup"], AR, *(c for c in others if c.key != "speedup")]
    folded = frozenset(i for i, c in enumerate(chosen) if i > 1 and c not in BRIEF)
    lines = [[figure_cell(c, row) for c in chosen] + [Cell(str(i), i)] for i, row in board.lines]
    heads = [*map(column_head, chosen), Head("file", "number of the submission below")]
    return Table(heads, lines, folded)


def _rendered(name: str, boards: list[tuple[Board, Any]]) -> str:
    environment = templates()
    environment.loader = ChoiceLoader(
        [PackageLoader("lanternbench.suite"), PackageLoader("lanternbench.report")]
    )
    return environment.get_template(name).render(boards=boards)
