"""Intervals and paired tests: pure functions of arrays.

The prompt is the unit of sampling: seeds of one prompt are no independent evidence.  Intervals are
95 % bootstrap percentile intervals, widened for small samples (Hesterberg 2015, "What Teachers
Should Know About the Bootstrap", section 5.3).  No resampling leaves the range of the values seen,
so few prompts still give too narrow intervals: the measured coverage for normal data is 49 % with
2 prompts, 74 % with 3, 87 % with 4, 92 % with 5, 93 % with 6, 94 to 95 % from 8 on (4,000 trials
each).
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

ALPHA = 0.05
RESAMPLES = 10_000
MANY = 1000  # prompts, from which on a fifth of the draws will do
# of a run that goes on until its methods are told apart; each takes twice the prompts of the one
# before
LOOKS = 4
FLIPS = 100_000  # sign patterns: the least p before its correction is 1 / FLIPS
_CHUNK = 1 << 21  # numbers held at a time
Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A figure: its value, 95 % interval, number of observations, and p-value against the
    baseline; None: unknown.
    """

    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    n: int | None = None
    p: float | None = None


def draws(prompts: int, n: int = RESAMPLES) -> int:
    """Return how many resamplings, or sign patterns, of so many prompts are drawn."""
    return n if prompts < MANY else n // 5


