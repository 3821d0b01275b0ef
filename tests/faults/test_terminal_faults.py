"""What files say is printed as text: no terminal, spreadsheet or browser obeys it; odd seeds are a
sentence.
"""

from __future__ import annotations

import csv
import io
import sys

import pytest
from conftest import mistake

from lanternbench.cli.main import main
from lanternbench.cli.output import Lines, print_notes, print_rows
from lanternbench.report.tables import csv_text, markdown

pytestmark = pytest.mark.usefixtures("in_time")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m[red]\u202ea\u2066 fox\r\n\x08"


def quiet(text: str) -> bool:
    return all(sign.isprintable() or sign == "\n" for sign in text)


@pytest.mark.parametrize("args", [(), ("--json",)])
def test_captions_reach_the_terminal_as_text(args, tmp_path, monkeypatch, capfd):
    (tmp_path / "p.txt").write_text(EVIL * 2 + "\na fox\n")
    monkeypatch.setattr(
        sys, "argv", ["lanternbench", "prompts", str(tmp_path / "p.txt"), "-n", "0", *args]
    )
    with pytest.raises(SystemExit) as exit_:
        main()
    out, err = capfd.readouterr()
    assert exit_.value.code == 0
    assert "fox" in out
    assert "\x1b" not in out + err
    assert "\x9b" not in out + err


def test_progress_and_tables_print_text_alone(capfd):
    lines = Lines("x")
    lines.show(1, 2, EVIL)
    lines.close()
    print_rows([{"a": EVIL, "b": {"k": EVIL}, "c": [EVIL], "d": True}], False, "a b c d")
    print_notes([EVIL])
    out, err = capfd.readouterr()
    assert "fox" in out
    assert quiet(out)
    assert quiet(err)


def test_no_cell_runs_in_a_spreadsheet_and_no_link_in_markdown():
    cells = ["=1+1", "+1", "-1", "@x", " =HYPERLINK(1)", "\t=1", "\r=1"]
    text = csv_text([{"a": cell} for cell in cells])
    assert all(
        cell.startswith("'") for (cell,) in list(csv.reader(io.StringIO(text, newline="")))[1:]
    )
    table = markdown(
        ["a"],
        [["[x](javascript:alert(1))"], ["<img src=x onerror=alert(1)>"], ["![a](b)"]],
        [False],
    )
    assert "[x](" not in table.replace("\\[", "").replace("\\]", "")
    assert "<img" not in table


@pytest.mark.parametrize("seed", [str(2**64), str(2**63), "-1", "9" * 300])
@pytest.mark.parametrize(
    "args",
    [
        ("run", "-m", "ar"), ("sweep", "configs/demo.yaml"), ("prompts",), ("verify", "sjd"), ("codebook",),
        ("train", "drafter"),
    ],
    ids=lambda args: args[0],
)  # fmt: skip
def test_a_seed_that_no_generator_takes_is_one_sentence(args, seed, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert "'seed' is wrong" in mistake(monkeypatch, capfd, *args, "--seed", seed)
    assert not list(tmp_path.iterdir())
