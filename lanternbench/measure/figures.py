"""The figures of samples as columns, from which every table of a run is made, and statistics of a
method's steps.

A figure of several samples is a ratio of sums, Σ top / Σ bottom: of tokens and steps for τ, of
scores and images for a metric.  One pass over the samples keeps two numbers of each figure,
whatever their number of tokens.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanternbench import metrics
from lanternbench.measure.samples import Sample
from lanternbench.measure.statistics import Floats

BASELINE = "ar"
# the ratio of the baseline's figure to the method's, over samples of the same prompt and seed
AGAINST_BASELINE = {
    "speedup": "latency_s",
    "robust_speedup": "robust_latency_s",
    "end_to_end_speedup": "end_to_end_s",
}
MORE_LOAD = 2.0  # programs more, and times as many, that make one load clearly another
PARTS = 16  # of an image, in raster order
SLOW = 2.0  # a step of more than so many medians was held up
Flags = NDArray[np.bool_]
ALL = slice(None)  # samples


def by_position(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (tokens, steps) that begin in each of ``PARTS`` equal stretches of an image, from its steps'
    accepted lengths.
    """
    begins = lengths.cumsum() - lengths
    part = begins * PARTS // max(lengths.sum(), 1)
    part = np.minimum(part, PARTS - 1)
    tokens = np.bincount(part, lengths, PARTS).astype(np.int64)
    return tokens, np.bincount(part, minlength=PARTS)


def robust(
    step_s: Sequence[float], cpu_s: float | None = None, threads: int | None = None
) -> tuple[float, int]:
    """Return the seconds of a decode that other programs disturb least, and how many steps took
    more than ``SLOW`` medians.

    With one CPU thread its CPU seconds ``cpu_s``, which do not count while another program has the
    core; else the median step (which busy programs make longer, too) times the number of steps.
    """
    middle = median(step_s)
    seconds = cpu_s if cpu_s and threads == 1 else middle * len(step_s)
    return seconds, sum(step > SLOW * middle for step in step_s)


def joint_rates(histogram: Sequence[int]) -> list[float]:
    """Return vLLM's rate by position, P(at least i drafts accepted): histogram of steps that committed 0,
    1, 2, … tokens.
    """
    # steps that committed so many tokens or more
    at_least = list(accumulate(reversed(histogram)))[::-1]
    return [n / at_least[0] for n in at_least[2:] if n]


def conditional_rates(histogram: Sequence[int]) -> list[float]:
    """Return P(drafted token i accepted | all before it were), i = 1, 2, …: NVIDIA's conditional
    acceptance rate.
    """
    joint = joint_rates(histogram)
    return [rate / before for before, rate in zip([1.0, *joint], joint)]


def acceptance(histogram: Sequence[int]) -> dict[str, object]:
    """Return acceptance by position as vLLM and AIPerf name it, empty without any; the mean counts the
    bonus token.
    """
    joint = joint_rates(histogram)
    if not joint:
        return {}
    return {
        "mean_acceptance_length": 1.0 + sum(joint),
        "per_position": joint,
        "conditional_per_position": conditional_rates(histogram),
        "acceptance_histogram": list(histogram[1:]),
    }


class Steps:
    """The steps of many samples of one method; the prefill, which drafts nothing, is left out of
    accepted lengths.
    """

    def __init__(self) -> None:
        self.seconds = array("f")  # of every step of timed samples
        self.latencies = array("d")  # of every timed sample
        self.lengths = Counter[int]()
        self.phases = defaultdict[str, float](float)  # seconds
        self._places = np.zeros((2, PARTS), np.int64)  # tokens, steps of each

    def add(self, sample: Sample) -> None:
        self.lengths.update(sample.accept_lengths[1:])
        self._places += by_position(np.array(sample.accept_lengths[1:], np.int64))
        for name, seconds in (sample.phases or {}).items():
            self.phases[name.removesuffix("_s")] += seconds
        if sample.timed:
            self.latencies.append(sample.decode_s)
            self.seconds.extend(sample.step_s or [])

    def percentiles(self) -> dict[str, float]:
        """Return p50, p95, p99 of step times and p50, p95 of latencies per image, in seconds, if
        known.
        """
        values: dict[str, float] = {}
        for name, times, ranks in (
            ("step", self.seconds, (50, 95, 99)),
            ("latency", self.latencies, (50, 95)),
        ):
            if len(times):
                # of a copy of our own
                at = np.percentile(np.array(times, np.float64), ranks, overwrite_input=True)
                values |= {f"{name}_p{rank}_s": float(value) for rank, value in zip(ranks, at)}
        return values

    def histogram(self) -> list[int]:
        """Return the number of steps that committed 0, 1, 2, … tokens."""
        return [self.lengths[n] for n in range(max(self.lengths, default=-1) + 1)]

    def accept_len_by_position(self) -> list[float | None]:
        """Return τ of the steps that begin in each sixteenth of the image, in raster order; None
        if none begins there.
        """
        return [tokens / steps if steps else None for tokens, steps in zip(*self._places.tolist())]

    def phase_shares(self) -> dict[str, float]:
        """Return the share of the decode in each phase."""
        whole = sum(self.phases.values())
        if not whole:
            return {}
        return {name: seconds / whole for name, seconds in self.phases.items()}


