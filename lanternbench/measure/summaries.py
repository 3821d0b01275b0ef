"""``summary.json``: the results of a run, a row per method, with notes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from lanternbench.errors import UserError
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.steps import acceptance
from lanternbench.notes import Kind, Note
from lanternbench.utils.json_values import read_object

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
    acceptance: dict[str, Any] = field(default_factory=dict)  # by position of the draft: `steps.acceptance`

    def figure(self, name: str) -> Estimate:
        """A figure by name, without a value where it was not measured."""
        return self.figures.get(name, NOTHING)

    def value(self, name: str) -> float | None:
        """The value alone."""
        return self.figure(name).value


@dataclass(frozen=True)
class Summary:
    """What was measured of the methods of one run, or of a folder of images."""

    rows: list[Row]
    notes: list[Note] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)  # the figures that metrics of whole image sets gave
    costs: Costs = field(default_factory=dict)
    reference: dict[str, Any] | None = None  # the real images that those looked at
    samples: str | None = None  # the SHA-256 of the ``samples.jsonl`` that it sums up, where it is known
    suite: str | None = None  # the name and hash of the suite that was run

    def all_notes(self) -> list[Note]:
        """The notes, with one on the real images and one on the time of each metric."""
        notes = list(self.notes)
        if real := self.reference:
            text = f"Real images: {real['images']} in {real['folder']}, hash {str(real['hash'])[:16]}."
            notes.append(Note("info", None, text))
        times = {name: 1000 * cost["seconds"] / cost["images"] for name, cost in self.costs.items()}
        if each := [f"{name} {f'{s:,.0f}' if s >= 100 else f'{s:.3g}'} s" for name, s in times.items()]:
            notes.append(Note("info", None, f"Time of the metrics per 1,000 images: {', '.join(each)}."))
        return notes


def read_summary(folder: Path) -> Summary:
    """``summary.json`` of a run; entries of a wrong kind are missing.  Raises UserError where it cannot be read."""
    path = Path(folder) / "summary.json"
    try:
        summary = read_object(path)
    except FileNotFoundError:
        text = f"{folder} has no summary.json, so the run did not finish: continue it with --resume."
        raise UserError(text) from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it, or run again with --fresh.") from None
    entries = [entry for entry in _list(summary.get("rows")) if isinstance(entry, dict)]
    rows = [row_of(entry) for entry in entries]
    names = {name for row in rows for name in row.figures}
    sets = [str(name) for name in _list(summary.get("sets"))]
    sets = sets or sorted({name for entry in entries for name in names if f"{name}_n" in entry})
    notes = [_note(note, names) for note in _list(summary.get("notes"))]
    digest, reference = summary.get("samples"), _dict(summary.get("reference"))
    parts = {name: reference.get(name) for name in ("folder", "images", "hash")}
    real = parts | {"metrics": _list(reference.get("metrics"))} if parts.keys() <= reference.keys() else None
    return Summary(rows, notes, sets, _costs(summary.get("costs")), real, digest if isinstance(digest, str) else None)


def row_of(entry: Mapping[str, Any]) -> Row:
    """A row from its JSON object."""
    text = {name: str(entry[name]) if entry.get(name) else None for name in ("label", "method", "target", "dataset")}
    figures, lossless = entry.get("figures"), entry.get("lossless")
    figures = figures if isinstance(figures, dict) else _flat_figures(entry)
    histogram = [max(_count(n) or 0, 0) for n in _list(entry.get("accept_histogram"))]
    return Row(
        label=text["label"] or text["method"] or "–",
        method=text["method"] or text["label"] or "–",
        n=_count(entry.get("n")) or 0,
        figures={name: _estimate(parts) for name, parts in figures.items() if isinstance(parts, dict)},
        options=_dict(entry.get("options")),
        target=text["target"],
        dataset=text["dataset"],
        temperature=_number(entry.get("temperature")),
        lossless=lossless if isinstance(lossless, bool) else None,
        simulated=entry.get("simulated") is True,
        accept_histogram=histogram,
        accept_len_by_position=[_number(n) for n in _list(entry.get("accept_len_by_position"))],
        phases={str(k): share for k, v in _dict(entry.get("phases")).items() if (share := _number(v)) is not None},
        acceptance=acceptance(histogram),
    )


def _flat_figures(entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Figures of a row that keeps the parts of a figure side by side: ``speedup``, ``speedup_lo``, ``speedup_hi``."""
    ends = Estimate._fields[1:]
    facts = {"label", "method", "options", "target", "dataset", "temperature", "lossless", "simulated", "n"}
    facts |= {f"{name}_{end}" for name in entry for end in ends}
    figures = {name: value for name, value in entry.items() if name not in facts}
    return {k: {"value": v} | {end: entry.get(f"{k}_{end}") for end in ends} for k, v in figures.items()}


def _estimate(parts: Mapping[str, Any]) -> Estimate:
    return Estimate(**{name: _number(parts.get(name)) for name in ("value", "lo", "hi", "p")}, n=_count(parts.get("n")))


def _note(value: Any, names: set[str]) -> Note:
    """A note from JSON; one that is a sentence may begin with the metric's name."""
    if isinstance(value, dict):
        kind: Any = value.get("kind") if value.get("kind") in get_args(Kind) else "info"
        metric = value.get("metric")
        return Note(kind, str(metric) if metric else None, str(value.get("text") or ""))
    name, sign, text = str(value).partition(": ")
    return Note("info", name, text) if sign and name in names else Note("info", None, str(value))


def _costs(value: Any) -> Costs:
    parts = ("images", "seconds")
    costs: dict[str, Any] = {str(k): {p: _number(_dict(v).get(p)) for p in parts} for k, v in _dict(value).items()}
    return {name: cost for name, cost in costs.items() if cost["images"] and cost["seconds"] is not None}


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
