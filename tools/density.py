"""How dense the package's code is: ``make lint`` fails where pyproject.toml allows less.

    python -m tools.density              each folder's figures, then what is over its limit
    python -m tools.density --worst 20   also the functions that bind the most names

A token is a Python token; comments, docstrings and line ends do not count.  Rates are per 1,000
lines of code, which are the lines that hold a token.  The limits stand in
``[tool.lanternbench.density]``; a feature that adds tokens raises ``tokens`` in its own commit.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "lanternbench"
LONGEST_LINE = 99
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
QUESTION = re.compile(r"(What|Which|How|Is|Does|Are|Do|Whether|May|Can|Has|Have|Should)\b")
RATES = ("long_lines", "tuple_assignments", "ternaries", "comprehensions", "nested_comprehensions")


@dataclass
class Density:
    """Counts over some Python files."""

    counts: Counter[str] = field(default_factory=Counter)
    functions: list[tuple[int, int, str]] = field(default_factory=list)  # names, lines, place

    def add(self, other: Density) -> None:
        self.counts.update(other.counts)
        self.functions.extend(other.functions)

    def figures(self) -> dict[str, float]:
        """Return the figures that a limit can name."""
        code_lines = max(1, self.counts["code_lines"])
        figures: dict[str, float] = dict(self.counts)
        figures["tokens_per_line"] = self.counts["tokens"] / code_lines
        for name in RATES:
            figures[name] = 1000 * self.counts[name] / code_lines
        return figures


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield every docstring, including those below attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def names_bound_by(function: ast.AST) -> set[str]:
    """Return the local names that a function binds, without its parameters."""
    names: set[str] = set()
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, SCOPES):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        pending.extend(ast.iter_child_nodes(node))
    return names


def count_tokens(text: str, docstring_lines: set[int], counts: Counter[str]) -> None:
    lines_with_code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in docstring_lines
        if token.type in LAYOUT_TOKENS or is_docstring:
            continue
        counts["tokens"] += 1
        lines_with_code.update(range(token.start[0], token.end[0] + 1))
    counts["code_lines"] = len(lines_with_code)


def count_constructs(tree: ast.AST, counts: Counter[str]) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets_are_tuple = isinstance(node.targets[0], ast.Tuple)
            counts["tuple_assignments"] += targets_are_tuple and isinstance(node.value, ast.Tuple)
        elif isinstance(node, ast.IfExp):
            counts["ternaries"] += 1
        elif isinstance(node, COMPREHENSIONS):
            inner = [x for x in ast.walk(node) if isinstance(x, COMPREHENSIONS) and x is not node]
            counts["comprehensions"] += 1
            counts["nested_comprehensions"] += bool(inner)
        elif isinstance(node, ast.Name):
            counts["any"] += node.id == "Any"


def measure(path: Path) -> Density:
    """Return the density of one Python file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = Density(Counter(files=1, lines=text.count("\n")))
    texts = list(docstrings(tree))
    count_tokens(text, {docstring.lineno for docstring in texts}, found.counts)
    count_constructs(tree, found.counts)
    found.counts["long_lines"] = sum(len(line) > LONGEST_LINE for line in text.splitlines())
    openings = [str(docstring.value).lstrip("[]ABHLN, ") for docstring in texts]
    found.counts["question_docstrings"] = sum(bool(QUESTION.match(x)) for x in openings)
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            names = len(names_bound_by(node))
            found.counts["functions_over_50_lines"] += lines > 50
            found.counts["functions_over_15_names"] += names > 15
            found.functions.append((names, lines, f"{path}:{node.lineno} {node.name}"))
    return found


def by_folder(package: Path) -> dict[str, Density]:
    """Return the density of each top-level folder of a package; its own files are one more."""
    folders: dict[str, Density] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        name = parts[0] if len(parts) > 1 else "."
        folders.setdefault(name, Density()).add(measure(path))
    return folders


def over_limits(figures: dict[str, float], limits: dict[str, float], where: str) -> list[str]:
    """Return one sentence for each figure that is over its limit."""
    return [
        f"{where}: {name} is {figures.get(name, 0):.4g} and may be {limit:g}"
        for name, limit in limits.items()
        if figures.get(name, 0) > limit
    ]


def print_table(folders: dict[str, Density], total: Density) -> None:
    rates = {"tokens_per_line": "tok/line", "tuple_assignments": "tuple="}
    rates |= {"ternaries": "?:", "comprehensions": "compr", "any": "Any"}
    print(
        f"{'':14}{'files':>6}{'lines':>7}{'tokens':>8}"
        + "".join(f"{x:>9}" for x in rates.values())
    )
    for name, density in [*folders.items(), ("total", total)]:
        figures = density.figures()
        row = f"{name:14}{density.counts['files']:6}{density.counts['lines']:7}"
        row += f"{density.counts['tokens']:8}"
        print(row + "".join(f"{figures.get(key, 0):9.1f}" for key in rates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worst", type=int, default=0)
    worst = parser.parse_args().worst
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    limits = settings["tool"]["lanternbench"]["density"]
    folders = by_folder(ROOT / PACKAGE)
    total = Density()
    for density in folders.values():
        total.add(density)
    print_table(folders, total)
    for names, lines, place in sorted(total.functions, reverse=True)[:worst]:
        print(f"{names:4} names {lines:4} lines  {place}")
    complaints = over_limits(total.figures(), limits["total"], PACKAGE)
    for name, folder_limits in limits.get("folders", {}).items():
        complaints += over_limits(folders[name].figures(), folder_limits, f"{PACKAGE}/{name}")
    if complaints:
        sys.exit("\n".join(["Too dense: give each line one thought.", *complaints]))


if __name__ == "__main__":
    main()
