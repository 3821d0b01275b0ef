"""The summary of a run: a row per method, every figure with its interval, notes for the reader;
``summary.json``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from lanternbench import metrics
from lanternbench.errors import UserError
from lanternbench.measure import statistics
from lanternbench.measure.figures import BASELINE, Figures, acceptance
from lanternbench.measure.run_notes import RANDOM_NOTE, counts, run_notes
from lanternbench.measure.samples import MEASURED
from lanternbench.measure.statistics import Estimate, bootstrap_ratios, draws, paired_test
from lanternbench.notes import Kind, Note
from lanternbench.utils.json_values import read_object

LOSSLESS = 1e-3  # the most fidelity loss that float error explains
LARGEST = 1e15  # of any figure
NOTHING = Estimate()
# metric -> {"images", "seconds"} that were really computed, without loading
Costs = dict[str, dict[str, float]]
Sets = dict[str, dict[str, Estimate]]  # label -> figures of its whole set of images


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
    # steps that committed 0, 1, 2, … tokens
    accept_histogram: list[int] = field(default_factory=list)
    # τ by sixteenth of the image
    accept_len_by_position: list[float | None] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)  # share of the decode in each
    # by position of the draft: `figures.acceptance`
    acceptance: dict[str, Any] = field(default_factory=dict)

    def figure(self, name: str) -> Estimate:
        """A figure by name, without a value where it was not measured."""
        return self.figures.get(name, NOTHING)

    def value(self, name: str) -> float | None:
        return self.figure(name).value


@dataclass(frozen=True)
class Summary:
    """What was measured of the methods of one run, or of a folder of images."""

    rows: list[Row]
    notes: list[Note] = field(default_factory=list)
    # the figures that metrics of whole image sets gave
    sets: list[str] = field(default_factory=list)
    costs: Costs = field(default_factory=dict)
    reference: dict[str, Any] | None = None  # the real images that those looked at
    # the SHA-256 of the ``samples.jsonl`` that it sums up, where it is known
    samples: str | None = None
    suite: str | None = None  # the name and hash of the suite that was run

    def all_notes(self) -> list[Note]:
        """The notes, with one on the real images and one on the time of each metric."""
        notes = list(self.notes)
        if real := self.reference:
            count = "statistics" if real["images"] is None else real["images"]
            text = f"Real images: {count} in {real['folder']}, hash {str(real['hash'])[:16]}."
            notes.append(Note("info", None, text))
        times = {
            name: 1000 * cost["seconds"] / cost["images"] for name, cost in self.costs.items()
        }
        if each := [
            f"{name} {f'{s:,.0f}' if s >= 100 else f'{s:.3g}'} s" for name, s in times.items()
        ]:
            notes.append(
                Note("info", None, f"Time of the metrics per 1,000 images: {', '.join(each)}.")
            )
        return notes


def read_summary(folder: Path) -> Summary:
    """``summary.json`` of a run; entries of a wrong kind are missing.  Raises UserError where it
    cannot be read.
    """
    path = Path(folder) / "summary.json"
    try:
        summary = read_object(path)
    except FileNotFoundError:
        text = (
            f"{folder} has no summary.json, so the run did not finish: continue it with --resume."
        )
        raise UserError(text) from None
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): restore it, or run again with --fresh."
        ) from None
    entries = [entry for entry in _of(list, summary.get("rows")) if isinstance(entry, dict)]
    rows = [row_of(entry) for entry in entries]
    names = {name for row in rows for name in row.figures}
    sets = [str(name) for name in _of(list, summary.get("sets"))]
    sets = sets or sorted({name for entry in entries for name in names if f"{name}_n" in entry})
    notes = [_note(note, names) for note in _of(list, summary.get("notes"))]
    digest, reference = summary.get("samples"), _of(dict, summary.get("reference"))
    parts = {name: reference.get(name) for name in ("folder", "images", "hash")}
    real = (
        parts | {"metrics": _of(list, reference.get("metrics"))}
        if parts.keys() <= reference.keys()
        else None
    )
    return Summary(
        rows,
        notes,
        sets,
        _costs(summary.get("costs")),
        real,
        digest if isinstance(digest, str) else None,
    )


def row_of(entry: Mapping[str, Any]) -> Row:
    text = {
        name: str(entry[name]) if entry.get(name) else None
        for name in ("label", "method", "target", "dataset")
    }
    figures, lossless = entry.get("figures"), entry.get("lossless")
    figures = figures if isinstance(figures, dict) else _flat_figures(entry)
    histogram = [max(_count(n) or 0, 0) for n in _of(list, entry.get("accept_histogram"))]
    phases = {str(name): _number(share) for name, share in _of(dict, entry.get("phases")).items()}
    return Row(
        label=text["label"] or text["method"] or "–",
        method=text["method"] or text["label"] or "–",
        n=_count(entry.get("n")) or 0,
        figures={
            name: _estimate(parts) for name, parts in figures.items() if isinstance(parts, dict)
        },
        options=_of(dict, entry.get("options")),
        target=text["target"],
        dataset=text["dataset"],
        temperature=_number(entry.get("temperature")),
        lossless=lossless if isinstance(lossless, bool) else None,
        simulated=entry.get("simulated") is True,
        accept_histogram=histogram,
        accept_len_by_position=[
            _number(n) for n in _of(list, entry.get("accept_len_by_position"))
        ],
        phases={name: share for name, share in phases.items() if share is not None},
        acceptance=acceptance(histogram),
    )


def _flat_figures(entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Figures of a row that keeps the parts of a figure side by side: ``speedup``, ``speedup_lo``,
    ``speedup_hi``.
    """
    ends = Estimate._fields[1:]
    facts = {
        "label",
        "method",
        "options",
        "target",
        "dataset",
        "temperature",
        "lossless",
        "simulated",
        "n",
    }
    facts |= {f"{name}_{end}" for name in entry for end in ends}
    figures = {name: value for name, value in entry.items() if name not in facts}
    return {
        k: {"value": v} | {end: entry.get(f"{k}_{end}") for end in ends}
        for k, v in figures.items()
    }


