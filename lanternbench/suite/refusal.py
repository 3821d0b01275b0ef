"""Why a submission does not belong on the leaderboard."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pydantic import ValidationError

from lanternbench.experiment.run_reader import reason
from lanternbench.measure.figures import Figures
from lanternbench.measure.samples import IMPORTED, Sample
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summaries import LARGEST, Row, Summary
from lanternbench.prompts import PromptSet
from lanternbench.suite.protocol import Protocol, names, of_stamp, protocol
from lanternbench.suite.submission import Submission, clock, ms_per_token, recomputed, samples_of

NEAR = 1e-6  # relative: sums in another order


def judged(found: Submission) -> tuple[Summary | None, list[str]]:
    """The summary recomputed from the samples, and the reasons to refuse it; none where it fits."""
    try:
        return _judged(found)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # of a file from elsewhere
        why = reason(error) if isinstance(error, ValidationError) else error
        return None, [f"it has what no run can have ({why})"]


def _judged(found: Submission) -> tuple[Summary | None, list[str]]:
    run, frozen = found.about, of_stamp(found.suite)
    if frozen is None:
        known = ", ".join(protocol(name).stamp for name in names())
        return None, [f"its suite '{found.suite}' is none of this version ({known})"]
    samples = list(samples_of(run, found.prompts, found.samples))
    reasons = [] if found.run.config.suite == found.suite else ["its run followed another suite"]
    reasons += frozen.deviations(run) + _incomplete(found, frozen, samples)
    if reasons or not samples:
        return None, reasons or ["it has no samples"]
    figures = Figures(samples)
    summary = recomputed(run, figures, found.rows, found.sets)
    reasons = _tampered(found, summary, figures)
    return summary, reasons + [note.text.partition(": ")[0] for note in summary.notes if note.kind == "unfit"]


def _incomplete(found: Submission, frozen: Protocol, samples: Sequence[Sample]) -> list[str]:
    """Other prompts, samples that are absent, and such as no run of the protocol has."""
    if PromptSet(tuple(found.prompts), "", "", 0).hash != frozen.settings["prompts_hash"]:
        return ["its prompts are not the suite's"]
    labels = [str(method.get("label")) for method in found.run.methods]
    seeds = range(frozen.settings["seed"], frozen.settings["seed"] + frozen.settings["repeats"])
    wanted = Counter((label, p.id, seed) for label in labels for p in found.prompts for seed in seeds)
    have = Counter((sample.label, sample.prompt_id, sample.seed) for sample in samples)
    each = len(found.prompts) * len(seeds)
    reasons = [
        f"it has {n} of {each} samples of {label}"
        for label in dict.fromkeys(labels)
        if (n := sum(1 for key in wanted if key[0] == label and have[key])) < each
    ]
    if not reasons and (have != wanted or found.samples.keys() - set(labels)):
        reasons.append("it has samples that no run of the suite has")
    if any(sample.method == IMPORTED for sample in samples):
        reasons.append("it has imported figures, which were not measured")
    if tokens := {s.tokens for s in samples} - {math.prod(found.run.target.get("grid") or [0])}:
        reasons.append(f"it has images of {tokens.pop()} tokens")
    if any(s.step_s and sum(s.step_s) > s.decode_s + 1e-3 for s in samples):
        reasons.append("it has steps that took longer than their decode")
    return reasons


def _tampered(found: Submission, summary: Summary, figures: Figures) -> list[str]:
    """Figures that do not follow from the samples."""
    rows = {row.label: row for row in summary.rows}
    if [row.label for row in found.rows] != list(rows):
        return ["its rows are not those of its samples"]
    wrong = [f"{name} of {row.label}" for row in found.rows for name in _unequal(row, rows[row.label], found.sets)]
    wrong += [] if _same(found.ar_ms_per_token, ms_per_token(summary.rows)) else ["ar_ms_per_token"]
    wrong += [name for name, value in clock(figures).items() if not _near(found.clock.get(name), value)]
    return [f"its samples give another {wrong[0]}"] if wrong else []


def _unequal(stated: Row, row: Row, sets: Sequence[str]) -> list[str]:
    facts = [name for name in ("method", "n", "lossless", "options") if getattr(stated, name) != getattr(row, name)]
    limits = [name for name in sets if any(abs(x) > LARGEST or x != x for x in stated.figure(name) if x is not None)]
    return facts + limits + [name for name, value in stated.figures.items() if not _same(value, row.figure(name))]


def _same(stated: Estimate, found: Estimate) -> bool:
    return all(map(_near, stated, found))


def _near(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=NEAR, abs_tol=1e-9))
