"""The statistics: intervals, paired tests, and the summary of a run.

The prompt is the unit of sampling everywhere: several seeds of one prompt are no independent evidence, so resampling
draws prompts with all their seeds.  Intervals are 95 % bootstrap percentile intervals, widened for small samples as
Hesterberg (2015, "What Teachers Should Know About the Bootstrap", section 5.3) proposes.  No resampling can leave the
range of the values seen, so very few prompts still give too narrow intervals: for normal data the measured coverage is
49 % with 2 prompts, 74 % with 3, 87 % with 4, 92 % with 5, 93 % with 6, 94 to 95 % from 8 on (4,000 trials each).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit

from lanternbench.experiment import Sample

RESAMPLES = 10_000
BASELINE = "ar"
FEW_PROMPTS = 5  # under this an interval is marked as too narrow
RANDOM_NOTE = "Metrics named -random come from networks with random weights: their times are real, their values noise."
FIGURES = {  # row key -> where a sample keeps it
    "log_prob": ("stats", "log_prob"),
    "top1_prob": ("stats", "top1_prob"),
    "entropy": ("stats", "entropy"),
    "drafter_top1": ("drafter", "top1"),
    "drafter_top3": ("drafter", "top3"),
    "drafter_tv": ("drafter", "tv"),
}
_CHUNK = 1 << 21  # numbers held at a time
Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate with its 95 % interval; no interval (None) from a single prompt."""

    value: float
    lo: float | None
    hi: float | None


def bootstrap_ratio(base: ArrayLike, other: ArrayLike, n: int = RESAMPLES, seed: int = 0) -> Interval:
    """mean(base) / mean(other) of paired values [prompts], with its 95 % interval over ``n`` resamplings of prompts.

    The speedup is ``bootstrap_ratio(baseline latencies, method latencies)``: the ratio of the means, as it is the
    total time that a user waits for. Raises ValueError for unequal lengths, no values, values that are not finite,
    or a denominator of zero.
    """
    top, bottom = np.asarray(base, np.float64), np.asarray(other, np.float64)
    if top.ndim != 1 or top.shape != bottom.shape or not len(top):
        raise ValueError("bootstrap_ratio needs two lists of the same length, with one value or more")
    if not (np.isfinite(top).all() and np.isfinite(bottom).all()):
        raise ValueError("bootstrap_ratio needs finite values")
    interval = bootstrap_ratios(top[:, None], bottom[:, None], n, seed)[0]
    if interval is None:
        raise ValueError("bootstrap_ratio needs a denominator other than zero")
    return interval


def bootstrap_mean(x: ArrayLike, n: int = RESAMPLES, seed: int = 0) -> Interval:
    """Mean of the values [prompts] with its 95 % interval over ``n`` resamplings. Raises as ``bootstrap_ratio``."""
    values = np.asarray(x, np.float64)
    return bootstrap_ratio(values, np.ones_like(values), n, seed)


