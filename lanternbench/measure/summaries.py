"""``summary.json``: the results of a run, a row per method, with notes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from lanternbench.errors import UserError
from lanternbench.measure.acceptance import acceptance
from lanternbench.measure.statistics import Estimate
from lanternbench.notes import Kind, Note
from lanternbench.utils.files import open_file
from lanternbench.utils.json_values import check_version

Costs = dict[str, dict[str, float]]  # metric -> {"images", "seconds"} that were really computed, without loading
NOTHING = Estimate()
LARGEST = 1e15  # of any figure


@dataclass(frozen=True)
class Row:
    """What was measured of one method: ``n`` images, and figures by name."""

    label: str
    method: str
    n: int
    figures: dict[str, Estimate]
    options: dict[str, Any] = field(default_factory=dict)
    target: str | None = None
    dataset: str | None = None
    temperature: float | None = None
    lossless: bool | None = None
    simulated: bool = False
    accept_histogram: list[int] = field(default_factory=list)  # steps that committed 0, 1, 2, … tokens
    accept_len_by_position: list[float | None] = field(default_factory=list)  # τ by sixteenth of the image
    phases: dict[str, float] = field(default_factory=dict)  # share of the decode in each
    acceptance: dict[str, Any] = field(default_factory=dict)  # by position of the draft: `acceptance.acceptance`

    def figure(self, name: str) -> Estimate:
        """A figure by name, without a value where it was not measured."""
        return self.figures.get(name, NOTHING)

    def value(self, name: str) -> float | None:
        """The value alone."""
        return self.figure(name).value


@dataclass(frozen=True)
class Summary:
    """``sets``: the figures that metrics of whole image sets gave; ``reference``: the real images they looked at.

    ``samples``: the SHA-256 of the ``samples.jsonl`` that it sums up, None where it is not known.  ``suite``: the name
    and hash of the suite that was run.
    """

    rows: list[Row]
    notes: list[Note] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    costs: Costs = field(default_factory=dict)
    reference: dict[str, Any] | None = None
    samples: str | None = None
    suite: str | None = None

    def all_notes(self) -> list[Note]:
        """The notes, with one on the real images and one on the time of each metric."""
        notes, real = list(self.notes), self.reference
        if real:
            text = f"Real images: {real['images']} in {real['folder']}, hash {str(real['hash'])[:16]}."
            notes.append(Note("info", None, text))
        each = [f"{name} {_short(1000 * c['seconds'] / c['images'])} s" for name, c in self.costs.items()]
        if each:
            notes.append(Note("info", None, f"Time of the metrics per 1,000 images: {', '.join(each)}."))
        return notes


def _short(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def read_summary(folder: Path) -> Summary:
    """``summary.json`` of a run folder, also of the versions that kept ``speedup_lo`` beside ``speedup``.

    Raises UserError when it is missing or damaged; entries of a wrong kind count as missing.
    """
    path = Path(folder) / "summary.json"
    try:
        with open_file(path) as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no summary.json, so the run did not finish: continue it with --resume."
        ) from None
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it, or run again with --fresh.") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object: restore it, or run again with --fresh.")
    check_version(found, path)
    entries = [entry for entry in _list(found.get("rows")) if isinstance(entry, dict)]
    rows = [row_of(entry) for entry in entries]
    names = {name for row in rows for name in row.figures}
    sets = [str(name) for name in _list(found.get("sets"))]
    if not sets:
        sets = sorted({name for entry in entries for name in names if f"{name}_n" in entry})
    notes = [_note(note, names) for note in _list(found.get("notes"))]
    digest = found.get("samples")
    costs, reference = _costs(found.get("costs")), _reference(found.get("reference"))
    return Summary(rows, notes, sets, costs, reference, digest if isinstance(digest, str) else None)


def row_of(entry: Mapping[str, Any]) -> Row:
    """A row from its JSON object."""
    texts = {name: str(entry[name]) if entry.get(name) else None for name in ("label", "method", "target", "dataset")}
    figures = entry.get("figures")
    lossless = entry.get("lossless")
    histogram = [max(_count(n) or 0, 0) for n in _list(entry.get("accept_histogram"))]
    if isinstance(figures, dict):
        read = {name: _estimate(value) for name, value in figures.items() if isinstance(value, dict)}
    else:
        read = _flat_figures(entry)
    return Row(
        label=texts["label"] or texts["method"] or "–",
        method=texts["method"] or texts["label"] or "–",
        n=_count(entry.get("n")) or 0,
        figures=read,
        options=_dict(entry.get("options")),
        target=texts["target"],
        dataset=texts["dataset"],
        temperature=_number(entry.get("temperature")),
        lossless=lossless if isinstance(lossless, bool) else None,
        simulated=entry.get("simulated") is True,
        accept_histogram=histogram,
        accept_len_by_position=[_number(n) for n in _list(entry.get("accept_len_by_position"))],
        phases={str(k): share for k, v in _dict(entry.get("phases")).items() if (share := _number(v)) is not None},
        acceptance=acceptance(histogram),
    )


def _flat_figures(entry: Mapping[str, Any]) -> dict[str, Estimate]:
    """Figures of a row that keeps the parts of a figure side by side: ``speedup``, ``speedup_lo``, ``speedup_hi``."""
    known = {"label", "method", "options", "target", "dataset", "temperature", "lossless", "simulated", "n"}
    parts = {f"{name}_{part}" for name in entry for part in Estimate._fields[1:]}
    return {
        name: _estimate({"value": value} | {part: entry.get(f"{name}_{part}") for part in Estimate._fields[1:]})
        for name, value in entry.items()
        if name not in known | parts
    }


def _estimate(value: Mapping[str, Any]) -> Estimate:
    numbers = {part: _number(value.get(part)) for part in ("value", "lo", "hi", "p")}
    return Estimate(**numbers, n=_count(value.get("n")))


def _note(value: Any, names: set[str]) -> Note:
    """A note from JSON; one that is a sentence may begin with the metric's name."""
    if isinstance(value, dict):
        metric, kinds = value.get("metric"), {kind: kind for kind in get_args(Kind)}
        kind: Kind = kinds.get(value.get("kind"), "info")
        return Note(kind, str(metric) if metric else None, str(value.get("text") or ""))
    name, sign, text = str(value).partition(": ")
    return Note("info", name, text) if sign and name in names else Note("info", None, str(value))


def _costs(value: Any) -> Costs:
    costs = {}
    for name, cost in _dict(value).items():
        images, seconds = (_number(_dict(cost).get(part)) for part in ("images", "seconds"))
        if images and seconds is not None:
            costs[str(name)] = {"images": images, "seconds": seconds}
    return costs


def _reference(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or not {"folder", "images", "hash"} <= value.keys():
        return None
    return {name: value[name] for name in ("folder", "images", "hash")} | {"metrics": _list(value.get("metrics"))}


def _number(value: Any) -> float | None:
    """A finite float; None for null, booleans, anything that is no number, and numbers that no run can have."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
