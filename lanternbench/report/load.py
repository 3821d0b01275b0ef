"""Read run folders as they are: possibly torn, possibly incomplete, never trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lanternbench.errors import UserError
from lanternbench.experiment.run_reader import read_run

Row = dict[str, Any]
_SETTINGS = (
    *("drafter", "random_weights", "simulate_acceptance", "seed", "temperature", "top_k", "top_p", "guidance", "batch"),
    *("dtype", "compile", "threads", "workers", "torch"),
)


@dataclass(frozen=True)
class Run:
    """One run folder: `run.json` as `info`, `summary.json` as `rows` and `notes`; samples are streamed on demand."""

    folder: Path
    info: dict[str, Any]
    rows: list[Row]
    notes: list[str]

    @property
    def run_id(self) -> str:
        return str(self.info.get("run_id") or self.folder.name)

    @property
    def target(self) -> str:
        return str(_dict(self.info.get("target")).get("name") or "–")

    @property
    def dataset(self) -> str:
        prompts = _dict(self.info.get("prompts"))
        return str(prompts.get("dataset") or prompts.get("source") or "–")

    @property
    def setup(self) -> dict[str, str]:
        """What figures of two runs must share to be compared, by name."""
        config, environment, prompts = (_dict(self.info.get(name)) for name in ("config", "environment", "prompts"))
        found = {"target": self.target, "prompts": f"{self.dataset} {str(prompts.get('hash'))[:8]}"}
        known = environment | {name: value for name, value in config.items() if value is not None}
        found |= {name.replace("_", " "): str(known[name]) for name in _SETTINGS if name in known}
        return found | {"hardware": self.hardware}

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) of image tokens, None when run.json does not say."""
        grid = _dict(self.info.get("target")).get("grid")
        if isinstance(grid, list) and len(grid) == 2 and all(isinstance(n, int) and 0 < n <= 4096 for n in grid):
            return grid[0], grid[1]
        return None

    @property
    def hardware(self) -> str:
        """The GPU's name, or the CPU's where there is none or the run did not use it."""
        environment, config = _dict(self.info.get("environment")), _dict(self.info.get("config"))
        device = str(environment.get("device") or config.get("device") or "")
        gpus = environment.get("gpus")
        first = gpus[0] if isinstance(gpus, list) and gpus and not device.startswith("cpu") else environment.get("gpu")
        name = first.get("name") if isinstance(first, dict) else first
        return str(name or environment.get("cpu") or "–")


@dataclass
class Picked:
    """Samples chosen for the image grid: cells[(prompt_id, label)], and what was left out."""

    prompts: list[tuple[str, str]] = field(default_factory=list)  # (prompt_id, caption), in the order of the run
    labels: list[str] = field(default_factory=list)
    cells: dict[tuple[str, str], Row] = field(default_factory=dict)
    prompts_total: int = 0
    more_seeds: bool = False
    damaged_lines: int = 0


def number(row: Row, key: str) -> float | None:
    """row[key] as a finite float; None for null, NaN, ±inf, booleans and anything that is no number."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def measured(sample: Row) -> Row:
    """What tables need of a sample: tokens and steps without the prefill, which drafts nothing; damaged is missing."""
    lengths, metrics = sample.get("accept_lengths"), sample.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    after = lengths[1:] if isinstance(lengths, list) and all(isinstance(n, int) for n in lengths) else []
    return {
        "label": str(sample.get("label") or "–"),
        "pair": (str(sample.get("prompt_id")), str(sample.get("seed"))),
        "seconds": number(sample, "decode_s") if sample.get("timed") is True else None,
        "tokens": sum(after),
        "steps": len(after),
        "fidelity_loss": number(sample, "fidelity_loss"),
        "metrics": {name: value for name in metrics if (value := number(metrics, name)) is not None},
    }


def load_run(folder: Path) -> Run:
    """One run folder. Raises UserError when it is no run, holds no results, or its JSON is damaged."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise UserError(f"{folder} is not a run folder (no run.json): give a folder that `lanternbench run` wrote.")
    info = read_run(folder)
    if not (folder / "summary.json").is_file():
        raise UserError(f"{folder} has no summary.json, so the run did not finish: continue it with --resume.")
    summary = _read_json(folder / "summary.json")
    found = summary.get("rows")
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    if not rows:
        raise UserError(f"{folder} holds no results (summary.json has no rows): run it again with --resume.")
    notes = summary.get("notes")
    texts = [str(note) for note in notes] if isinstance(notes, list) else []
    return Run(folder, info, [row | {"label": _label(row)} for row in _ar_first(rows)], texts)


