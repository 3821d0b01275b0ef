"""Changes of a method's figures between two runs, over the prompts that both have, and gates on
them.

A figure is a ratio R = Σ top / Σ bottom.  To first order its change is a sum over prompts, of
which prompt i adds (topᵢ − R·bottomᵢ) / mean(bottom) / n: its interval is Student's t of these.  A
bootstrap's interval cannot leave the range of the values seen, and of four prompts all fall by
chance in 6 % of comparisons; t holds its level from two on.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lanternbench.errors import UserError
from lanternbench.measure.figures import AGAINST_BASELINE, BASELINE, Figures
from lanternbench.measure.margins import Difference, paired_difference
from lanternbench.measure.statistics import ALPHA, Floats, student_t

# figures that ar has by definition
DEFINED = {*AGAINST_BASELINE, "accept_len", "step_compression", "fidelity_loss"}
Interval = tuple[float, float, float]  # value, lower and upper bound


class Change(NamedTuple):
    """``relative``: new / old − 1 with its interval, None where a figure is not above 0;
    ``difference``: new − old.
    """

    label: str
    figure: str
    prompts: int
    old: float
    new: float
    relative: Interval | None
    difference: Interval


class Unjudged(NamedTuple):
    """A figure of a method that has no change, and why; ``lost``: the old run has it, and the new
    one does not.
    """

    label: str
    figure: str
    why: str
    lost: bool


def changes(
    old: Figures, new: Figures, names: list[str], tests: int = 1
) -> tuple[list[Change], list[Unjudged]]:
    """Return changes of the figures ``names``, and those that have none; ``tests``: intervals to
    hold together with 95 %.
    """
    compared = []
    unjudged = []
    for label in dict.fromkeys([*old.labels, *new.labels]):
        for name in names:
            if label == BASELINE and name in DEFINED:
                continue
            before = _by_prompt(old, label, name)
            after = _by_prompt(new, label, name)
            shared = [prompt for prompt in before if prompt in after]
            if len(shared) > 1:
                sums = np.array([[*before[prompt], *after[prompt]] for prompt in shared])
                compared.append(_change(label, name, sums, tests))
            elif before or after:
                why = "one shared prompt" if shared else "no shared prompt"
                if not before:
                    why = _absence(old, label, "old")
                elif not after:
                    why = _absence(new, label, "new")
                unjudged.append(Unjudged(label, name, why, lost=bool(before) and not after))
    return compared, unjudged


def _absence(figures: Figures, label: str, run: str) -> str:
    """Return how a run lacks a figure of a method."""
    return f"not measured in the {run} run" if label in figures.labels else f"not in the {run} run"


def _change(label: str, name: str, sums: Floats, tests: int) -> Change:
    """Return a change by sums [prompts, 4]: top and bottom of the old run, and of the new one."""
    n = len(sums)
    tops = sums[:, ::2]
    bottoms = sums[:, 1::2]
    old, new = (tops.sum(0) / bottoms.sum(0)).tolist()
    moved = (tops - [old, new] * bottoms) / bottoms.mean(0)
    moved_old, moved_new = moved.T
    half = _half_width(moved_new - moved_old, tests)
    change = new - old
    difference = (change, change - half, change + half)
    relative = None
    if old > 0 and new > 0:
        ratio = new / old
        half = _half_width(moved_new / new - moved_old / old, tests)  # of the logarithm
        spread = math.exp(min(half, 700.0))  # more would overflow
        relative = (ratio - 1, ratio / spread - 1, ratio * spread - 1)
    return Change(label, name, n, old, new, relative, difference)


def _half_width(moved: Floats, tests: int) -> float:
    """Return half of Student's interval of the mean of what each prompt ``moved`` [prompts]."""
    n = len(moved)
    t = student_t(n - 1, ALPHA / tests)
    return t * math.sqrt(float(moved @ moved) / (n * (n - 1)))


def _by_prompt(figures: Figures, label: str, name: str) -> dict[str, tuple[float, float]]:
    """Return (top, bottom) of a figure of one label by prompt, over its seeds."""
    top, bottom = figures.of_prompts(name, figures.of(label))
    return {prompt: (top[i], bottom[i]) for prompt, i in figures.prompts.items() if bottom[i] > 0}


def mean_differences(old: Figures, new: Figures, figure: str, better: int) -> list[Difference]:
    """Return the paired differences, new − old, of the methods that share two prompts or more.

    ``better``: 1 if higher values are better, −1 if lower ones are.
    """
    shared = [prompt for prompt in new.prompts if prompt in old.prompts]
    of_old = [old.prompts[prompt] for prompt in shared]
    of_new = [new.prompts[prompt] for prompt in shared]
    found = []
    for label in new.labels:
        values = new.values(figure, label)[of_new]
        earlier = old.values(figure, label)[of_old]
        difference = paired_difference(figure, label, "the old run", values, earlier, better)
        if difference is not None:
            found.append(difference)
    return found


