"""``python -m benchmarks.study``: finished runs by sweep, what a result file says of its run, a
section per run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import DATA
from flat_rows import seal

from benchmarks import methods, result_files, study
from lanternbench.experiment import iter_samples, read_run
from lanternbench.measure.figures import Figures
from lanternbench.measure.summary import summarise
from lanternbench.notes import Note
from lanternbench.utils.json_values import versioned

RUN = DATA / "run_of_flat_figures"


def stored(
    folder: Path,
    run_id: str,
    created: str,
    config: dict | None = None,
    notes: Sequence[Note] = (),
) -> Path:
    """A copy of the stored run under another name, with another configuration and notes."""
    path = folder / run_id
    shutil.copytree(RUN, path)
    record = json.loads((path / "run.json").read_text())
    record |= {"run_id": run_id, "created": created, "config": record["config"] | (config or {})}
    (path / "run.json").write_text(json.dumps(record))
    summary = summarise(Figures(iter_samples(path)), read_run(path))
    seal(path, versioned(summary.model_copy(update={"notes": list(notes)})))
    return path


def test_finished_runs_come_oldest_first_and_others_are_left_out(tmp_path):
    new = stored(tmp_path, "methods-22222222", "2026-11-24T02:00:00+00:00")
    old = stored(tmp_path, "methods-11111111", "2026-11-24T01:00:00+00:00")
    drafters = stored(tmp_path, "drafters-33333333", "2026-11-23T01:00:00+00:00", {"batch": 16})
    stored(tmp_path, "mine-44444444", "2026-11-24T01:00:00+00:00")
    (stored(tmp_path, "orders-55555555", "2026-11-24T01:00:00+00:00") / "summary.json").unlink()
    assert study.finished(tmp_path) == [("drafters", drafters), ("methods", old), ("methods", new)]
    assert [study.timed(run) for run in (drafters, old)] == [False, True]


def test_a_result_file_names_machine_load_and_clock(tmp_path):
    calm = result_files.setting(stored(tmp_path, "a", ""))
    assert calm.startswith(
        "2 demo prompts, T = 1, batch 1, interleaved; AMD EPYC, 1 thread(s) on 2 cores, torch "
    )
    text = "Timing was noisy (the load was 3.0 on 2 cores): stop other programs."
    uneven = Note("warning", "latency_s", "The machine's speed varied.")
    setting = result_files.setting(stored(tmp_path, "c", "", notes=[uneven]))
    assert setting == calm.replace("Timing was not noisy.", "The machine's speed varied.")
    disturbed = result_files.setting(stored(tmp_path, "b", "", notes=[Note("unfit", None, text)]))
    assert "do not quote: timing was noisy (the load was 3.0 on 2 cores)" in disturbed
    assert "do not quote" not in calm


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    output = result_files.Output(tmp_path / "tracked", tmp_path / "images")
    for module in (result_files, methods, study):
        monkeypatch.setattr(module, "OUTPUT", output)
    for folder in (output.results, output.images):
        folder.mkdir()
    return output.results / "methods.md"


def test_a_section_is_replaced_by_that_of_the_newest_run_and_others_stay(results, tmp_path):
    results.write_text(
        "# Every method\n\n## Drafters and block verification\n\nold\n\n## T = 1\n\nolder\n"
    )
    runs = [
        ("methods", stored(tmp_path, "methods-1", "1")),
        ("methods", stored(tmp_path, "methods-2", "2")),
    ]
    methods.report(runs)
    text = results.read_text()
    assert text.index("## T = 1") < text.index("## Drafters")
    assert "\nold\n" in text
    assert "older" not in text
    assert "| lantern δ=0.1 | " in text
    assert text.count("| eagle-1 | ") == 1


def test_tracked_files_are_replaced_only_when_told(results, tmp_path, monkeypatch):
    results.write_text("# Every method\n\n## T = 1\n\nold\n")
    tracked = results.read_text()
    monkeypatch.setattr(study, "PREVIEW", tmp_path / "preview")
    runs = tmp_path / "runs"
    runs.mkdir()
    stored(runs, "methods-1", "1", {"batch": 16})
    study.main(runs, is_preview=True)
    assert results.read_text() == tracked
    preview = (tmp_path / "preview" / "results" / "methods.md").read_text()
    assert "| lantern δ=0.1 | " in preview
    monkeypatch.setattr(result_files.OUTPUT, "results", results.parent)
    study.main(runs, is_preview=False)
    assert results.read_text() == preview


def test_an_interval_is_shown_where_it_is_known_and_wanted():
    estimate = result_files.Estimate(1.234, 1.1, 1.4)
    assert result_files.cell(estimate) == "1.23 [1.10, 1.40]"
    assert result_files.cell(estimate, 1, interval=False) == "1.2"
    assert result_files.cell(result_files.Estimate()) == "–"
