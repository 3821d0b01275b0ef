"""What results have to say beside their figures, as data."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Note(NamedTuple):
    """One sentence for the reader; ``metric`` is the column that it is about, None when it is about the whole run."""

    kind: Literal["missing", "warning", "info"]
    metric: str | None
    text: str
