"""``summary.json``: a row per method, every figure with its interval, and notes for the reader."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from lanternbench import metrics
from lanternbench.errors import UserError, cause
from lanternbench.measure import statistics
from lanternbench.measure.baseline import utilisation
from lanternbench.measure.figures import BASELINE, Figures, Flags, acceptance
from lanternbench.measure.run_notes import RANDOM_NOTE, counts, run_notes
from lanternbench.measure.run_record import IMPORTED, RunRecord
from lanternbench.measure.samples import MEASURED
from lanternbench.measure.statistics import Estimate, bootstrap_ratios, draws, paired_test
from lanternbench.notes import Note
from lanternbench.utils.json_values import SCHEMA_VERSION, config_hash, plain, read_object

LOSSLESS = 1e-3  # the most fidelity loss that float error explains
LARGEST = 1e15  # of any figure
LEAST_LOG_PROB = -600.0  # below it a perplexity has no float
NOTHING = Estimate()


class Cost(NamedTuple):
    """Images and seconds of the scores of a metric, without loading."""

    images: int = 0
    seconds: float = 0.0


Costs = dict[str, Cost]  # by metric
Sets = dict[str, dict[str, Estimate]]  # label -> figures of its whole set of images


class Part(BaseModel):
    """Base class of the parts of a summary.  Ignores keys of other versions."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Row(Part):
    """The measurements of one method: ``n`` images, and figures by name."""

    label: str
    method: str
    n: int = Field(ge=0)
    figures: dict[str, Estimate]
    options: dict[str, Any] = {}
    target: str | None = None
    dataset: str | None = None
    temperature: float | None = None
    lossless: bool | None = None
    simulated: bool = False
    # steps that committed 0, 1, 2, … tokens
    accept_histogram: list[int] = []
    # τ by sixteenth of the image
    accept_len_by_position: list[float | None] = []
    phases: dict[str, float] = {}  # share of the decode in each
    # by position of the draft: `figures.acceptance`
    acceptance: dict[str, Any] = {}

    @field_validator("figures", mode="before")
    @classmethod
    def _undefined_is_missing(cls, figures: object) -> object:
        return plain(figures)

    @field_validator("figures")
    @classmethod
    def _impossible_is_missing(cls, figures: dict[str, Estimate]) -> dict[str, Estimate]:
        """Drop numbers that no run can have, which a file from elsewhere may hold."""
        possible = {}
        for name, estimate in figures.items():
            parts = estimate._asdict().items()
            too_large = {part: None for part, x in parts if x is not None and abs(x) > LARGEST}
            possible[name] = estimate._replace(**too_large)
        return possible

    def figure(self, name: str) -> Estimate:
        """Return a figure by name, without a value if it was not measured."""
        return self.figures.get(name, NOTHING)

    def value(self, name: str) -> float | None:
        return self.figure(name).value


class Reference(Part):
    """The real images that metrics were compared with."""

    folder: str  # or the file of their statistics
    images: int | None  # None if a file of statistics does not say
    hash: str
    metrics: list[str] = []  # columns

    def __str__(self) -> str:
        count = "statistics" if self.images is None else self.images
        return f"Real images: {count} in {self.folder}, hash {self.hash[:16]}."


class Summary(Part):
    """The measurements of the methods of one run, or of a folder of images."""

    schema_version: int = SCHEMA_VERSION
    rows: list[Row] = []
    notes: list[Note] = []
    sets: list[str] = []  # the figures that metrics of whole image sets gave
    costs: Costs = {}
    reference: Reference | None = None
    samples: str | None = None  # SHA-256 of the ``samples.jsonl`` that it sums up, if known
    lanternbench: str | None = None  # the version that wrote it
    seal: str | None = None  # SHA-256 of the other fields
    suite: str | None = None  # the name and hash of the suite that was run

    def after(self, old: Summary, notes: Iterable[Note], costs: Costs | None = None) -> Summary:
        """Return it with more notes, and with the costs and real images that ``old`` names."""
        changes = {
            "notes": list(dict.fromkeys([*self.notes, *notes])),
            "costs": old.costs | (costs or {}),
            "reference": old.reference,
        }
        return self.model_copy(update=changes)

    def all_notes(self) -> list[Note]:
        """Return the notes, with one on the real images and one on the time of each metric."""
        notes = list(self.notes)
        if self.reference is not None:
            notes.append(Note("info", None, str(self.reference)))
        times = [f"{name} {per_thousand(cost)} s" for name, cost in self.costs.items()]
        if times:
            text = f"Time of the metrics per 1,000 images: {', '.join(times)}."
            notes.append(Note("info", None, text))
        return notes