Fraction = tuple[str, float, float]  # name, top, bottom


def of_sample(sample: Sample) -> Iterator[Fraction]:
    """Yield (name, top, bottom) of every figure of one sample."""
    if sample.timed:
        yield from _times(sample)
    yield from _lengths(sample)
    if sample.phases:
        whole = sum(sample.phases.values())
        draft = sample.phases.get("draft_s", 0.0)
        forward = sample.phases.get("verify_s", 0.0)
        yield "draft_fraction", draft, whole
        yield "overhead_fraction", whole - (draft + forward), whole
    for name, value in _means(sample).items():
        if value is not None:
            yield name, value, 1


def _times(sample: Sample) -> Iterator[Fraction]:
    whole = sample.encode_s + sample.decode_s + sample.render_s
    yield "latency_s", sample.decode_s, 1
    yield "render_s", sample.render_s, 1
    yield "end_to_end_s", whole, 1
    yield "decode_share", sample.decode_s, whole
    drawn = sample.tokens
    if sample.accept_lengths:
        drawn -= sample.accept_lengths[0]  # the prefill's, whose time decode_s leaves out
    yield "tokens_per_s", drawn, sample.decode_s
    yield "token_ms", 1000 * sample.decode_s, drawn
    if sample.step_s:
        seconds, slow = robust(sample.step_s, sample.cpu_s, sample.threads)
        yield "robust_latency_s", seconds, 1
        yield "slow_steps", slow, len(sample.step_s)
    if sample.cpu_s is not None:
        yield "cpu_share", sample.cpu_s, sample.decode_s


def _lengths(sample: Sample) -> Iterator[Fraction]:
    """Yield figures of steps; the prefill, its first step, is in step_compression alone."""
    if sample.steps:
        yield "step_compression", sample.tokens, sample.steps
    drafted = sample.steps - 1
    if sample.accept_lengths:
        lengths = sample.accept_lengths[1:]
        depths = sample.tree_depths[1:]
        yield "images_per_s", 1, sample.decode_s
        yield "accept_len", sum(lengths), drafted
        yield "tree_depth", sum(depths), len(depths)
        yield "acceptance_rate", sum(lengths) - drafted, sum(depths)
    if sample.first_token_acceptance is not None:
        yield "first_token_acceptance", sample.first_token_acceptance * drafted, drafted


def _means(sample: Sample) -> dict[str, float | None]:
    """Return the figures whose mean over images counts."""
    means: dict[str, float | None] = {
        "stated_s": sample.stated_s,
        "fidelity_loss": sample.fidelity_loss,
        "peak_memory_mb": sample.peak_memory_mb,
        "load": sample.load if sample.timed else None,
    }
    means |= sample.stats or {}
    for name, value in (sample.drafter or {}).items():
        means[f"drafter_{name}"] = value
    return means | sample.metrics


