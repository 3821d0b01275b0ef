"""The tables of README and docs that the code knows better: methods, targets, commands, defaults,
what a plug-in may read.

    python -m tools.docs_tables

writes each between its ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.  A test checks that
they are current.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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
        "tune",
        "profile",
        "verify",
    ),
    *("methods", "targets", "metrics", "fetch", "prompts", "doctor", "codebook"),
)
# fields of the state that proposals, trees and rules may read, and what those are that the code
# gives no comment
STATE = {
    "batch": "B, the prompts that are still decoded",
    "limit": "L, the tokens of an image",
    "device": "of all tensors",
    "target": "its `vocab`, `codebook`, `grid`, `model`, `options`",
    "warp": "logits → distribution: temperature, top-k, top-p",
    "guidance": "the CFG scale",
    "steps": "steps so far",
    "prefix_states": "",
    "now": "what changes from step to step, below",
}
SAID = {
    "state.now.length": "committed image tokens: `.device` [B], `.host` the same as numbers, where the host knows them",
    "state.now.last.advance": "how many of the new tokens count: `.device` [B], `.host`",
    "result.q": "[B, N, V] the target's distribution at every node",
}


ORDERS = {"rows": ["several rows"], "diagonal": ["FlashAR's branch", "diagonals"]}


def methods() -> Rows:
    from lanternbench.methods.method import named
    from lanternbench.registry import components

    yield "method", "proposal, tree", "acceptance", "lossless", "arXiv"
    for name, preset in components("preset").items():
        if preset.__class__.__module__.startswith("lanternbench."):
            made, number = named(name), preset.paper.rpartition(" ")[2]
            paper = f"[{number}](https://arxiv.org/abs/{number})" if number else "–"
            drafted = made.choices.tree != "none"
            drafts = [made.choices.proposal, made.choices.tree] if drafted else []
            drafts += ORDERS.get(made.choices.order, [])
            rule = made.choices.acceptance + (
                f", {made.read['schedule']}" if "schedule" in made.read else ""
            )
            lossless = "yes" if made.lossless else "no"
            yield f"`{name}`", ", ".join(drafts) or "–", rule if drafted else "–", lossless, paper


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


def defaults() -> Rows:
    """A row for all defaults of a method or target that have one source."""
    from lanternbench.methods.defaults import table

    yield "of", "default", "source (and other values)"
    for (of, source), group in itertools.groupby(table(), key=lambda row: (row.of, row.source)):
        rows = list(group)
        values = ", ".join(f"`{row.option}` {row.default}" for row in rows)
        others = [
            f"`{row.option}` {row.elsewhere}" if len(rows) > 1 else row.elsewhere
            for row in rows
            if row.elsewhere
        ]
        yield f"`{of}`", values, source + (f" ({'; '.join(others)})" if others else "")


def fields() -> Rows:
    """From the classes' source: names, and the comments beside them."""
    from lanternbench.engine import state, tree

    yield "read", "what it is"
    known = comments(state.DecodeState)
    for name, said in STATE.items():
        yield f"`state.{name}`", said or known[name]
    for prefix, kind in (
        ("state.now", state.Progress),
        ("state.now.last", state.LastCommit),
        ("draft", tree.Draft),
        ("result", state.StepResult),
        ("result.verified", tree.VerifyResult),
    ):
        for name, said in comments(kind).items():
            yield f"`{prefix}.{name}`", SAID.get(f"{prefix}.{name}", said)


def comments(kind: Any) -> dict[str, str]:
    """Return the comment on each field of a class, or else what the field's type is."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    module = sys.modules[kind.__module__]
    found: dict[str, str] = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotation = ast.unparse(node.annotation)
            documented = inspect.getdoc(getattr(module, annotation, None)) or ""
            about_type = documented.partition("\n")[0].partition(". ")[0].rstrip(".")
            text = comment_at(lines, node.lineno - 1) or about_type or annotation
            found[node.target.id] = text.replace("``", "`")
    return found


def comment_at(lines: list[str], number: int) -> str:
    """Return the comment at the end of a line, or else the block of comments above it."""
    at_end = lines[number].partition("  # ")[2]
    above: list[str] = []
    while number and lines[number - 1].lstrip().startswith("# "):
        number -= 1
        above.insert(0, lines[number].lstrip().removeprefix("# "))
    return at_end or " ".join(above)


TABLES: dict[str, tuple[str, Callable[[], Rows]]] = {
    "commands": ("docs/commands.md", commands),
    "methods": ("docs/methods-compared.md", methods),
    "targets": ("docs/checkpoints.md", targets),
    "defaults": ("docs/fidelity.md", defaults),
    "fields": ("docs/extend.md", fields),
}


def markdown(rows: Rows) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    head, *body = (f"| {' | '.join(row)} |".replace("|  |", "| |") for row in cells)
    return "\n".join([head, "|---" * len(cells[0]) + "|", *body])


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
    return path, text, f"{before}{begin}\n{markdown(rows())}\n{end}{after}"


def main() -> None:
    for name in TABLES:
        path, text, wanted = current(name)
        if text != wanted:
            path.write_text(wanted, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: {name}")


if __name__ == "__main__":
    main()
