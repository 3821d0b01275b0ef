"""Prose is plain English: README, docs, the changelog's newest section, ``--help``, docstrings,
messages and templates have none of the phrases of ``data/dialect.txt``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DATA, ROOT

from lanternbench.cli.options import help_text, owners_of_options

PACKAGE = ROOT / "lanternbench"
TEMPLATES = ("*.html", "*.md", "*.tex")


def dialect() -> dict[str, str]:
    """Return the patterns, and the plain English for each."""
    lines = (DATA / "dialect.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" | ") for line in lines if not line.startswith("#")]
    return dict(pairs)


PATTERNS = dialect()
ANY = re.compile("|".join(PATTERNS))
CODE = re.compile(r"^```.*?^```|``?[^`]+?``?|\]\([^)]*\)|<!--.*?-->", re.S | re.M)


def found(text: str) -> list[str]:
    """Return the phrases of the dialect in a text, code left out, each with what to write."""
    text = " ".join(CODE.sub(" ", text).split())
    if not ANY.search(text):
        return []
    phrases = []
    for pattern, plain in PATTERNS.items():
        for match in re.finditer(pattern, text):
            around = text[max(0, match.start() - 40) : match.end() + 40]
            phrases.append(f"'{around}': write {plain}")
    return phrases


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_a_document_is_in_plain_english(document):
    assert not found(document.read_text(encoding="utf-8"))


def test_the_newest_section_of_the_changelog_is_in_plain_english():
    _, newest, *_ = re.split(
        r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M
    )
    assert not found(newest)


def texts(path: Path) -> Iterator[str]:
    """Yield the strings of two words or more in a file: docstrings, messages, help."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and " " in node.value.strip():
            yield CODE.sub(" ", node.value)


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*")), ids=lambda path: path.name)
def test_docstrings_messages_and_help_are_in_plain_english(path):
    files = path.rglob("*.py") if path.is_dir() else [path] if path.suffix == ".py" else []
    for file in sorted(files):
        assert not found(" ¶ ".join(texts(file))), file


def test_the_help_of_an_option_is_one_sentence_in_plain_english():
    for name, owned in owners_of_options().items():
        text = help_text(name, owned)
        assert not found(text)
        assert text.count("; with ") <= 1, text
        assert "?" not in text


@pytest.mark.parametrize("kind", TEMPLATES)
def test_templates_of_reports_are_in_plain_english(kind):
    templates = sorted(PACKAGE.rglob(f"templates/{kind}"))
    assert templates or kind == "*.tex"
    for path in templates:
        text = re.sub(r"\{[{%#].*?[}%#]\}", " ", path.read_text(encoding="utf-8"), flags=re.S)
        text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.S)
        assert not found(text), path


def test_every_phrase_would_be_found_in_prose_and_in_code_none():
    sample = """The clock was disturbed, so methods are told apart from ar by tau, the mean accepted
    length; it tells its methods apart, ranked apart. Beside it stand the stated forwards of the
    embedded model, which is here if unsaid: a near code like another, a picture upright, as is said.
    A disturbed clock, the acceptance length τ, a tenth of loss, FID and its like, files as they lie,
    steps that they are made to yield."""
    missed = [
        pattern for pattern in PATTERNS if not re.search(pattern, re.sub(r"\s+", " ", sample))
    ]
    assert not missed
    assert len(found(sample)) >= len(PATTERNS)
    assert not found("`--until-told-apart`, ``told apart``, [runs](beside.md), `tau`")
