"""README and docs show what the code has: their tables are generated, and README stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.docs_tables import ROOT, TABLES, current


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_the_code_says(name):
    path, text, wanted = current(name)
    assert text == wanted, (
        f"{path.name} has an old table '{name}': run `python -m tools.docs_tables`"
    )


def test_readme_has_at_most_900_words():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def anchors(page: Path) -> set[str]:
    """The headings of a document as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for link, anchor in re.findall(
            r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text(encoding="utf-8")
        ):
            page = path.parent / link if link else path
            assert page.exists(), f"{path.name}: {link}"
            assert not anchor or anchor in anchors(page), f"{path.name}: {link}#{anchor}"


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_a_document_begins_with_its_answer_in_at_most_five_lines(path):
    title, answer, *_ = path.read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    assert not answer.startswith(("#", "|", "```", "- ", "!"))
    assert len(answer.splitlines()) <= 5
