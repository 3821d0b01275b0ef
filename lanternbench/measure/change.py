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
from lanternbench.measure.statistics import ALPHA, Floats, student_t

# figures that ar has by definition
DEFINED = {*AGAINST_BASELINE, "accept_len", "step_compression", "fidelity_loss"}
ALIASES = {"tau": "accept_len", "τ": "accept_len"}
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
    """Changes of the figures ``names``, and those that have none; ``tests``: intervals to hold
    together with 95 %.
    """
    compared, unjudged = [], []
    for label in dict.fromkeys([*old.labels, *new.labels]):
        for name in names:
            if label == BASELINE and name in DEFINED:
                continue
            before, after = _by_prompt(old, label, name), _by_prompt(new, label, name)
            shared = [prompt for prompt in before if prompt in after]
            if len(shared) > 1:
                sums = np.array([[*before[p], *after[p]] for p in shared])
                compared.append(Change(label, name, len(shared), *_change(sums, tests)))
            elif before or after:
                why = "one shared prompt" if shared else "no shared prompt"
                for run, figures, values in (("new", new, after), ("old", old, before)):
                    if not values:
                        why = (
                            f"not {'measured ' if label in figures.labels else ''}in the {run} run"
                        )
                unjudged.append(Unjudged(label, name, why, bool(before and not after)))
    return compared, unjudged


def _change(sums: Floats, tests: int) -> tuple[float, float, Interval | None, Interval]:
    """(old, new, relative, difference) from sums [prompts, 4]: top and bottom of the old run, and
    of the new one.
    """
    n, tops, bottoms = len(sums), sums[:, ::2], sums[:, 1::2]
    old, new = map(float, tops.sum(0) / bottoms.sum(0))
    moved_old, moved_new = ((tops - [old, new] * bottoms) / bottoms.mean(0)).T
    t = student_t(n - 1, ALPHA / tests)

    def half_width(moved: Floats) -> float:
        return t * math.sqrt(float(moved @ moved) / (n * (n - 1)))

    half = half_width(moved_new - moved_old)
    difference = (new - old, new - old - half, new - old + half)
    if old <= 0 or new <= 0:
        return old, new, None, difference
    ratio, spread = new / old, math.exp(min(half_width(moved_new / new - moved_old / old), 700.0))
    return old, new, (ratio - 1, ratio / spread - 1, ratio * spread - 1), difference


def _by_prompt(figures: Figures, label: str, name: str) -> dict[str, tuple[float, float]]:
    """(top, bottom) of a figure of one label by prompt id, over its seeds."""
    top, bottom = figures.of_prompts(name, figures.of(label))
    return {prompt: (top[i], bottom[i]) for prompt, i in figures.prompts.items() if bottom[i] > 0}


class Condition(NamedTuple):
    """A change that fails: ``speedup<-5%`` relative to the old figure's size,
    ``fidelity_loss>0.01`` absolute.
    """

    figure: str
    sign: str
    bound: float
    relative: bool

    def fails(self, change: Change) -> bool:
        """Is the estimate beyond the bound, and no change outside its interval?"""
        if change.figure != self.figure:
            return False
        bound = self.bound * abs(change.old) if self.relative else self.bound
        value = change.difference[0]
        _, lo, hi = (self.relative and change.relative) or change.difference
        return (value < bound and hi < 0) if self.sign == "<" else (value > bound and lo > 0)


def condition(text: str) -> Condition:
    """A condition as the command line writes it.  Raises UserError."""
    parsed = re.fullmatch(r"\s*([\w:/.+-]+?)\s*([<>])\s*([-+]?\d*\.?\d+)\s*(%?)\s*", text)
    if not parsed:
        raise UserError(
            f'--fail-if {text} cannot be read: write for example --fail-if "speedup<-5%"'
        )
    figure, sign, bound, percent = parsed.groups()
    return Condition(
        ALIASES.get(figure, figure), sign, float(bound) / (100 if percent else 1), bool(percent)
    )


class Verdict(NamedTuple):
    """``judged``: the changes that a condition speaks of, ``failed`` those that fail it,
    ``unjudged`` what has none.
    """

    judged: list[Change]
    failed: list[Change]
    unjudged: list[Unjudged]

    @property
    def lost(self) -> list[Unjudged]:
        """What the old run has and the new one does not."""
        return [one for one in self.unjudged if one.lost]

    @property
    def passed(self) -> bool:
        """Was anything judged, and did nothing fail or get lost?"""
        return bool(self.judged) and not self.failed and not self.lost

    def sentence(self) -> str:
        """The last line of a gate: the verdict, its reason, what was judged and what was not."""
        if not self.judged:
            return "; ".join(
                filter(
                    None, ["gate: failed (nothing could be judged)", not_compared(self.unjudged)]
                )
            )
        reasons = [f"{change.label} by its {change.figure}" for change in self.failed]
        reasons += _by_label(self.lost, "{} is lost ({})")
        text = f"gate: {'passed' if self.passed else 'failed'}" + (
            f" ({'; '.join(reasons)})" if reasons else ""
        )
        labels = dict.fromkeys(change.label for change in self.judged)
        figures = dict.fromkeys(change.figure for change in self.judged)
        prompts = sorted({change.prompts for change in self.judged})
        span = " to ".join(map(str, dict.fromkeys([prompts[0], prompts[-1]])))
        text += f"; judged {', '.join(labels)} by {', '.join(figures)} over {span} prompts"
        return "; ".join(
            filter(None, [text, not_compared([one for one in self.unjudged if not one.lost])])
        )


def not_compared(unjudged: Sequence[Unjudged]) -> str:
    """What has no change, and why; "" for nothing."""
    each = ", ".join(_by_label(unjudged, "{} ({})"))
    return f"not judged: {each}" if each else ""


def _by_label(unjudged: Sequence[Unjudged], form: str) -> list[str]:
    """Label and reason, each once, with the figures where the method itself is there; ``form``:
    with two places.
    """
    figures: dict[tuple[str, str], list[str]] = {}
    for one in unjudged:
        figures.setdefault((one.label, one.why), []).append(one.figure)
    return [
        form.format(label, why if why.startswith("not in") else f"{', '.join(names)}: {why}")
        for (label, why), names in figures.items()
    ]


def judge(old: Figures, new: Figures, conditions: Sequence[Condition]) -> Verdict:
    """All conditions on all methods; their intervals hold together with 95 %."""
    names = list(dict.fromkeys(condition.figure for condition in conditions))
    tests = sum(
        change.figure == condition.figure
        for change in changes(old, new, names)[0]
        for condition in conditions
    )
    judged, unjudged = changes(old, new, names, max(tests, 1))
    failed = [
        change for change in judged if any(condition.fails(change) for condition in conditions)
    ]
    return Verdict(judged, failed, unjudged)
