"""Notes for readers of results."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

Kind = Literal["unfit", "missing", "warning", "info"]  # the most important first
Fact = Literal[
    "another environment",
    "different runs",
    "imported",
    "noisy timing",
    "outside the support",
    "random weights",
    "simulated acceptance",
    "slow baseline",
    "unfinished",
]


class Note(NamedTuple):
    """One note.

    ``kind``: "unfit": the run's figures must not be quoted or compared; "missing": a figure could
    not be computed; "warning": figures may be wrong or incomparable; "info": how to read them.
    ``metric``: the figure that it concerns, None for the whole run.  ``fact``: set for a warning
    that stands wherever the figures do, in every format; ``label``: the method that it concerns,
    None for all; ``run``: named if there are several.
    """

    kind: Kind
    metric: str | None
    text: str
    fact: Fact | None = None
    label: str | None = None
    run: str | None = None

    def __str__(self) -> str:
        prefixes = [f"{name}: " for name in (self.run, self.metric) if name is not None]
        return "".join(prefixes) + self.text

    @property
    def short(self) -> str:
        """The sentence without its explanation, which follows the last colon."""
        sentence, _, explanation = self.text.rpartition(": ")
        return f"{(sentence or explanation).rstrip('.')}."


def by_importance(notes: Iterable[Note]) -> list[Note]:
    """Return the notes without repetitions, the most important first."""
    kinds = get_args(Kind)
    return sorted(dict.fromkeys(notes), key=lambda note: kinds.index(note.kind))


def headlines(notes: Iterable[Note]) -> list[str]:
    """Return the lines to read before any figure: why a run must not be quoted, in one line, then
    the other facts.
    """
    reasons: dict[str, None] = {}
    facts: dict[str, None] = {}
    for note in notes:
        if note.kind == "unfit":
            reason = note.short.removesuffix(".")
            reasons[reason[:1].lower() + reason[1:]] = None
        elif note.fact is not None:
            facts[note.text] = None
    lines = [f"Preliminary, do not quote: {'; '.join(reasons)}."] if reasons else []
    return [*lines, *facts]