def bootstrap_ratios(top: Floats, bottom: Floats, n: int = RESAMPLES, seed: int = 0) -> list[Interval | None]:
    """Column by column Σ top / Σ bottom of [prompts, columns], all columns on the same ``n`` resamplings.

    A prompt without a value in a column has 0 in both; a column whose bottom sums to 0 gives None.
    """
    prompts, columns = top.shape
    sums = np.concatenate([top, bottom], 1)
    resampled = np.empty((n, 2 * columns))
    rng = np.random.default_rng(seed)
    chunk = max(1, min(n, _CHUNK // max(prompts, 1)))
    for start in range(0, n, chunk):
        rows = min(chunk, n - start)
        drawn = rng.integers(prompts, size=(rows, prompts), dtype=np.int32) + np.arange(rows)[:, None] * prompts
        counts = np.bincount(drawn.ravel(), minlength=rows * prompts).reshape(rows, prompts)
        resampled[start : start + rows] = counts.astype(np.float64) @ sums
    results: list[Interval | None] = []
    for c in range(columns):
        below = bottom[:, c].sum()
        if below == 0:
            results.append(None)
            continue
        value = float(top[:, c].sum() / below)
        units = int((bottom[:, c] != 0).sum())
        if units < 2:
            results.append(Interval(value, None, None))
            continue
        good = resampled[:, columns + c] != 0  # a resampling may miss every prompt that has a value
        ratios = resampled[good, c] / resampled[good, columns + c]
        lo, hi = np.quantile(ratios, [_tail(units), 1 - _tail(units)])
        results.append(Interval(value, float(lo), float(hi)))
    return results


def _tail(units: int, level: float = 0.95) -> float:
    """Hesterberg's expanded tail: Φ(−√(n/(n−1)) · t_{n−1}), which is 2.5 % for many prompts and less for few."""
    return float(ndtr(math.sqrt(units / (units - 1)) * stdtrit(units - 1, (1 - level) / 2)))


def paired_test(a: ArrayLike, b: ArrayLike, n: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided p-value of the sign-flip permutation test on the mean difference of pairs a, b [prompts].

    The share of the 2^prompts sign patterns whose |mean(±(a − b))| is at least the observed one: all patterns for up
    to 12 pairs, else ``n`` random ones, counted as (1 + hits) / (1 + n) (Phipson & Smyth, 2010). Raises ValueError
    for unequal lengths, no pairs, or values that are not finite.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise ValueError("paired_test needs two lists of the same length, with one pair or more")
    difference = first - second
    if not np.isfinite(difference).all():
        raise ValueError("paired_test needs finite values")
    return float(paired_tests(difference[:, None], n, seed)[0])


def paired_tests(differences: Floats, n: int = RESAMPLES, seed: int = 0) -> Floats:
    """``paired_test`` column by column of differences [prompts, columns], all on the same sign patterns: p [columns].

    A prompt without a pair in a column has 0 there.
    """
    pairs = len(differences)
    # equal sums in another order of addition differ by rounding: they must count as ties
    least = np.abs(differences.sum(0)) - 1e-12 * np.abs(differences).sum(0)
    if pairs <= 12:
        signs = (np.arange(1 << pairs)[:, None] >> np.arange(pairs) & 1) * 2 - 1
        return (np.abs(signs.astype(np.float64) @ differences) >= least).mean(0)
    rng, chunk = np.random.default_rng(seed), max(1, _CHUNK // pairs)
    hits: Floats = np.zeros(differences.shape[1])
    for start in range(0, n, chunk):
        flips = rng.integers(2, size=(min(chunk, n - start), pairs), dtype=np.int8) * 2.0 - 1
        hits += (np.abs(flips @ differences) >= least).sum(0)
    return (1 + hits) / (1 + n)


def holm(p: ArrayLike) -> Floats:
    """p-values of a family of tests, adjusted for their number (Holm, 1979): below α they hold with 1 − α together."""
    values = np.asarray(p, np.float64)
    order = np.argsort(values)
    raised = np.maximum.accumulate((len(values) - np.arange(len(values))) * values[order])
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted


def summarise(
    samples: Sequence[Sample],
    run: Mapping[str, Any],
    sets: Mapping[str, Mapping[str, float | None]] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """``summary.json`` of a run: {"rows": one per label, "notes": sentences}.

    The first step of a sample is the prefill, which gives the first token without a draft: it counts as a step of
    ``step_compression`` and is left out of ``accept_len`` and ``tree_depth``.

    run: ``run.json``; its "methods" ({"label", "lossless"}) give the order of rows. sets: metrics of a whole label,
    such as {"ar": {"fid-tiny": 31.2, "fid-tiny_n": 64}}. What is missing is None, never 0.
    """
    sets = sets or {}
    by_label: dict[str, list[Sample]] = {}
    for sample in samples:
        by_label.setdefault(sample.label, []).append(sample)
    metrics = sorted({name for sample in samples for name in sample.metrics})
    set_metrics = sorted({name.removesuffix("_n") for values in sets.values() for name in values} - set(metrics))
    order = [str(method.get("label")) for method in run.get("methods") or []] + list(by_label)
    order.sort(key=lambda label: label != BASELINE)
    rows = []
    for label in dict.fromkeys(order):
        if label in by_label:
            row = _row(by_label[label], by_label.get(BASELINE, []), run, metrics, seed)
            for name in set_metrics:
                row |= {name: sets.get(label, {}).get(name), f"{name}_lo": None, f"{name}_hi": None}
                row[f"{name}_n"] = sets.get(label, {}).get(f"{name}_n", len(by_label[label]))
            rows.append(row)
    random = [RANDOM_NOTE] if any(name.endswith("-random") for name in [*metrics, *set_metrics]) else []
    return {"rows": rows, "notes": _notes(by_label, run) + random}


def _row(
    own: list[Sample], baseline: list[Sample], run: Mapping[str, Any], metrics: list[str], seed: int
) -> dict[str, Any]:
    """One row of the summary; every interval of the row rests on the same resamplings of prompts."""
    first = own[0]
    base = {(sample.prompt_id, sample.seed): sample for sample in baseline}
    pairs = [(base[key], s) for s in own if (key := (s.prompt_id, s.seed)) in base]
    timed = [s for s in own if s.timed]
    columns: dict[str, list[tuple[str, float, float]]] = {
        "latency_s": [(s.prompt_id, s.decode_s, 1.0) for s in timed],
        "speedup": [(s.prompt_id, b.decode_s, s.decode_s) for b, s in pairs if b.timed and s.timed],
        "end_to_end_s": [(s.prompt_id, end_to_end(s), 1.0) for s in timed],
        "end_to_end_speedup": [(s.prompt_id, end_to_end(b), end_to_end(s)) for b, s in pairs if b.timed and s.timed],
        "step_compression": [(s.prompt_id, s.tokens, s.steps) for s in own],
        "accept_len": [(s.prompt_id, sum(s.accept_lengths[1:]), len(s.accept_lengths) - 1) for s in own],
        "fidelity_loss": [(s.prompt_id, s.fidelity_loss, 1.0) for s in own if s.fidelity_loss is not None],
    }
    for column, (part, figure) in FIGURES.items():
        columns[column] = [
            (s.prompt_id, found[figure], 1.0) for s in own if figure in (found := getattr(s, part) or {})
        ]
    for name in metrics:
        columns[name] = [(s.prompt_id, v, 1.0) for s in own if (v := s.metrics.get(name)) is not None]
    row: dict[str, Any] = {"label": first.label, "method": first.method, "options": first.options}
    row |= _setting(first, run) | {"n": len(own)}
    for name, interval in zip(columns, _by_prompt(own, list(columns.values()), seed), strict=True):
        value, lo, hi = interval or (None, None, None)
        row |= {name: value, f"{name}_lo": lo, f"{name}_hi": hi}
    row |= {
        f"perplexity{end}": _exp(row[f"log_prob{other}"]) for end, other in (("", ""), ("_lo", "_hi"), ("_hi", "_lo"))
    }
    phases = [s.phases for s in own if s.phases]
    drafted = [s for s in own if s.first_token_acceptance is not None]
    row |= {
        "tree_depth": _share(sum(sum(s.tree_depths[1:]) for s in own), sum(len(s.tree_depths[1:]) for s in own)),
        "first_token_acceptance": _share(
            sum((s.first_token_acceptance or 0.0) * (s.steps - 1) for s in drafted), sum(s.steps - 1 for s in drafted)
        ),
        "tokens_per_s": _share(sum(s.tokens for s in timed), sum(s.decode_s for s in timed)),
        "draft_fraction": _share(sum(p.get("draft_s", 0.0) for p in phases), sum(sum(p.values()) for p in phases)),
        "overhead_fraction": _share(
            sum(v for p in phases for k, v in p.items() if k not in ("draft_s", "verify_s")),
            sum(sum(p.values()) for p in phases),
        ),
        "peak_memory_mb": max((s.peak_memory_mb for s in own if s.peak_memory_mb is not None), default=None),
    }
    for name in metrics:
        row[f"{name}_p"] = None if first.label == BASELINE else _p_value(name, pairs, seed)
    return row


def end_to_end(sample: Sample) -> float:
    """Seconds from caption to image: text encoder, prefill, decoding, image decoder."""
    return sample.encode_s + sample.decode_s + sample.render_s


def _setting(sample: Sample, run: Mapping[str, Any]) -> dict[str, Any]:
    """What the label was measured on, from ``run.json``."""
    prompts, config = run.get("prompts") or {}, run.get("config") or {}
    lossless = {m.get("label"): m.get("lossless") for m in run.get("methods") or []}
    return {
        "target": (run.get("target") or {}).get("name"),
        "dataset": prompts.get("dataset") or str(prompts.get("source") or "").partition(":")[0] or None,
        "temperature": sample.options.get("temperature", config.get("temperature")),
        "lossless": lossless.get(sample.label),
        "simulated": config.get("simulate_acceptance") is not None,
    }


def _by_prompt(own: list[Sample], columns: list[list[tuple[str, float, float]]], seed: int) -> list[Interval | None]:
    """Σ/Σ intervals of columns of (prompt, numerator, denominator), resampled over the label's prompts."""
    index = {prompt: i for i, prompt in enumerate(sorted({s.prompt_id for s in own}))}
    top, bottom = np.zeros((2, len(index), len(columns)))
    for c, entries in enumerate(columns):
        for prompt, numerator, denominator in entries:
            top[index[prompt], c] += numerator
            bottom[index[prompt], c] += denominator
    return bootstrap_ratios(top, bottom, seed=seed)


def _p_value(name: str, pairs: list[tuple[Sample, Sample]], seed: int) -> float | None:
    """Paired test of a metric against the baseline on prompt means; None under two prompts."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for b, s in pairs:
        reference, value = b.metrics.get(name), s.metrics.get(name)
        if reference is not None and value is not None:
            ours.setdefault(s.prompt_id, []).append(value)
            theirs.setdefault(s.prompt_id, []).append(reference)
    if len(ours) < 2:
        return None
    return paired_test([np.mean(v) for v in ours.values()], [np.mean(v) for v in theirs.values()], seed=seed)


def _exp(log_prob: float | None) -> float | None:
    """Perplexity of a mean log-probability."""
    return None if log_prob is None else math.exp(-log_prob)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _notes(by_label: Mapping[str, list[Sample]], run: Mapping[str, Any]) -> list[str]:
    """What a reader must know to read the rows rightly."""
    if not by_label:
        return ["The run has no samples yet."]
    notes = ["Intervals are 95 % bootstrap intervals over prompts; speedup is paired with `ar` by prompt and seed."]
    if BASELINE not in by_label:
        notes.append("There is no `ar` baseline in this run, so there is no speedup.")
    else:
        base = {(s.prompt_id, s.seed) for s in by_label[BASELINE]}
        for label, own in by_label.items():
            alone = sum((s.prompt_id, s.seed) not in base for s in own)
            if alone:
                notes.append(f"{label}: {alone} of {len(own)} samples have no `ar` pair and are left out of speedup.")
    planned = (run.get("prompts") or {}).get("count") or 0
    here, all_of_them = sum(map(len, by_label.values())), planned * len(run.get("methods") or [])
    if here < all_of_them:
        notes.append(
            f"The run is not finished: {here} of {all_of_them} samples are here, and columns of different methods "
            "rest on different prompts; speedups alone are paired."
        )
    untimed = [label for label, own in by_label.items() if not any(s.timed for s in own)]
    if untimed:
        notes.append(f"No latency for {', '.join(untimed)}: latency is only valid at batch 1.")
    prompts = min(len({s.prompt_id for s in own}) for own in by_label.values())
    if prompts == 1:
        notes.append("A single prompt gives no intervals.")
    elif prompts < FEW_PROMPTS:
        notes.append(f"{prompts} prompts are too few: intervals under {FEW_PROMPTS} prompts are too narrow.")
    if (run.get("target") or {}).get("evaluators") == "tiny":
        notes.append("Metrics named -tiny come from the embedded evaluators and compare only with each other.")
    if any("environment" in entry for entry in run.get("resumed") or []):
        notes.append("The run was resumed in another environment (see run.json): its latencies mix both.")
    environments = [
        run.get("environment") or {},
        *(entry.get("environment") or {} for entry in run.get("resumed") or []),
    ]
    for crew in (e for e in environments if (e.get("workers") or 1) > 1 and len(untimed) < len(by_label)):
        shared = "sharing cores and caches" if crew.get("device") == "cpu" else "each on a GPU of its own"
        notes.append(
            f"{crew['workers']} workers measured latencies beside each other, {shared}: speedups are paired, as a "
            "prompt's methods ran on one worker unless it was lost (devices.jsonl names each sample's), but alone a "
            "latency may be shorter."
        )
    notes += [str(note) for note in (run.get("prompts") or {}).get("notes") or []]
    return notes