def _estimate(parts: Mapping[str, Any]) -> Estimate:
    return Estimate(
        **{name: _number(parts.get(name)) for name in ("value", "lo", "hi", "p")},
        n=_count(parts.get("n")),
    )


def _note(value: Any, names: set[str]) -> Note:
    """A note from JSON; one that is a sentence may begin with the metric's name."""
    if isinstance(value, dict):
        kind: Any = value.get("kind") if value.get("kind") in get_args(Kind) else "info"
        metric = value.get("metric")
        return Note(kind, str(metric) if metric else None, str(value.get("text") or ""))
    name, sign, text = str(value).partition(": ")
    return Note("info", name, text) if sign and name in names else Note("info", None, str(value))


def _costs(value: Any) -> Costs:
    read = {str(name): [_number(_of(dict, cost).get(part)) for part in ("images", "seconds")]
            for name, cost in _of(dict, value).items()}  # fmt: skip
    return {
        name: {"images": n, "seconds": s} for name, (n, s) in read.items() if n and s is not None
    }


def _number(value: Any) -> float | None:
    """A finite float; None for null, booleans, anything that is no number, and numbers that no run
    can have.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _of(kind: type[Any], value: Any) -> Any:
    """The value, or an empty one of this kind."""
    return value if isinstance(value, kind) else kind()


def summarise(
    figures: Figures, run: Mapping[str, Any], sets: Sets | None = None, seed: int = 0
) -> Summary:
    """The summary of a run by the figures of its samples; what is missing has no value, and is
    never 0.

    run: ``run.json``; its "methods" ({"label", "lossless"}) give the order of rows.
    sets: figures of a whole label, such as {"ar": {"fid-tiny": Estimate(31.2, n=64)}}.
    """
    sets = sets or {}
    whole = sorted({name for values in sets.values() for name in values} - figures.metrics.keys())
    claims = {
        str(method.get("label")): method.get("lossless") for method in run.get("methods") or []
    }
    order = sorted(dict.fromkeys([*claims, *figures.labels]), key=lambda label: label != BASELINE)
    rows, notes = [], list(run_notes(figures, run))
    for label in order:
        if label not in figures.labels:
            continue
        row = _row(
            figures,
            label,
            run,
            {name: sets.get(label, {}).get(name, Estimate()) for name in whole},
            seed,
        )
        # a method keeps the distribution by what it claims, unless samples show a loss
        claimed, loss = claims.get(label), row.value("fidelity_loss")
        wrong = bool(claimed and loss is not None and loss > LOSSLESS)
        rows.append(replace(row, lossless=False if wrong else claimed))
        if wrong:
            text = f"{label} promises to be lossless, but its samples show a loss."
            notes.append(Note("warning", "fidelity_loss", text))
    if any(metrics.column(name).random for name in [*figures.metrics, *whole]):
        notes.append(RANDOM_NOTE)
    return Summary(rows, notes, whole, suite=(run.get("config") or {}).get("suite"))


def kept_sets(figures: Figures, summary: Summary) -> Sets:
    """The summary's figures of whole sets of images, where these are the same still."""
    now = counts(figures)
    return {
        row.label: {name: row.figures[name] for name in summary.sets if name in row.figures}
        for row in summary.rows
        if row.n == now.get(row.label)
    }


