"""What lies in a results folder: a row per run, from ``run.json``, ``summary.json`` and the lines of samples.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lanternbench.errors import UserError
from lanternbench.experiment.run_reader import read_run, runs
from lanternbench.measure.run_notes import asked_for
from lanternbench.measure.summaries import read_summary
from lanternbench.utils.files import open_file


def listing(root: Path) -> list[dict[str, Any]]:
    """A row per run, the one last started or resumed first; ``disturbed`` is None where a run has no summary.

    Raises UserError when there is no run.
    """
    folders = runs(root)
    if not folders:
        raise UserError(f"there is no run in {root}: make one with `lanternbench run --method eagle-2`.")
    return [_row(folder) for folder in folders]


def _row(folder: Path) -> dict[str, Any]:
    run = read_run(folder)
    prompts, target = run.get("prompts") or {}, run.get("target") or {}
    stamps = [str(run.get("created") or ""), *(str(entry.get("at") or "") for entry in run.get("resumed") or [])]
    labels, each = asked_for(run)
    samples, of = _lines(folder / "samples.jsonl"), each * len(labels)
    try:
        notes = read_summary(folder).notes
        disturbed = any(note.metric == "latency_s" and note.kind in ("unfit", "warning") for note in notes)
    except UserError:
        disturbed = None
    return {
        "name": folder.name,
        "date": max(stamps)[:16].replace("T", " "),
        "target": str(target.get("name") or "–"),
        "prompts": f"{prompts.get('dataset') or prompts.get('source') or '–'} {prompts.get('count') or ''}".strip(),
        "methods": len(labels),
        "samples": samples,
        "of": of,
        "finished": disturbed is not None and samples >= of,
        "disturbed": disturbed,
    }


def _lines(path: Path) -> int:
    try:
        with open_file(path) as file:
            return sum(1 for line in file if line.endswith(b"\n"))
    except OSError:
        return 0