def per_thousand(cost: Cost) -> str:
    """Return the seconds that 1,000 images take, as text."""
    seconds = 1000 * cost.seconds / max(cost.images, 1)
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def seal_of(content: Mapping[str, object]) -> str:
    """Return the SHA-256 of a summary's fields except ``seal``, which shows that it was edited."""
    return config_hash({name: value for name, value in content.items() if name != "seal"})


def read_summary(folder: Path) -> Summary:
    """Return the content of a run's ``summary.json``; an empty summary for one that was edited or
    that an early version wrote, whose figures are computed anew.  Raises UserError if it cannot be
    read.
    """
    path = Path(folder) / "summary.json"
    try:
        content = read_object(path)
        was_edited = "seal" in content and content["seal"] != seal_of(content)
        if was_edited or "schema_version" not in content:
            return Summary()
        return Summary.model_validate(content)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no summary.json, so the run did not finish: continue it with --resume."
        ) from None
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read ({cause(error)}): restore it, or run again with --fresh."
        ) from None


def summarise(figures: Figures, run: RunRecord, sets: Sets | None = None) -> Summary:
    """Return the summary of a run by the figures of its samples; what is missing has no value.

    ``sets``: figures of a whole label, such as {"ar": {"fid-tiny": Estimate(31.2, n=64)}}.
    """
    sets = sets or {}
    whole = sorted(set().union(*sets.values()) - figures.metrics.keys())
    lossless = claims(figures, run)
    used = utilisation(figures, run)
    rows: list[Row] = []
    for label in sorted(figures.labels, key=[BASELINE, *lossless].index):
        of_sets = {name: sets.get(label, {}).get(name, NOTHING) for name in whole}
        if label == BASELINE and used is not None:
            of_sets["bandwidth_share"] = Estimate(used.share, n=used.images)
        rows.append(_row(figures, label, run, of_sets, lossless[label]))
    notes = list(notes_of(figures, run))
    if any(metrics.column(name).random for name in [*figures.metrics, *whole]):
        notes.append(RANDOM_NOTE)
    return Summary(rows=rows, notes=notes, sets=whole, suite=run.config.suite)


def claims(figures: Figures, run: RunRecord) -> dict[str, bool | None]:
    """Return whether each method is lossless, by label: as it claims, unless its samples show a
    loss.
    """
    lossless = {method.label: method.lossless for method in run.methods}
    for label in figures.labels:
        claim = lossless.setdefault(label, None)
        loss = figures.mean("fidelity_loss", label)
        if claim and loss is not None and loss > LOSSLESS:
            lossless[label] = False
    return lossless


def notes_of(figures: Figures, run: RunRecord) -> Iterator[Note]:
    """Yield the notes on a run, its baseline and its methods, which need no intervals."""
    yield from run_notes(figures, run)
    used = utilisation(figures, run)
    if used is not None:
        yield used.note
    lossless = claims(figures, run)
    for method in run.methods:
        if method.lossless and lossless[method.label] is False:
            text = f"{method.label} promises to be lossless, but its samples show a loss."
            yield Note("warning", "fidelity_loss", text)
    yield from support_notes(figures, lossless)


def support_notes(figures: Figures, lossless: Mapping[str, bool | None]) -> Iterator[Note]:
    """Yield a warning for each imported method that draws tokens which the target excludes, and
    for each lossy one whose distance from the target nothing bounds.
    """
    baseline = figures.mean("log_prob", BASELINE)
    for label, is_lossless in lossless.items():
        if label not in figures.methods:
            continue
        log_prob = figures.mean("log_prob", label)
        outside = figures.mean("outside_support", label)
        if figures.methods[label][0] == IMPORTED and outside:
            text = (
                f"{outside:.1%} of the tokens of {label} are outside the target's top-k or"
                " top-p and count as probability 1e-10: give the --temperature, --top-k, --top-p"
                " and --guidance that they were drawn with."
            )
            yield Note("warning", "log-prob", text, "outside the support", label)
        bounded = is_lossless is not False or figures.mean("fidelity_loss", label) is not None
        if bounded or log_prob is None or outside is None:
            continue
        compared = "" if baseline is None else f", that of ar's tokens {baseline:.2f}"
        text = (
            f"{label} draws {outside:.1%} of its tokens outside the target's support, and"
            f" nothing bounds how far it is from the target: the mean log-probability of its"
            f" tokens is {log_prob:.2f}{compared}."
        )
        yield Note("warning", "fidelity_loss", text, "outside the support", label)


def kept_sets(figures: Figures, summary: Summary) -> Sets:
    """Return the summary's figures of whole sets of images that have not changed since."""
    now = counts(figures)
    return {
        row.label: {name: row.figures[name] for name in summary.sets if name in row.figures}
        for row in summary.rows
        if row.n == now.get(row.label)
    }


