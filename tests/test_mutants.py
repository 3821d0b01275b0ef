"""The table of mutants fits the source, so that ``make mutants`` tests what it says."""

from __future__ import annotations

from mutants import run
from mutants.table import Mutant


def test_every_mutant_still_finds_its_text_and_its_tests():
    assert run.stale() == []


def test_a_text_that_is_gone_is_reported(monkeypatch):
    gone = Mutant(
        "gone",
        "nothing",
        (("pyproject.toml", "no such text", ""),),
        tests=("tests/conftest.py::test_none",),
    )
    monkeypatch.setattr(run, "MUTANTS", (gone,))
    assert len(run.stale()) == 2


def test_the_table_goes_between_the_pages_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    mutant = Mutant("m", "what it breaks", (), method="sd")
    run.write(run.markdown([run.Outcome(mutant, run.Ran(True, "a|b", 0.0), None)]), page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| what it breaks | `sd`: **a\\|b** | – |" in text
    assert "1 of 1 are caught." in text
    assert "old" not in text


def test_edits_are_taken_back(tmp_path):
    (tmp_path / "code.py").write_text("x = 1\n")
    with run.applied(Mutant("m", "", (("code.py", "1", "2"),)), tmp_path):
        assert (tmp_path / "code.py").read_text() == "x = 2\n"
    assert (tmp_path / "code.py").read_text() == "x = 1\n"