def bootstrap_ratio(
    base: ArrayLike, other: ArrayLike, n: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """Return mean(base) / mean(other) of pairs [prompts] with its interval.  Raises ValueError if
    there is no ratio.
    """
    top, bottom = _pairs("bootstrap_ratio", base, other)
    estimate = bootstrap_ratios(top[:, None], bottom[:, None], n, seed)[0]
    if estimate.value is None:
        raise ValueError("bootstrap_ratio needs a denominator other than zero")
    return estimate


def bootstrap_mean(x: ArrayLike, n: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Return the mean of the values [prompts] with its 95 % interval over ``n`` resamplings. Raises as
    ``bootstrap_ratio``.
    """
    values = np.asarray(x, np.float64)
    return bootstrap_ratio(values, np.ones_like(values), n, seed)


def bootstrap_ratios(
    top: Floats, bottom: Floats, n: int = RESAMPLES, seed: int = 0
) -> list[Estimate]:
    """Return Σ top / Σ bottom of each column [prompts, columns], in which 0 is no value, on the
    same ``n`` resamplings.
    """
    sums = resampled(np.concatenate([top, bottom], 1), n, seed)
    above, below = np.hsplit(sums, 2)
    return list(map(_percentiles, top.T, bottom.T, above.T, below.T))


def resampled(values: Floats, n: int = RESAMPLES, seed: int = 0) -> Floats:
    """Return column sums [n, columns] of ``n`` resamplings of the rows of values [prompts, columns], the
    same for all.
    """
    prompts, columns = values.shape
    sums = np.empty((n, columns))
    rng = np.random.default_rng(seed)
    chunk = max(1, min(n, _CHUNK // max(prompts, 1)))
    for start in range(0, n, chunk):
        rows = min(chunk, n - start)
        drawn = rng.integers(prompts, size=(rows, prompts), dtype=np.int32)
        cells = drawn + np.arange(rows)[:, None] * prompts
        counts = np.bincount(cells.ravel(), minlength=rows * prompts)
        counts = counts.reshape(rows, prompts).astype(np.float64)
        sums[start : start + rows] = counts @ values
    return sums


def _percentiles(top: Floats, bottom: Floats, above: Floats, below: Floats) -> Estimate:
    """Return Σ top / Σ bottom of one column [prompts], with the interval of the ratios of its
    resampled sums ``above``, ``below`` [n].
    """
    units = int((bottom != 0).sum())
    if bottom.sum() == 0:
        return Estimate(None, n=units)
    value = float(top.sum() / bottom.sum())
    if units < 2:
        return Estimate(value, n=units)
    has_value = below != 0  # a resampling may miss every prompt that has one
    tail = _tail(units)
    lo, hi = np.quantile(above[has_value] / below[has_value], [tail, 1 - tail])
    return Estimate(value, float(lo), float(hi), units)


def _tail(units: int) -> float:
    """Return Hesterberg's expanded tail, Φ(−√(n/(n−1)) · t_{n−1}), which is 2.5 % for many prompts and
    less for few.
    """
    reach = math.sqrt(units / (units - 1)) * student_t(units - 1, ALPHA)
    return NormalDist().cdf(-reach)


def paired_test(a: ArrayLike, b: ArrayLike, n: int = RESAMPLES, seed: int = 0) -> float:
    """Return the two-sided p-value of the sign-flip permutation test on the mean difference of pairs a, b
    [prompts].

    The share of sign patterns whose |mean(±(a − b))| is at least the observed one: of all for up
    to 12 pairs, else of ``n`` random ones, as (1 + hits) / (1 + n) (Phipson & Smyth, 2010).
    Raises ValueError for lists of unequal or no length, and for values that are not finite.
    """
    first, second = _pairs("paired_test", a, b)
    return float(paired_tests((first - second)[:, None], n, seed)[0])


def _pairs(test: str, a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    """Return the two sides of pairs as arrays.  Raises ValueError."""
    first = np.asarray(a, np.float64)
    second = np.asarray(b, np.float64)
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise ValueError(f"{test} needs two lists of the same length, with one pair or more")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError(f"{test} needs finite values")
    return first, second


def paired_tests(differences: Floats, n: int = RESAMPLES, seed: int = 0) -> Floats:
    """Return ``paired_test`` of each column of differences [prompts, columns], 0 without a pair,
    on the same sign patterns.
    """
    pairs = len(differences)
    whole = differences.sum(0)
    # equal sums in another order of addition differ by rounding: they must count as ties
    rounding = 1e-12 * np.abs(differences).sum(0)
    least = np.abs(whole) - rounding
    if pairs <= 12:
        sums = np.abs(_all_signs(pairs) @ differences)
        return (sums >= least).mean(0)
    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // pairs)
    hits: Floats = np.zeros(differences.shape[1])
    for start in range(0, n, chunk):
        rows = min(chunk, n - start)
        count = rows * pairs
        drawn = np.frombuffer(rng.bytes(-(-count // 8)), np.uint8)
        bits = np.unpackbits(drawn, count=count).reshape(rows, pairs)
        # Σ ± d = 2 Σ over the positive − Σ d
        positive = bits.astype(np.float64) @ differences
        sums = np.abs(2 * positive - whole)
        hits += (sums >= least).sum(0)
    return (1 + hits) / (1 + n)


def _all_signs(pairs: int) -> Floats:
    """Return every sign pattern of so many pairs, −1 and 1: [2^pairs, pairs]."""
    patterns = np.arange(1 << pairs)[:, None]
    bits = (patterns >> np.arange(pairs)) & 1
    return (2 * bits - 1).astype(np.float64)


def holm(p: ArrayLike) -> Floats:
    """Return the p-values of a family of tests, adjusted for their number (Holm, 1979): below α
    they hold with 1 − α together.
    """
    values = np.asarray(p, np.float64)
    order = np.argsort(values)
    remaining = np.arange(len(values), 0, -1)  # tests with a p-value that is no smaller
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(remaining * values[order]).clip(max=1.0)
    return adjusted


def holm_in_two(p: ArrayLike, first: ArrayLike, looks: int = 1) -> Floats:
    """Return ``holm`` within two families, the tests marked ``first`` [tests] and all others; at
    ``looks`` (Bonferroni).
    """
    values = np.minimum(looks * np.asarray(p, np.float64), 1)
    chosen = np.asarray(first, bool)
    adjusted = np.empty_like(values)
    for family in (chosen, ~chosen):
        adjusted[family] = holm(values[family])
    return adjusted


def mean_over_runs(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of the values of independent runs with Student's 95 % interval; no value if
    a run has none.
    """
    values = [estimate.value for estimate in estimates if estimate.value is not None]
    counts = [estimate.n for estimate in estimates if estimate.n is not None]
    images = sum(counts) if counts else None
    runs = len(values)
    if runs < max(len(estimates), 2):
        return Estimate(n=images)
    mean = float(np.mean(values))
    half = student_t(runs - 1, ALPHA) * float(np.std(values, ddof=1)) / math.sqrt(runs)
    return Estimate(mean, mean - half, mean + half, images)


def prompts_needed(tests: int, looks: int = 1) -> int:
    """Return the prompts with which a family of ``tests`` can tell a difference although one
    prompt goes the other way.

    Of 2^n sign patterns 2·(n + 1) are then as extreme as the observed one; Holm multiplies their
    share by ``tests``.
    """
    return next(n for n in range(1, 64) if looks * max(tests, 1) * 2 * (n + 1) / 2**n < ALPHA)


def look_sizes(methods: int) -> list[int]:
    """Return the prompts at each look of a run with so many methods besides the baseline."""
    return [prompts_needed(methods, LOOKS) << look for look in range(LOOKS)]


def student_t(df: int, alpha: float) -> float:
    """Return the t that |T| exceeds with probability ``alpha``, by bisection: importing scipy
    takes longer than a comparison.

    With t = √ν · tan θ, P(|T| ≤ t) is a finite sum over powers of cos θ (Abramowitz and Stegun,
    26.7.3 and 26.7.4).
    """
    odd = df % 2
    k = np.arange(1, (df - odd) // 2)
    ratios = 2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k)

    def within(angle: float) -> float:
        """Return P(|T| ≤ √ν · tan(angle))."""
        total = 1 + float(np.cumprod(ratios * math.cos(angle) ** 2).sum())
        if not odd:
            return math.sin(angle) * total
        if df == 1:
            return 2 / math.pi * angle
        return 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)

    low = 0.0
    high = math.pi / 2
    for _ in range(64):
        middle = (low + high) / 2
        if within(middle) < 1 - alpha:
            low = middle
        else:
            high = middle
    return math.sqrt(df) * math.tan(low)
