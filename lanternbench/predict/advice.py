"""Advice on the method for a target and a device, from predictions."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lanternbench.errors import UserError
from lanternbench.methods.method import named
from lanternbench.models.target import Target
from lanternbench.predict.predict import BATCHES, OTHERS, TITLE, Prediction
from lanternbench.predict.published import rows_of
from lanternbench.predict.replay import BASE, lacks_drafter, shape_of
from lanternbench.registry import components

PLAIN = "Lossless, no drafter"
DRAFTED = "Lossless, with a drafter"
RELAXED = "Relaxed"
WIDTH = 80


class Advice(NamedTuple):
    """The fastest methods on one device by group, and what would change that."""

    title: str
    best: dict[str, Prediction]
    changes: list[str]

    def lines(self) -> list[str]:
        """Return at most 25 lines of at most 80 columns."""
        texts = [self.title]
        for group, row in self.best.items():
            texts += [
                f"{group}: {speed(row)}",
                f"  τ {row.tau:.2f}, {row.acceptance}: {row.source}",
            ]
        texts += ["What would change this:", *(f"- {change}" for change in self.changes)]
        lines: list[str] = []
        for text in texts:
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
        return lines


def advice_of(target: Target, batch: int, rows: Sequence[Prediction]) -> Advice:
    """Return the advice for one device at a batch size.

    ``rows``: predictions at ``batch`` and at ``BATCHES``, of which those with accepted lengths of
    other targets do not count.  Raises UserError if there is no other.
    """
    own = [row for row in rows if row.method != BASE and row.acceptance not in OTHERS]
    best: dict[str, Prediction] = {}
    changes: list[str] = []
    for group in (PLAIN, DRAFTED, RELAXED):
        members = [row for row in own if row.fits and group_of(row) == group]
        at_batch = [row for row in members if row.batch == batch]
        if at_batch:
            best[group] = fastest(at_batch)
            changes += of_batches(group, members)
    if not best:
        raise UserError(
            f"no method of '{target.name}' has a known accepted length and fits in memory at batch "
            f"{batch}: measure one with `lanternbench run --target {target.name}`, or give a "
            "smaller --batch"
        )
    base = next(row for row in rows if row.method == BASE and row.batch == batch)
    changes += [of_baseline(target, base), *of_methods(target, {row.method for row in own})]
    title = f"{TITLE}: {base.target} on {base.device}, {base.dtype}, batch {batch}"
    return Advice(title, best, changes)


def group_of(row: Prediction) -> str:
    if not row.lossless:
        return RELAXED
    return DRAFTED if row.drafter else PLAIN


def speed(row: Prediction) -> str:
    """Return a method's speedup, its expected range, the paper's, and the quality if relaxed."""
    text = f"{row.label}, {row.speedup:.2f}×"
    if row.low is not None:
        text += f", expected {row.low:.1f} to {row.high:.1f}×"
    if row.published_speedup is not None:
        text += f"; the paper's own is {row.published_speedup:.2f}×"
    if not row.lossless:
        text += f"; {row.quality or 'its quality is not reported'}"
    return text if row.speedup > 1 else f"no gain by {text}"


def fastest(rows: Sequence[Prediction]) -> Prediction:
    """Return the fastest method, by the slowest of its rows: papers measured it more than once."""
    slowest: dict[str, Prediction] = {}
    for row in rows:
        known = slowest.get(row.label, row)
        slowest[row.label] = min(known, row, key=lambda one: one.speedup)
    return max(slowest.values(), key=lambda row: row.speedup)


def of_batches(group: str, rows: Sequence[Prediction]) -> Iterator[str]:
    """Yield a sentence on the batch sizes at which another method leads, ``ar`` if none gains."""
    last = ""
    steps: list[str] = []
    for batch in BATCHES:
        fitting = [row for row in rows if row.batch == batch]
        if fitting:
            best = fastest(fitting)
            leader = best.label if best.speedup > 1 else BASE
            if leader != last:
                steps.append(f"{leader} from {batch}")
            last = leader
    if len(steps) > 1:
        yield f"Batch size, {group.lower()}: {', '.join(steps)}."


def of_baseline(target: Target, base: Prediction) -> str:
    """Return a sentence on a slower baseline, with the papers' own."""
    length = shape_of(target).length
    published = [
        1e3 * float(paper["latency_s"]) / length
        for paper in rows_of(target.name)
        if paper["method"] == BASE and paper["latency_s"]
    ]
    text = f"A slower baseline flatters: ar is assumed to take {base.ms_per_token:.3g} ms a token"
    if published:
        ends = dict.fromkeys(f"{value:.3g}" for value in (min(published), max(published)))
        text += f"; in papers it takes {' to '.join(ends)}"
    return f"{text}."


def of_methods(target: Target, known: set[str]) -> Iterator[str]:
    """Yield a sentence on methods without a published drafter, and one on those whose accepted
    length is not ``known``.
    """
    names = [name for name in components("preset") if name != BASE and name not in known]
    without_drafter = [name for name in names if lacks_drafter(named(name), target)]
    unknown = [name for name in names if name not in without_drafter]
    if without_drafter:
        yield f"A drafter, which nobody published for this target: {', '.join(without_drafter)}."
    if unknown:
        yield (
            "A measurement, because no accepted length is published: "
            f"{', '.join(unknown)}. `lanternbench run --target {target.name}` makes one."
        )
