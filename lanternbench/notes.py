"""Notes for the reader of figures."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["missing", "warning", "info"]


class Note(NamedTuple):
    """One note: ``metric`` is the figure that it concerns, None for the whole run.

    kind: "missing" for a figure that could not be computed, "warning" for what makes figures wrong or incomparable,
    "info" for how to read them.
    """

    kind: Kind
    metric: str | None
    text: str

    def __str__(self) -> str:
        return self.text if self.metric is None else f"{self.metric}: {self.text}"
