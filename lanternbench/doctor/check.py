"""A finding of ``doctor``."""

from typing import NamedTuple


class Check(NamedTuple):
    """The finding about one item."""

    item: str
    value: object
    ok: bool | None = None  # None if there is nothing to judge by
