"""Fails when the package has more lines than ``[tool.lanternbench] max_lines`` in pyproject.toml: ``make lint``.

A feature pays for itself: what adds lines takes as many away elsewhere, or raises the number in a change of its own.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lines(package: Path) -> int:
    """Lines of all Python files, as ``wc -l`` counts them."""
    return sum(path.read_bytes().count(b"\n") for path in package.rglob("*.py"))


def main() -> None:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["lanternbench"]["max_lines"]
    count = lines(ROOT / "lanternbench")
    print(f"{count:,} lines of at most {budget:,}")
    if count > budget:
        sys.exit(f"lanternbench/ is {count - budget:,} lines over its budget: simplify, or raise max_lines.")


if __name__ == "__main__":
    main()
