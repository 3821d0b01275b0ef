"""Notes for readers of results."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

Kind = Literal["unfit", "missing", "warning", "info"]  # the most important first


class Note(NamedTuple):
    """One note.

    ``kind``: "unfit": the run's figures must not be quoted or compared; "missing": a figure could
    not be computed; "warning": figures may be wrong or incomparable; "info": how to read them.
    ``metric``: the figure that it concerns, None for the whole run.
    """

    kind: Kind
    metric: str | None
    text: str

    def __str__(self) -> str:
        prefix = "" if self.metric is None else f"{self.metric}: "
        return prefix + self.text


def by_importance(notes: Iterable[Note]) -> list[Note]:
    """Return the notes without repetitions, the most important first."""
    kinds = get_args(Kind)
    return sorted(dict.fromkeys(notes), key=lambda note: kinds.index(note.kind))


def preliminary(notes: Iterable[Note]) -> str:
    """Return a warning with the reasons why a run must not be quoted; "" if there are none."""
    reasons: dict[str, None] = {}
    for note in notes:
        if note.kind == "unfit":
            reason = note.text.partition(": ")[0].rstrip(".")
            reasons[reason[:1].lower() + reason[1:]] = None
    return f"Preliminary, do not quote: {'; '.join(reasons)}." if reasons else ""
