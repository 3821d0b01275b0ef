"""Every figure in README and docs is held by a file of the repository that its section, or its
document's head, links.

A figure is a number with a decimal point, or a whole one with a unit (×, %, ms, GB/s, dB), in
prose or a table.  Code, settings (λ = 1.5), arXiv numbers and generated tables are none.  A file
holds it if one of its numbers rounds to it. What this cannot see: a figure of the right value
beside the wrong words.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_PROSE = (
    r"<!-- (\w+): begin -->.*?<!-- \1: end -->",
    r"^```.*?^```",
    r"`[^`\n]*`",
    r"!?\]\([^)]*\)",
    r"\d{4}\.\d{5}",
    r"[λδνβωερατkTDKσ]'? ?(?:[=≤≥<>]|of) ?\d[\d.]*(?:(?: and |, | to | or )\d+(?:\.\d+)?(?![\d.]))*(?! ?[×%\[])",
    r"95 % (?:bootstrap )?interval",
    r"\b(?:Python|CFG|torch|guidance|Lumina-mGPT|YAML) \d[\d.]*",
)
TAU = re.compile(r"τ = (\d+\.\d+)")
FIGURE = re.compile(
    r"(?<![\d.,\w])(\d[\d,]*(?:\.\d+)?)(?: ?(×(?! ?\d)|%|ms\b|GB/s|dB))?(?![\d\w]|\.\d)"
)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def sections(text: str) -> list[str]:
    return re.split(r"^(?=## )", text, flags=re.M)


def holders(document: Path, text: str) -> set[Path]:
    """The files that a text links to, other documents and pictures left out."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    found = {(document.parent / link).resolve() for link in links}
    kinds = {".md", ".json", ".csv", ".py", ".yaml"}
    return {
        path
        for path in found
        if path.suffix in kinds and path.is_file() and path.parent != ROOT / "docs"
    }


@cache
def numbers(path: Path) -> frozenset[float]:
    return frozenset(
        float(x.replace(",", "")) for x in NUMBER.findall(path.read_text(encoding="utf-8"))
    )


def held(figure: str, unit: str, path: Path) -> bool:
    value, digits = float(figure.replace(",", "")), len(figure.partition(".")[2])
    scales = (1, 100) if unit == "%" else (1, 1000) if unit == "ms" else (1,)
    return any(
        abs(s * x - value) <= 0.5 * 10**-digits + 1e-9 for x in numbers(path) for s in scales
    )


def figures(text: str) -> list[tuple[str, str]]:
    found = [(x, "") for x in TAU.findall(text)]
    for pattern in NOT_PROSE:
        text = re.sub(pattern, " ", text, flags=re.S | re.M)
    every = [(number.rstrip(","), unit) for number, unit in FIGURE.findall(text)]
    return found + [(number, unit) for number, unit in every if "." in number or unit]


def unheld(document: Path, text: str) -> list[str]:
    head, *rest = sections(text)
    found = []
    for section in (head, *rest):
        files = holders(document, head + section)
        title = section.partition("\n")[0]
        found += [
            f"{title}: {n} {u}"
            for n, u in figures(section)
            if not any(held(n, u, path) for path in files)
        ]
    return found


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.stem)
def test_a_file_of_the_repository_holds_every_figure(document):
    wrong = unheld(document, document.read_text(encoding="utf-8"))
    assert not wrong, "link the file that holds them, or leave them out:\n" + "\n".join(wrong)


def test_a_figure_that_no_file_holds_is_found():
    text = (
        "# Title\n\n[methods](../benchmarks/results/methods.md): SCD 1.43× [1.31, 1.55] at λ = 2.5, `7.77`.\n\n"
        "## Two\n\nIt takes 7.77 ms, 61 GB/s, and τ = 9.87.\n\n| a | b |\n|---|---|\n| x | 8.765 |\n"
    )
    wrong = unheld(ROOT / "docs" / "made-up.md", text)
    assert [line.partition(": ")[2].strip() for line in wrong] == [
        "9.87",
        "7.77 ms",
        "61 GB/s",
        "8.765",
    ]