def load_runs(folders: list[Path]) -> list[Run]:
    """All runs, in the order given. Raises UserError when there is none."""
    if not folders:
        raise UserError("There is no run to report: name a run folder, or make one with `lanternbench run`.")
    return [load_run(folder) for folder in folders]


def joined_rows(runs: list[Run]) -> list[Row]:
    """The rows of all runs, each with its `hardware`; of several runs also with `run` and the number of its `setup`."""
    names = _unique([run.run_id for run in runs])
    setups: list[dict[str, str]] = []
    for run in runs:
        setups += [run.setup] if run.setup not in setups else []
    rows = []
    for run, name in zip(runs, names):
        for row in run.rows:
            apart = {"run": name, "setup": 1 + setups.index(run.setup)} if len(runs) > 1 else {}
            rows.append({"hardware": run.hardware} | apart | row | apart)
    return rows


def pick_samples(run: Run, limit: int) -> Picked:
    """The first `limit` prompts of samples.jsonl, one image per prompt and label (the prompt's first seed).

    The file is streamed and only what the page needs is kept: token ids of thousands of images would fill the memory.
    """
    picked = Picked()
    seeds: dict[str, Any] = {}
    captions: dict[str, str] = {}
    labels: dict[str, None] = {}
    shown: set[str] = set()
    for sample in iter_samples(run.folder / "samples.jsonl"):
        if sample is None:
            picked.damaged_lines += 1
            continue
        prompt_id, label = str(sample.get("prompt_id")), _label(sample)
        if seeds.setdefault(prompt_id, sample.get("seed")) != sample.get("seed"):
            picked.more_seeds = True
            continue
        labels.setdefault(label)
        captions.setdefault(prompt_id, str(sample.get("prompt") or ""))
        if len(shown) < limit:
            shown.add(prompt_id)
        if prompt_id in shown:
            picked.cells.setdefault((prompt_id, label), {k: v for k, v in sample.items() if k != "token_ids"})
    picked.prompts_total = len(captions)
    picked.prompts = list(captions.items())[:limit]
    order = {row["label"]: i for i, row in enumerate(run.rows)}
    picked.labels = sorted(labels, key=lambda label: order.get(label, len(order)))
    return picked


def image_path(run: Run, sample: Row) -> Path | None:
    """The sample's image file; None when it is missing or its path leaves the run folder."""
    name = sample.get("image")
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    path = (run.folder / name).resolve()
    return path if path.is_relative_to(run.folder.resolve()) and path.is_file() else None


def iter_samples(path: Path) -> Iterator[Row | None]:
    """Samples one by one; None for a damaged line, except a torn last one, which an interrupted run leaves behind."""
    if not path.is_file():
        return
    damaged = False
    with path.open("rb") as lines:
        for line in lines:
            if damaged:
                yield None
            damaged = False
            if not line.strip():
                continue
            try:
                sample = json.loads(line)
            except (ValueError, RecursionError):
                damaged = True
                continue
            if isinstance(sample, dict):
                yield sample
            else:
                damaged = True


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it, or run again with --fresh.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object: restore it, or run again with --fresh.")
    return content


def _label(row: Row) -> str:
    return str(row.get("label") or row.get("method") or "–")


def _ar_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.get("method") != "ar" and row.get("label") != "ar")


def _unique(names: list[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
