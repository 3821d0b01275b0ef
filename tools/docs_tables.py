"""The generated tables of README and docs: methods, targets, commands, what a plug-in may read.

    python -m tools.docs_tables

writes each between its ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.  A test checks that
they are current.
"""

from __future__ import annotations

import ast
import csv
import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tools.decoder_table import decoders

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "benchmarks" / "results" / "experiments.csv"
Rows = Iterator[tuple[str, ...]]
# in the order of a first reading; a command that is not here comes last
ORDER = (
    *(
        "run",
        "sweep",
        "report",
        "score",
        "import_",
        "compare",
        "reproduce",
        "suite",
        "submit",
        "leaderboard",
        "predict",
        "advise",
        "tune",
        "profile",
        "verify",
    ),
    *("methods", "targets", "metrics", "fetch", "prompts", "doctor", "codebook"),
)
# fields of the state that proposals, trees and rules may read
STATE = (
    "batch",
    "limit",
    "device",
    "target",
    "warp",
    "guidance",
    "steps",
    "prefix_states",
)


PREFIXES = ("state.now", "state.now.last", "draft", "result", "result.verified")

ORDERS = {"rows": ["several rows"], "diagonal": ["FlashAR's branch", "diagonals"]}


def methods() -> Rows:
    """Yield whether it is lossless, name with its paper's address, and parts of every method."""
    from lanternbench.methods.method import named
    from lanternbench.registry import components

    rows = []
    for name, preset in components("preset").items():
        if preset.__class__.__module__.startswith("lanternbench."):
            made = named(name)
            number = preset.paper.rpartition(" ")[2]
            label = f"[`{name}`](https://arxiv.org/abs/{number})" if number else f"`{name}`"
            parts = []
            if made.choices.tree != "none":
                parts = [made.choices.proposal, made.choices.tree, made.choices.acceptance]
            parts += ORDERS.get(made.choices.order, [])
            if "schedule" in made.read:
                parts.append(made.read["schedule"])
            rows.append((made.lossless, label, ", ".join(parts) or "the baseline"))
    yield "lossless", "method", "proposal, tree, acceptance"
    for lossless in (True, False):
        for is_lossless, label, named_parts in rows:
            if is_lossless == lossless:
                yield ("Lossless" if lossless else "Not lossless"), label, named_parts


def targets() -> Rows:
    """A row per family: its targets, and the tokens of their images."""
    from lanternbench.models.catalogue import catalogue
    from lanternbench.models.grids import written

    yield "family", "targets, and rows × columns of tokens"
    families: dict[str, list[str]] = {}
    for name, entry in catalogue().items():
        families.setdefault(entry.family, []).append(
            f"`{name}` {' + '.join(map(written, entry.all_grids))}"
        )
    yield from ((family, ", ".join(names)) for family, names in families.items())


def commands() -> Rows:
    yield "example", "what it does"
    found: dict[str, tuple[str, str]] = {}
    for path in sorted((ROOT / "lanternbench" / "cli").glob("*_cmd.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            text = ast.get_docstring(node) or ""
            if example := re.search(r"^Example: lanternbench (.*?)(?:\n\n|\Z)", text, re.M | re.S):
                command = " ".join(example[1].split())
                name = f"train {node.name}" if command.startswith("train") else node.name
                found[name] = (f"`{command}`", first_clause(" ".join(text.split())))
    yield from (found.pop(name) for name in ORDER if name in found)
    yield from found.values()


def first_clause(text: str) -> str:
    """What a docstring says first, in three words or more."""
    found = re.split(r"[;:.](?:\s|$)", text)
    return found[0] if len(found[0].split()) > 2 else f"{found[0]}: {found[1].strip()}"


def fields() -> Rows:
    """Yield the classes that a plug-in may read, with their fields."""
    from lanternbench.engine import state, tree

    yield "read", "fields"
    yield "`state`", ", ".join(f"`{name}`" for name in STATE)
    kinds = (
        state.Progress,
        state.LastCommit,
        tree.Draft,
        state.StepResult,
        tree.VerifyResult,
    )
    for prefix, kind in zip(PREFIXES, kinds, strict=True):
        names = [name for name in kind.__annotations__ if f"{prefix}.{name}" not in PREFIXES]
        yield f"`{prefix}` (`{kind.__name__}`)", ", ".join(f"`{name}`" for name in names)


def experiments() -> Rows:
    """Yield date, what was tried, and its outcome with command and commit, as recorded."""
    yield "date", "tried", "outcome"
    with EXPERIMENTS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            source = f"{row['command']}, {row['commit']}" if row["command"] else row["commit"]
            outcome = f"{row['figure']}. {row['kept']} ({source})."
            yield row["date"], f"**{row['tried']}**", outcome


TABLES: dict[str, tuple[str, Callable[[], Rows]]] = {
    "methods": ("docs/methods-compared.md", methods),
    "targets": ("docs/checkpoints.md", targets),
    "fields": ("docs/extend.md", fields),
    "experiments": ("docs/log.md", experiments),
    "decoders": ("docs/which-decoder.md", decoders),
}


def markdown(rows: Rows) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    head, *body = (f"| {' | '.join(row)} |".replace("|  |", "| |") for row in cells)
    return "\n".join([head, "|---" * len(cells[0]) + "|", *body])


def listed(rows: Rows) -> str:
    next(rows)  # the head
    lines = [f"- {name}: {text}" for name, text in rows]
    return "\n".join(["", *lines, ""])


def grouped(rows: Rows, heading: str) -> str:
    """Return a heading per value of the first cell, and below it a list of the other cells."""
    next(rows)  # the head
    lines = []
    for title, group in itertools.groupby(rows, key=lambda row: row[0]):
        lines += ["", heading.format(title), ""]
        lines += [f"- {name}: {text}" for _, name, text in group]
    return "\n".join([*lines, ""])


FORMS: dict[str, Callable[[Rows], str]] = {  # all others are tables
    "fields": listed,
    "experiments": partial(grouped, heading="## {}"),
    "methods": partial(grouped, heading="{}:"),
}


def current(name: str) -> tuple[Path, str, str]:
    """The document that holds a table, its text, and its text with the table as it should be."""
    file, rows = TABLES[name]
    path = ROOT / file
    text = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if not (text.count(begin) == text.count(end) == 1):
        raise SystemExit(f"{path} needs one pair of {begin} and {end}")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    content = FORMS.get(name, markdown)(rows())
    return path, text, f"{before}{begin}\n{content}\n{end}{after}"


def main() -> None:
    for name in TABLES:
        path, text, wanted = current(name)
        if text != wanted:
            path.write_text(wanted, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: {name}")


if __name__ == "__main__":
    main()
