"""A finding of ``doctor``."""

from typing import NamedTuple


class Check(NamedTuple):
    """What was found about one item."""

    item: str
    value: object
    ok: bool | None = None  # None if there is nothing to judge by
