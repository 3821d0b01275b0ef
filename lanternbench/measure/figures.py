"""The figures of samples as columns, from which every table of a run is made.

A figure of several samples is a ratio of sums, Σ top / Σ bottom: of tokens and steps for τ, of scores and images for a
metric.  One pass over the samples keeps two numbers of each figure, whatever their number of tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanternbench import metrics
from lanternbench.measure.samples import Sample
from lanternbench.measure.statistics import Floats
from lanternbench.measure.steps import Steps, robust
from lanternbench.measure.timing import same_load

BASELINE = "ar"
# the ratio of the baseline's figure to the method's, over samples of the same prompt and seed
AGAINST_BASELINE = {
    "speedup": "latency_s", "robust_speedup": "robust_latency_s", "end_to_end_speedup": "end_to_end_s",
}  # fmt: skip
MEASURED = [
    *("latency_s", "speedup", "robust_latency_s", "robust_speedup", "end_to_end_s", "end_to_end_speedup"),
    *("tokens_per_s", "images_per_s", "step_compression", "accept_len", "tree_depth", "acceptance_rate"),
    "first_token_acceptance",
    *("fidelity_loss", "log_prob", "top1_prob", "entropy", "drafter_top1", "drafter_top3", "drafter_tv"),
    *("draft_fraction", "overhead_fraction", "stated_s"),
]


def of_sample(sample: Sample) -> Iterator[tuple[str, float, float]]:
    """(name, top, bottom) of every figure that one sample has.

    The first step is the prefill, which gives the first token without a draft: it counts as a step of
    ``step_compression`` and is left out of ``accept_len`` and ``tree_depth``.
    """
    if sample.timed:
        yield "latency_s", sample.decode_s, 1
        yield "end_to_end_s", sample.encode_s + sample.decode_s + sample.render_s, 1
        yield "tokens_per_s", sample.tokens, sample.decode_s
        if sample.step_s:
            seconds, slow = robust(sample.step_s, sample.cpu_s, sample.threads)
            yield "robust_latency_s", seconds, 1
            yield "slow_steps", slow, len(sample.step_s)
        if sample.cpu_s is not None:
            yield "cpu_share", sample.cpu_s, sample.decode_s
        if sample.load is not None:
            yield "load", sample.load, 1
    if sample.stated_s is not None:
        yield "stated_s", sample.stated_s, 1
    if sample.steps:
        yield "step_compression", sample.tokens, sample.steps
    if sample.accept_lengths:
        yield "images_per_s", 1, sample.decode_s
        yield "accept_len", sum(sample.accept_lengths[1:]), len(sample.accept_lengths) - 1
        yield "tree_depth", sum(sample.tree_depths[1:]), len(sample.tree_depths[1:])
        yield "acceptance_rate", sum(sample.accept_lengths[1:]) - (sample.steps - 1), sum(sample.tree_depths[1:])
    if sample.first_token_acceptance is not None:
        yield "first_token_acceptance", sample.first_token_acceptance * (sample.steps - 1), sample.steps - 1
    if sample.fidelity_loss is not None:
        yield "fidelity_loss", sample.fidelity_loss, 1
    for prefix, part in (("", sample.stats), ("drafter_", sample.drafter)):
        yield from ((prefix + name, value, 1) for name, value in (part or {}).items())
    if sample.phases:
        whole = sum(sample.phases.values())
        forwards = sum(sample.phases.get(name, 0.0) for name in ("draft_s", "verify_s"))
        yield "draft_fraction", sample.phases.get("draft_s", 0.0), whole
        yield "overhead_fraction", whole - forwards, whole
    if sample.peak_memory_mb is not None:
        yield "peak_memory_mb", sample.peak_memory_mb, 1
    yield from ((name, value, 1) for name, value in sample.metrics.items() if value is not None)


class Figures:
    """Figures of samples, by label and prompt: add all samples first, then ask."""

    def __init__(self, samples: Iterable[Sample] = ()):
        self.labels: dict[str, int] = {}
        self.prompts: dict[str, int] = {}
        self.categories: dict[str | None, int] = {}
        self.methods: dict[str, tuple[str, dict[str, Any]]] = {}  # label -> preset, options
        self.metrics: dict[str, None] = {}
        self.steps: dict[str, Steps] = {}  # by label
        self.settings: dict[str | None, int] = {}
        self._codes = {name: array("q") for name in ("label", "prompt", "category", "seed", "setting")}
        self._columns: dict[str, tuple[array, array]] = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """One more sample."""
        at = len(self)
        self.methods.setdefault(sample.label, (sample.method, sample.options))
        self.metrics |= dict.fromkeys(sample.metrics)
        if sample.label not in self.steps:
            self.steps[sample.label] = Steps()
        self.steps[sample.label].add(sample)
        for name, known, value in (
            ("label", self.labels, sample.label),
            ("prompt", self.prompts, sample.prompt_id),
            ("category", self.categories, sample.category or None),
            ("setting", self.settings, sample.setting),
        ):
            self._codes[name].append(known.setdefault(value, len(known)))  # type: ignore[arg-type, call-overload]
        self._codes["seed"].append(sample.seed)
        for figure, above, below in of_sample(sample):
            if (columns := self._columns.get(figure)) is None:
                columns = self._columns[figure] = array("d"), array("d")
            for column, part in zip(columns, (above, below)):
                if len(column) < at:
                    column.extend([0.0] * (at - len(column)))
                column.append(part)

    def __len__(self) -> int:
        return len(self._codes["label"])

    def codes(self, name: str) -> NDArray[np.int64]:
        """Of every sample the number of its label, prompt or category, or its seed: [samples]."""
        return np.frombuffer(self._codes[name], np.int64)

    def of(self, label: str) -> NDArray[np.bool_]:
        """Which samples are of this label: [samples]."""
        return self.codes("label") == self.labels.get(label, -1)

    def column(self, name: str) -> tuple[Floats, Floats]:
        """(top, bottom) of a figure [samples]; both are 0 where a sample has none."""
        if name in AGAINST_BASELINE:
            top, bottom = self.column(AGAINST_BASELINE[name])
            both = self.comparable & (bottom > 0) & (bottom[self.paired] > 0)
            return np.where(both, top[self.paired], 0.0), np.where(both, top, 0.0)
        found = self._columns.get(name, (array("d"), array("d")))
        top, bottom = (np.pad(np.asarray(part, np.float64), (0, len(self) - len(part))) for part in found)
        if name in self.metrics and metrics.column(name).over_categories:
            weights = self._category_weights(bottom > 0)
            return top * weights, bottom * weights
        return top, bottom

    def _category_weights(self, there: NDArray[np.bool_]) -> Floats:
        """Of every sample 1 / (samples ``there`` of its label and category): they make a mean one over categories."""
        groups = self.codes("label") * len(self.categories) + self.codes("category")
        return 1 / np.maximum(np.bincount(groups, there)[groups], 1)

    @cached_property
    def paired(self) -> NDArray[np.int64]:
        """Of every sample the index of the baseline's with the same prompt and seed, -1 where there is none."""
        keys = list(zip(self._codes["prompt"], self._codes["seed"]))
        base = {keys[i]: i for i in np.flatnonzero(self.of(BASELINE))}
        return np.array([base.get(key, -1) for key in keys], np.int64)

    @cached_property
    def comparable(self) -> NDArray[np.bool_]:
        """Which samples have a baseline's that was timed as they were: [samples]."""
        load, known = self.column("load")
        load, settings = np.where(known > 0, load, np.nan), self.codes("setting")
        alike = (settings == settings[self.paired]) & same_load(load, load[self.paired])
        return (self.paired >= 0) & alike

    def by_prompt(self, names: Sequence[str], where: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Sums over the samples of each prompt: (top, bottom), each [prompts, figures]; of prompts in ``where``."""
        chosen = np.flatnonzero(where)
        present, index = np.unique(self.codes("prompt")[chosen], return_inverse=True)
        sums = np.zeros((2, len(present), len(names)))
        for c, name in enumerate(names):
            for side, part in enumerate(self.column(name)):
                sums[side, :, c] = np.bincount(index, part[chosen], len(present))
        return sums[0], sums[1]

    def of_prompts(self, name: str, chosen: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """(top, bottom) of a figure, summed over the chosen samples of each prompt: [all prompts] each."""
        index = self.codes("prompt")
        sums = [np.bincount(index, part * chosen, len(self.prompts)) for part in self.column(name)]
        return np.asarray(sums[0], float), np.asarray(sums[1], float)

    def difference(self, name: str, where: NDArray[np.bool_]) -> Floats:
        """Mean difference to the baseline, prompt by prompt, over samples that both have: [prompts]."""
        top, bottom = self.column(name)
        chosen = np.flatnonzero(where & (bottom > 0) & (self.paired >= 0) & (bottom[self.paired] > 0))
        apart = top[chosen] / bottom[chosen] - top[self.paired[chosen]] / bottom[self.paired[chosen]]
        _, index = np.unique(self.codes("prompt")[chosen], return_inverse=True)
        return np.bincount(index, apart) / np.maximum(np.bincount(index), 1)

    def ratio(self, name: str, where: NDArray[np.bool_]) -> float | None:
        """Σ top / Σ bottom over the samples in ``where``; None without any."""
        top, bottom = (part[where].sum() for part in self.column(name))
        return float(top / bottom) if bottom else None