class Figures:
    """Figures of samples, by label and prompt: add all samples first, then ask."""

    def __init__(self, samples: Iterable[Sample] = ()):
        self.labels: dict[str, int] = {}
        self.prompts: dict[str, int] = {}  # by text: two ids of one caption are one observation
        self.categories: dict[str | None, int] = {}
        self.settings: dict[str | None, int] = {}
        self.methods: dict[str, tuple[str, dict[str, Any]]] = {}  # label -> preset, options
        self.metrics: dict[str, None] = {}
        self.steps: defaultdict[str, Steps] = defaultdict(Steps)  # by label
        self.pairs: list[tuple[str, int]] = []  # prompt id and seed of each sample
        self._codes = {name: array("q") for name in ("label", "prompt", "category", "setting")}
        # of each figure: sample, top and bottom, one after the other
        self._columns = defaultdict[str, array](lambda: array("d"))
        self._tokens: dict[int, NDArray[np.int32]] = {}  # of images that share noise, by sample
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        index = len(self)
        self.methods.setdefault(sample.label, (sample.method, sample.options))
        self.metrics |= dict.fromkeys(sample.metrics)
        self.steps[sample.label].add(sample)
        for name, codes, value in (
            ("label", self.labels, sample.label),
            ("prompt", self.prompts, sample.prompt or sample.prompt_id),
            ("category", self.categories, sample.category or None),
            ("setting", self.settings, sample.setting),
        ):
            self._codes[name].append(codes.setdefault(value, len(codes)))  # type: ignore[arg-type, call-overload]
        self.pairs.append((sample.prompt_id, sample.seed))
        for figure, *fraction in of_sample(sample):
            self._columns[figure].extend((index, *fraction))
        if sample.noise == "shared":
            self._tokens[index] = np.array(sample.token_ids, np.int32)

    def __len__(self) -> int:
        return len(self._codes["label"])

    def codes(self, name: str) -> NDArray[np.int64]:
        """Return the number of each sample's label, prompt, category or setting: [samples]."""
        return np.frombuffer(self._codes[name], np.int64)

    def of(self, label: str) -> Flags:
        """Return a mask of the samples of this label: [samples]."""
        return self.codes("label") == self.labels.get(label, -1)

    def column(self, name: str) -> tuple[Floats, Floats]:
        """Return (top, bottom) of a figure [samples]; both are 0 if a sample has none."""
        if name in AGAINST_BASELINE:
            own, counts = self.column(AGAINST_BASELINE[name])
            of_baseline = own[self.paired]
            both = self.comparable & (counts > 0) & (counts[self.paired] > 0)
            return np.where(both, of_baseline, 0.0), np.where(both, own, 0.0)
        top, bottom = np.zeros((2, len(self)))
        if name == "token_agreement":
            self._compare(top, bottom)
            return top, bottom
        numbers = np.reshape(self._columns.get(name, []), (-1, 3))
        index = numbers[:, 0].astype(np.int64)
        top[index], bottom[index] = numbers[:, 1:].T
        if name in self.metrics and metrics.column(name).over_categories:
            # weights of 1 / (samples of its label and category) make a mean one over categories
            groups = self.codes("label") * len(self.categories) + self.codes("category")
            sizes = np.bincount(groups, bottom > 0)
            weights = 1 / np.maximum(sizes[groups], 1)
            return top * weights, bottom * weights
        return top, bottom

    def _compare(self, same: Floats, tokens: Floats) -> None:
        """Fill in how many tokens of each image are those of the baseline's, and of how many."""
        for index, drawn in self._tokens.items():
            of_baseline = self._tokens.get(self.paired[index])
            if of_baseline is not None:
                same[index] = (drawn == of_baseline).sum()
                tokens[index] = drawn.size

    @cached_property
    def paired(self) -> NDArray[np.int64]:
        """For every sample the index of the baseline's with the same prompt and seed, -1 if there
        is none.
        """
        base = {self.pairs[i]: i for i in np.flatnonzero(self.of(BASELINE))}
        return np.array([base.get(pair, -1) for pair in self.pairs], np.int64)

    @cached_property
    def comparable(self) -> Flags:
        """A mask of the samples with a baseline's of one setting and about one load, as far as
        both are recorded: [samples].
        """
        load, recorded = self.column("load")
        load = np.where(recorded > 0, load, np.nan)
        other = load[self.paired]
        settings = self.codes("setting")
        same_setting = settings == settings[self.paired]
        low = np.minimum(load, other)
        high = np.maximum(load, other)
        other_load = (high - low > MORE_LOAD) & (high > MORE_LOAD * low)
        return (self.paired >= 0) & same_setting & ~other_load

    def of_prompts(self, name: str, where: Flags) -> tuple[Floats, Floats]:
        """Return (top, bottom) of a figure, summed over the samples of each prompt in ``where``:
        [all prompts] each.
        """
        prompt = self.codes("prompt")[where]
        top, bottom = self.column(name)
        count = len(self.prompts)
        top_sums = np.bincount(prompt, top[where], count)
        bottom_sums = np.bincount(prompt, bottom[where], count)
        return top_sums.astype(float), bottom_sums.astype(float)

    def values(self, name: str, label: str) -> Floats:
        """Return a figure of one label by prompt, over its seeds: [all prompts], NaN if a prompt
        has none.
        """
        samples = self.of(label)
        if name == "latency_s":
            # as in ``speedup``: what was timed otherwise than its baseline's is left out
            samples &= self.comparable | (self.paired < 0)
        top, bottom = self.of_prompts(name, samples)
        return np.divide(top, bottom, np.full_like(top, np.nan), where=bottom > 0)

    def difference(self, name: str, where: Flags) -> Floats:
        """Return the mean difference to the baseline, prompt by prompt, over samples that both
        have: [prompts].
        """
        top, bottom = self.column(name)
        both = (bottom > 0) & (self.paired >= 0) & (bottom[self.paired] > 0)
        chosen = np.flatnonzero(where & both)
        base = self.paired[chosen]
        differences = top[chosen] / bottom[chosen] - top[base] / bottom[base]
        _, prompt = np.unique(self.codes("prompt")[chosen], return_inverse=True)
        counts = np.maximum(np.bincount(prompt), 1)
        return np.bincount(prompt, differences) / counts

    def mean(self, name: str, label: str) -> float | None:
        """Return a figure of one label; None if it was not measured."""
        return self.ratio(name, self.of(label))

    def ratio(self, name: str, where: Flags | slice = ALL) -> float | None:
        """Return Σ top / Σ bottom over the samples in ``where``; None without any."""
        top, bottom = self.column(name)
        below = bottom[where].sum()
        return float(top[where].sum() / below) if below else None