def renewed(figures: Figures, run: RunRecord, old: Summary) -> Summary:
    """Return the summary of a run that went on after ``old`` was written."""
    sets = kept_sets(figures, old)
    new = summarise(figures, run, sets)
    stale = {None, "speedup", "latency_s", "fidelity_loss", *old.sets}.difference(*sets.values())
    text = (
        f"The figures are computed from the {len(figures)} samples that the run has now, which"
        " summary.json does not sum up."
    )
    kept = [note for note in old.notes if note.metric not in stale and note.fact is None]
    return new.after(old, [*kept, Note("info", None, text)])


def _row(
    figures: Figures,
    label: str,
    run: RunRecord,
    of_sets: dict[str, Estimate],
    lossless: bool | None,
) -> Row:
    of_label = figures.of(label)
    method, options = figures.methods[label]
    steps = figures.steps[label]
    histogram = steps.histogram()
    return Row(
        label=label,
        method=method,
        n=int(of_label.sum()),
        figures=_estimates(figures, label, of_label, run.config.seed) | of_sets,
        options=options,
        target=run.target.name,
        dataset=run.dataset,
        temperature=options.get("temperature", run.temperature),
        lossless=lossless,
        simulated=run.config.simulate_acceptance is not None,
        accept_histogram=histogram,
        accept_len_by_position=steps.accept_len_by_position(),
        phases=steps.phase_shares(),
        acceptance=acceptance(histogram),
    )


def _estimates(figures: Figures, label: str, of_label: Flags, seed: int) -> dict[str, Estimate]:
    """Return the figures of one row; their intervals rest on the same resamplings of prompts."""
    names = [*MEASURED, *sorted(figures.metrics)]
    present = np.unique(figures.codes("prompt")[of_label])
    sums = np.array([figures.of_prompts(name, of_label) for name in names])[..., present]
    top, bottom = np.ascontiguousarray(sums.transpose(1, 2, 0))  # [prompts, figures] each
    ratios = bootstrap_ratios(top, bottom, draws(len(top)), seed)
    estimates: dict[str, Estimate] = {}
    for name, ratio in zip(names, ratios, strict=True):
        has_figure = figures.column(name)[1][of_label] != 0
        estimate = ratio._replace(n=int(has_figure.sum()))
        if name in figures.metrics and label != BASELINE:
            p = _difference_from_baseline(figures, name, of_label, seed)
            estimate = estimate._replace(p=p)
        estimates[name] = estimate
    if estimates["log_prob"].value is not None:
        estimates["perplexity"] = perplexity(estimates["log_prob"])
    steps = figures.steps[label]
    for name, value in steps.percentiles().items():
        estimates[name] = Estimate(value, n=len(steps.latencies))
    memory = _peak_memory(figures, of_label)
    if memory is not None:
        estimates["peak_memory_mb"] = memory
    return estimates


def _peak_memory(figures: Figures, of_label: Flags) -> Estimate | None:
    """Return the highest peak of memory in MB, if it was recorded."""
    peaks, recorded = figures.column("peak_memory_mb")
    count = int(recorded[of_label].sum())
    return Estimate(float(peaks[of_label].max()), n=count) if count else None


def _difference_from_baseline(
    figures: Figures, name: str, of_label: Flags, seed: int
) -> float | None:
    """Return the p-value of a difference of prompt means, for two prompts or more."""
    differences = figures.difference(name, of_label)
    if len(differences) < 2:
        return None
    zeros = np.zeros_like(differences)
    return paired_test(differences, zeros, draws(len(differences)), seed)


def perplexity(log_prob: Estimate) -> Estimate:
    """Return exp(−mean log-probability); its interval has the ends of the other, swapped."""

    def of(end: float | None) -> float | None:
        return None if end is None or end < LEAST_LOG_PROB else math.exp(-end)

    return Estimate(of(log_prob.value), of(log_prob.hi), of(log_prob.lo), log_prob.n)


def all_told_apart(figures: Figures, labels: list[str]) -> bool:
    """Return whether the speed of each method is distinguishable from the baseline's, by the test
    of log latencies with Holm's correction over methods.
    """
    base = np.log(figures.values("latency_s", BASELINE))
    differences = []
    for label in labels:
        if label != BASELINE:
            latency = np.log(figures.values("latency_s", label))
            differences.append(latency - base)
    tested = np.nan_to_num(np.stack(differences, 1))
    flips = draws(len(tested), statistics.FLIPS)
    p = statistics.holm(statistics.paired_tests(tested, flips))
    return bool((statistics.LOOKS * p < statistics.ALPHA).all())
