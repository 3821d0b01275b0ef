"""Two runs compared: the methods that both have, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import find, iter_samples, read_run
from lanternbench.measure.change import (
    Change,
    Unjudged,
    Verdict,
    changes,
    condition,
    judge,
    mean_differences,
    not_compared,
)
from lanternbench.measure.figures import Figures
from lanternbench.measure.margins import MarginTest, judge_margins
from lanternbench.measure.samples import Sample
from lanternbench.measure.summary import notes_of
from lanternbench.metrics import key_of
from lanternbench.report.load import AnyRun, Run, differing, name_of
from lanternbench.settings import Comparing

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURES = ["speedup", "latency_s", "accept_len", "fidelity_loss"]
ROBUST = ["robust_speedup", "robust_latency_s"]
CLOCKED = {
    *("speedup", "latency_s", "tokens_per_s", "images_per_s"),
    *("end_to_end_s", "end_to_end_speedup"),
}


class Judgement(NamedTuple):
    """A change, and whether the gate fails by it."""

    change: Change
    failed: bool


@dataclass(frozen=True, repr=False)
class Comparison:
    """The changes of a run's figures from an older run's, and what gate and margins say of them.

    ``unjudged``: figures without a change; ``verdict``: None without a gate; ``margins``: a test
    for each method and metric that has one.
    """

    old: str
    new: str
    judged: list[Judgement]
    unjudged: list[Unjudged]
    verdict: Verdict | None
    margins: list[MarginTest]
    notes: list[str]
    is_noisy: bool

    @property
    def passed(self) -> bool:
        """Return whether no change fails the gate, and every method is shown to be not worse."""
        gate_passed = self.verdict is None or self.verdict.passed
        return gate_passed and all(test.conclusion == "not worse" for test in self.margins)

    @property
    def conclusion(self) -> str:
        """Return one line: what the gate says, and what was not compared; "" for nothing."""
        if self.verdict is None:
            return not_compared(self.unjudged)
        sentence = self.verdict.sentence()
        if self.is_noisy and any(change.figure in CLOCKED for change in self.verdict.judged):
            sentence += "; timing was noisy: robust_speedup errs less"
        return sentence

    @cached_property
    def changes(self) -> DataFrame:
        """A row per method and figure; intervals (95 %) of the relative change and the difference
        are ``_lo`` and ``_hi``.
        """
        from pandas import DataFrame  # takes longer to import than the command runs

        records = []
        for change, failed in self.judged:
            record = change._asdict() | {"failed": failed}
            for name in ("relative", "difference"):
                bounds = record[name] or (None, None, None)
                record |= zip((name, f"{name}_lo", f"{name}_hi"), bounds, strict=True)
            records.append(record)
        return DataFrame(records)

    def __repr__(self) -> str:
        lines = [f"{self.old} → {self.new}: {len(self.judged)} changes in `changes`"]
        lines += [f"{test.method}, {test.figure}: {test.sentence}" for test in self.margins]
        lines += [self.conclusion] if self.conclusion else []
        return "\n".join(lines)


def compare(old: AnyRun, new: AnyRun, options: Comparing) -> Comparison:
    """Compare the methods that two runs share, prompt by prompt.  Raises UserError for what is no
    run, runs that share nothing, and conditions that cannot be judged.
    """
    conditions = [condition(text) for text in options.fail_if]
    names = (name_of(old), name_of(new))
    runs = compared_runs(options.results, *names, options.mapped)
    known = runs[0].figures.metrics | runs[1].figures.metrics
    conditions = [one._replace(figure=key_of(one.figure, known)) for one in conditions]
    found, unjudged = changes_of(runs, [one.figure for one in conditions])
    verdict = judge(runs[0].figures, runs[1].figures, conditions) if conditions else None
    if verdict is None and not found:
        text = f"{names[0]} and {names[1]} share no method with two prompts or more"
        raise UserError(f"{text}: compare runs of the same sweep, or name methods with --map")
    return Comparison(
        runs[0].folder.name,
        runs[1].folder.name,
        judgements(found, verdict),
        unjudged,
        verdict,
        judged_margins(runs, options.not_worse) if options.not_worse else [],
        notes_on(runs),
        any(run.noisy for run in runs),
    )


@dataclass(frozen=True)
class ComparedRun(Run):
    """One of two runs: its figures, with the notes on them, instead of rows."""

    figures: Figures

    @property
    def noisy(self) -> bool:
        return any(note.fact == "noisy timing" for note in self.notes)


def changes_of(
    runs: Sequence[ComparedRun], wanted: Sequence[str]
) -> tuple[list[Change], list[Unjudged]]:
    """Return the changes from the first to the second run of the usual figures and of ``wanted``,
    and what has none.  Raises UserError if neither run has a figure of ``wanted``.
    """
    old, new = runs
    names = list(FIGURES)
    if any(run.noisy for run in runs):
        names += ROBUST
    names += old.figures.metrics | new.figures.metrics
    check_wanted(wanted, runs, names)
    return changes(old.figures, new.figures, list(dict.fromkeys([*names, *wanted])))


def judged_margins(runs: Sequence[ComparedRun], margins: dict[str, float]) -> list[MarginTest]:
    """Return the test of each method of both runs in each metric.  Raises UserError."""
    from lanternbench.report.margins import better, resolved

    old, new = runs
    sizes = resolved(margins, new.record.target.evaluators)
    differences = []
    for key in sizes:
        found = mean_differences(old.figures, new.figures, key, better(key))
        if not found:
            text = f"--not-worse {key}: the runs share no method with such scores of images"
            raise UserError(f"{text} over two prompts or more: score both, with --metrics")
        differences += found
    return judge_margins(differences, sizes)


def compared_runs(results: Path, old: str, new: str, mapped: Sequence[str]) -> list[ComparedRun]:
    """Return both runs, the old one with the labels that the new one has for its methods."""
    before = read_compared(results, old)
    after = read_compared(results, new)
    names = renamings(mapped, before.figures.labels, after.figures.labels)
    if names:
        samples = relabelled(iter_samples(before.folder), names)
        before = replace(before, figures=Figures(samples))
    return [before, after]


def read_compared(results: Path, name: str) -> ComparedRun:
    folder = find(results, [name])[0]
    run = read_run(folder)
    figures = Figures(iter_samples(folder))
    return ComparedRun(folder, run, [], list(notes_of(figures, run)), figures)


def relabelled(samples: Iterable[Sample], names: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the samples with other labels, which are given by their own."""
    for sample in samples:
        label = names.get(sample.label, sample.label)
        yield sample.model_copy(update={"label": label})