def renewed(figures: Figures, run: Mapping[str, Any], old: Summary) -> Summary:
    """The summary of a run that went on after ``old`` was written: of the samples that are there
    now.
    """
    sets = kept_sets(figures, old)
    new = summarise(figures, run, sets, int((run.get("config") or {}).get("seed") or 0))
    stale = {None, "speedup", "latency_s", "fidelity_loss", *old.sets}.difference(*sets.values())
    text = f"The run went on after it was summed up: all figures here are of its {len(figures)} samples now."
    notes = dict.fromkeys([*new.notes, *(note for note in old.notes if note.metric not in stale)])
    return replace(
        new, notes=[*notes, Note("info", None, text)], costs=old.costs, reference=old.reference
    )


def _row(
    figures: Figures, label: str, run: Mapping[str, Any], whole: dict[str, Estimate], seed: int
) -> Row:
    """One row; every interval of the row rests on the same resamplings of prompts."""
    of_label, names = figures.of(label), [*MEASURED, *sorted(figures.metrics)]
    present = np.unique(figures.codes("prompt")[of_label])
    sums = np.array([figures.of_prompts(name, of_label) for name in names])[..., present]
    top, bottom = np.ascontiguousarray(sums.transpose(1, 2, 0))  # [prompts, figures] each
    estimates = {}
    for name, estimate in zip(
        names, bootstrap_ratios(top, bottom, draws(len(top)), seed), strict=True
    ):
        images = int((figures.column(name)[1][of_label] != 0).sum())
        # on prompt means, of two prompts or more
        tested = name in figures.metrics and label != BASELINE
        apart = figures.difference(name, of_label) if tested else np.empty(0)
        p = (
            paired_test(apart, np.zeros_like(apart), draws(len(apart)), seed)
            if len(apart) > 1
            else None
        )
        estimates[name] = estimate._replace(n=images, p=p)
    value, lo, hi, n, _ = estimates["log_prob"]
    if value is not None:  # of the mean log-probability; below -600 it has no float
        value, lo, hi = (
            None if end is None or end < -600 else math.exp(-end) for end in (value, hi, lo)
        )
        estimates["perplexity"] = Estimate(value, lo, hi, n)
    steps = figures.steps[label]
    estimates |= {
        name: Estimate(value, n=len(steps.latencies))
        for name, value in steps.percentiles().items()
    }
    memory, recorded = (part[of_label] for part in figures.column("peak_memory_mb"))
    if recorded.any():
        estimates["peak_memory_mb"] = Estimate(float(memory.max()), n=int(recorded.sum()))
    method, options = figures.methods[label]
    prompts, config, histogram = (
        run.get("prompts") or {},
        run.get("config") or {},
        steps.histogram(),
    )
    return Row(
        label=label,
        method=method,
        n=int(of_label.sum()),
        figures=estimates | whole,
        options=options,
        target=(run.get("target") or {}).get("name"),
        dataset=prompts.get("dataset")
        or str(prompts.get("source") or "").partition(":")[0]
        or None,
        temperature=options.get("temperature", config.get("temperature")),
        simulated=config.get("simulate_acceptance") is not None,
        accept_histogram=histogram,
        accept_len_by_position=steps.accept_len_by_position(),
        phases=steps.phase_shares(),
        acceptance=acceptance(histogram),
    )


def all_told_apart(figures: Figures, labels: list[str]) -> bool:
    """Is each method's speed told apart from the baseline's, by the test of log latencies with
    Holm over methods?
    """
    if BASELINE not in figures.labels or not set(labels) <= figures.labels.keys():
        return False
    base = np.log(figures.values("latency_s", BASELINE))
    apart = [
        np.log(figures.values("latency_s", label)) - base for label in labels if label != BASELINE
    ]
    tested = np.nan_to_num(np.stack(apart, 1))
    p = statistics.holm(statistics.paired_tests(tested, draws(len(tested), statistics.FLIPS)))
    return bool((statistics.LOOKS * p < statistics.ALPHA).all())