class Condition(NamedTuple):
    """A change that fails: ``speedup<-5%`` relative to the old figure's size,
    ``fidelity_loss>0.01`` absolute.
    """

    figure: str
    sign: str
    bound: float
    relative: bool

    def fails(self, change: Change) -> bool:
        """Return whether the estimate is beyond the bound, and no change outside its interval."""
        if change.figure != self.figure:
            return False
        bound = self.bound
        interval = change.difference
        if self.relative:
            bound *= abs(change.old)
            interval = change.relative or change.difference
        value = change.difference[0]
        _, lo, hi = interval
        if self.sign == "<":
            return value < bound and hi < 0
        return value > bound and lo > 0


def condition(text: str) -> Condition:
    """Return a condition that the command line writes.  Raises UserError."""
    parsed = re.fullmatch(r"\s*([\w:/.+-]+?)\s*([<>])\s*([-+]?\d*\.?\d+)\s*(%?)\s*", text)
    if not parsed:
        raise UserError(
            f'--fail-if {text} cannot be read: write for example --fail-if "speedup<-5%"'
        )
    figure, sign, bound, percent = parsed.groups()
    scale = 100 if percent else 1
    return Condition(figure, sign, float(bound) / scale, bool(percent))


class Verdict(NamedTuple):
    """``judged``: the changes that a condition speaks of, ``failed`` those that fail it,
    ``unjudged`` what has none.
    """

    judged: list[Change]
    failed: list[Change]
    unjudged: list[Unjudged]

    @property
    def lost(self) -> list[Unjudged]:
        """The figures that the old run has and the new one does not."""
        return [one for one in self.unjudged if one.lost]

    @property
    def passed(self) -> bool:
        """True if something was judged, and nothing failed or got lost."""
        return bool(self.judged) and not self.failed and not self.lost

    def sentence(self) -> str:
        """Return the last line of a gate: the verdict, its reason, what was judged and what was
        not.
        """
        if not self.judged:
            parts = ["gate: failed (nothing could be judged)", not_compared(self.unjudged)]
            return "; ".join(filter(None, parts))
        text = "gate: passed" if self.passed else "gate: failed"
        reasons = [f"{change.label} by its {change.figure}" for change in self.failed]
        reasons += [f"{label} is lost ({why})" for label, why in _by_label(self.lost)]
        if reasons:
            text += f" ({'; '.join(reasons)})"
        others = [one for one in self.unjudged if not one.lost]
        parts = [text, self._basis(), not_compared(others)]
        return "; ".join(filter(None, parts))

    def _basis(self) -> str:
        """Return which methods were judged, by which figures, over how many prompts."""
        labels = dict.fromkeys(change.label for change in self.judged)
        figures = dict.fromkeys(change.figure for change in self.judged)
        counts = [change.prompts for change in self.judged]
        prompts = f"{min(counts)} to {max(counts)}"
        if min(counts) == max(counts):
            prompts = str(min(counts))
        return f"judged {', '.join(labels)} by {', '.join(figures)} over {prompts} prompts"


def not_compared(unjudged: Sequence[Unjudged]) -> str:
    """Return what has no change, and why; "" for nothing."""
    methods = [f"{label} ({why})" for label, why in _by_label(unjudged)]
    return f"not judged: {', '.join(methods)}" if methods else ""


def _by_label(unjudged: Sequence[Unjudged]) -> list[tuple[str, str]]:
    """Return label and reason, each once, with the figures if the method itself is there."""
    figures: dict[tuple[str, str], list[str]] = {}
    for one in unjudged:
        figures.setdefault((one.label, one.why), []).append(one.figure)
    reasons = []
    for (label, why), names in figures.items():
        if not why.startswith("not in"):
            why = f"{', '.join(names)}: {why}"
        reasons.append((label, why))
    return reasons


def judge(old: Figures, new: Figures, conditions: Sequence[Condition]) -> Verdict:
    """Judge all conditions on all methods; their intervals hold together with 95 %."""
    names = [condition.figure for condition in conditions]
    distinct = list(dict.fromkeys(names))
    tests = sum(names.count(change.figure) for change in changes(old, new, distinct)[0])
    judged, unjudged = changes(old, new, distinct, max(tests, 1))
    failed = [change for change in judged if any(one.fails(change) for one in conditions)]
    return Verdict(judged, failed, unjudged)