def renamings(texts: Sequence[str], old: Iterable[str], new: Iterable[str]) -> dict[str, str]:
    """Return labels of the new run by those of the old run that mean the same method.

    ``texts``: OLD=NEW each.  Raises UserError for labels that the runs do not have.
    """
    names: dict[str, str] = {}
    for text in texts:
        fitting = [(a, b) for a in old for b in new if text == f"{a}={b}"]
        if len(fitting) != 1:
            choice = (
                f"a method of the old run ({', '.join(old)}) = one of the new ({', '.join(new)})"
            )
            raise UserError(f"--map {text}: give {choice}")
        names |= fitting
    labels = [names.get(label, label) for label in old]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise UserError(f"--map: two methods of the old run become {twice[0]!r}: map both or none")
    return names


def notes_on(runs: Sequence[ComparedRun]) -> list[str]:
    """Return how the runs differ, and the warnings that concern one of them."""
    difference = differing(runs)
    notes = [difference.text] if difference is not None else []
    if all(run.record.config.noise == "shared" for run in runs):
        notes.append("Both runs drew with the same noise: differences are of paired images.")
    for run in runs:
        facts = [note.text for note in run.notes if note.fact is not None]
        notes += [f"{run.folder.name}: {text}" for text in facts]
    return notes


def check_wanted(wanted: Sequence[str], runs: Sequence[ComparedRun], known: Sequence[str]) -> None:
    """Raise UserError for a figure of a gate that neither run has."""
    names = dict.fromkeys([*known, *ROBUST, *wanted])
    measured = []
    for name in names:
        if any(run.figures.column(name)[1].any() for run in runs):
            measured.append(name)
    for name in wanted:
        if name not in measured:
            shown = ("tau" if one == "accept_len" else one for one in measured)
            text = f"--fail-if {name}: neither run has such a figure"
            raise UserError(f"{text}; choose one of {', '.join(shown)}")


def judgements(found: Sequence[Change], verdict: Verdict | None) -> list[Judgement]:
    """Return the changes; those that a gate judges have the gate's intervals."""
    if verdict is None:
        return [Judgement(change, False) for change in found]
    by_place = {(change.label, change.figure): change for change in verdict.judged}
    judged = []
    for change in found:
        change = by_place.get((change.label, change.figure), change)
        judged.append(Judgement(change, change in verdict.failed))
    return judged
