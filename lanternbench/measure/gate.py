"""A gate between two runs: conditions on changes, and a verdict that names what it judged and what it could not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from lanternbench.errors import UserError
from lanternbench.measure.change import Change, Unjudged, changes
from lanternbench.measure.figures import Figures

ALIASES = {"tau": "accept_len", "τ": "accept_len"}


class Condition(NamedTuple):
    """A change that fails: ``speedup<-5%`` relative to the old figure's size, ``fidelity_loss>0.01`` absolute."""

    text: str
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


class Verdict(NamedTuple):
    """``judged``: the changes that a condition speaks of, ``failed`` those that fail it, ``unjudged`` what has none."""

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
        reasons = [f"{change.label} by its {change.figure}" for change in self.failed]
        reasons += [f"{label} is lost ({why})" for label, why in _by_label(self.lost)]
        if not self.judged:
            reasons = ["nothing could be judged"]
        counts = [change.prompts for change in self.judged]
        said = [f"gate: {'passed' if self.passed else 'failed'}" + (f" ({'; '.join(reasons)})" if reasons else "")]
        if counts:
            names = ", ".join(dict.fromkeys(change.label for change in self.judged))
            span = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
            said.append(f"judged {names} by {', '.join(dict.fromkeys(c.figure for c in self.judged))}")
            said[-1] += f" over {span} prompts"
        said.append(not_compared([one for one in self.unjudged if not (self.judged and one.lost)]))
        return "; ".join(filter(None, said))


def not_compared(unjudged: Sequence[Unjudged]) -> str:
    """What has no change, and why; "" for nothing."""
    each = ", ".join(f"{label} ({why})" for label, why in _by_label(unjudged))
    return f"not judged: {each}" if each else ""


def _by_label(unjudged: Sequence[Unjudged]) -> list[tuple[str, str]]:
    """(label, reason), each once, with the figures where the method itself is there."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in unjudged:
        found.setdefault((one.label, one.why), []).append(one.figure)
    return [
        (label, why if why.startswith("not in") else f"{', '.join(figures)}: {why}")
        for (label, why), figures in found.items()
    ]


def judge(old: Figures, new: Figures, conditions: Sequence[Condition]) -> Verdict:
    """All conditions on all methods; their intervals hold together with 95 %."""
    names = list(dict.fromkeys(condition.figure for condition in conditions))
    tests = sum(change.figure == condition.figure for change in changes(old, new, names)[0] for condition in conditions)
    judged, unjudged = changes(old, new, names, max(tests, 1))
    failed = [change for change in judged if any(condition.fails(change) for condition in conditions)]
    return Verdict(judged, failed, unjudged)


def condition(text: str) -> Condition:
    """A condition as the command line writes it.  Raises UserError."""
    parsed = re.fullmatch(r"\s*([\w:/.+-]+?)\s*([<>])\s*([-+]?\d*\.?\d+)\s*(%?)\s*", text)
    if not parsed:
        raise UserError(f'--fail-if {text} cannot be read: write for example --fail-if "speedup<-5%"')
    figure, sign, bound, percent = parsed.groups()
    name = ALIASES.get(figure, figure)
    return Condition(text.strip(), name, sign, float(bound) / (100 if percent else 1), bool(percent))
