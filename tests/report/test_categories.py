"""The report's table by category of prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flat_rows import write_summary

from lanternbench import report
from lanternbench.experiment import Sample
from lanternbench.measure.figures import Figures
from lanternbench.report.load import read_contents
from lanternbench.report.tables import category_rows, category_table

ROWS = [
    {"label": "ar", "method": "ar", "speedup": 1.0},
    {"label": "fast", "method": "fast", "speedup": 2.0},
]

NAMES = {"ar": "ar", "fast": "fast"}


def sample(prompt: int, label: str, category: str | None, seconds: float, **changes) -> dict:
    fields = {"key": f"{prompt}|{label}|0", "prompt_id": str(prompt), "prompt": f"x {prompt}", "label": label, "method": label,
              "category": category, "seed": 0, "timed": True, "decode_s": seconds, "accept_lengths": [1, 3, 1],
              "tokens": 5, "steps": 3, "fidelity_loss": 0.1, "metrics": {"clip": 0.3, "fid": None}}  # fmt: skip
    return fields | changes


def samples() -> list[dict]:
    made = []
    for prompt, category in enumerate(["Animals", "Animals", "Food"]):
        made += [
            sample(prompt, "ar", category, 4.0 + prompt),
            sample(prompt, "fast", category, 2.0),
        ]
    return made


def run(folder: Path, lines: list[dict]) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"run_id": "r"}))
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_summary(folder, ROWS)
    return folder


def table_of(folder: Path) -> str:
    figures = read_contents(folder).figures
    table = category_table(figures, NAMES)
    return table.markdown() if table.rows else ""


def test_a_row_states_what_its_samples_say():
    figures = Figures(Sample(**fields) for fields in samples())
    rows = {(category, row.label): row for category, row in category_rows(figures, NAMES)}
    animals = rows["Animals", "fast"]
    assert (animals.n, animals.value("speedup"), animals.value("accept_len")) == (2, 9 / 4, 2.0)
    assert animals.value("clip") == pytest.approx(0.3)
    assert rows["Food", "ar"].value("speedup") == 1.0
    assert "fid" not in animals.figures


def test_what_is_missing_is_missing():
    bare = sample(
        0,
        "fast",
        "Food",
        1.0,
        accept_lengths=[5],
        steps=1,
        metrics={},
        timed=False,
        fidelity_loss=None,
    )
    ((_, row),) = category_rows(Figures([Sample(**bare)]), NAMES)
    assert {row.value(name) for name in ("speedup", "accept_len", "fidelity_loss")} == {None}


def test_a_category_without_name_and_one_without_any_score_do_no_harm(tmp_path):
    unscored = [sample(n, "ar", "Food", 1.0, metrics={"clip": None}) for n in (7, 8)]
    lines = [
        sample(1, "ar", "Animals", 1.0),
        sample(2, "ar", "", 1.0),
        sample(3, "ar", None, 1.0),
        *unscored,
    ]
    table = table_of(run(tmp_path / "r", lines))
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == ["Animals", "Food"]
    food = next(line for line in table.splitlines() if line.startswith("| Food"))
    assert "0.3000" not in food
    assert "–" in food


def test_a_report_has_the_table_only_where_prompts_have_categories(tmp_path):
    evil = "<script>|"
    lines = [*samples(), sample(9, "ar", evil, 1.0)]
    written = report([run(tmp_path / "parti", lines)], formats=["md"]).files
    table = next(path for path in written if path.name == "categories.md").read_text()
    assert "| Animals | fast | 2.25× |" in table
    assert "<script>" not in table
    assert (
        table.index("| Animals | ar |")
        < table.index("| Animals | fast |")
        < table.index("| Food | ar |")
    )
    for name, categories in {
        "none": [None] * 60,
        "one": ["a"] * 60,
        "many": [f"c{i}" for i in range(60)],
    }.items():
        lines = [sample(i, "ar", category, 1.0) for i, category in enumerate(categories)]
        assert table_of(run(tmp_path / name, lines)) == ""
