"""Notes for the reader of figures."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

Kind = Literal["unfit", "missing", "warning", "info"]  # the most important first


class Note(NamedTuple):
    """One note: ``metric`` is the figure that it concerns, None for the whole run.

    kind: "unfit" for what makes a run's figures unfit to be quoted or compared, "missing" for a
    figure that could not be computed, "warning" for what makes figures wrong or incomparable,
    "info" for how to read them.
    """

    kind: Kind
    metric: str | None
    text: str

    def __str__(self) -> str:
        return self.text if self.metric is None else f"{self.metric}: {self.text}"


def by_importance(notes: Iterable[Note]) -> list[Note]:
    """The notes, each once, what makes figures unfit first."""
    return sorted(dict.fromkeys(notes), key=lambda note: get_args(Kind).index(note.kind))


def preliminary(notes: Iterable[Note]) -> str:
    """The first line of a run whose figures are unfit to be quoted, with the reasons; "" for any
    other.
    """
    reasons = [note.text.partition(": ")[0].rstrip(".") for note in notes if note.kind == "unfit"]
    each = "; ".join(reason[:1].lower() + reason[1:] for reason in dict.fromkeys(reasons))
    return f"Preliminary, do not quote: {each}." if each else ""
