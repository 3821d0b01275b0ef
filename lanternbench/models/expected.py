"""Compare a drafter's acceptance with published figures: a drafter of another target would fail silently."""

from __future__ import annotations

from math import sqrt

from lanternbench.models.entries import Entry, Expected
from lanternbench.notes import Note

Z = 2.576  # of a two-sided 99 % interval


def upper_limit(accepted: int, steps: int) -> float:
    """The upper end of Wilson's 99 % interval of a share (Wilson 1927, eq. 8)."""
    share, z = accepted / steps, Z * Z / steps
    return (share + z / 2 + sqrt(z * (share * (1 - share) + z / 4))) / (1 + z)


def expectation(row: Entry, drafter: str, tree: str, temperature: float) -> Expected | None:
    """The published figure of the row's drafter for this kind of tree and temperature; None if there is none."""
    wanted = (drafter, tree, temperature)
    return next((e for e in row.expects if (e.drafter, e.tree, e.temperature) == wanted), None)


def shortfall(row: Entry, drafter: str, tree: str, temperature: float, accepted: int, steps: int) -> Note | None:
    """A warning where first tokens were ``accepted`` in fewer of ``steps`` than chance explains; else None.

    A relaxed acceptance only accepts more, so what is published of an exact one binds it too.
    """
    known = expectation(row, drafter, tree, temperature)
    if known is None or not steps or upper_limit(accepted, steps) >= known.first_token_acceptance:
        return None
    return Note(
        "warning",
        "first_token_acceptance",
        f"the first drafted token was accepted in {accepted} of {steps} steps ({accepted / steps:.1%}), where the "
        f"published {drafter} drafter of {row.name} has at least {known.first_token_acceptance:.0%} ({known.source}): "
        "it may have been trained for another target, or be read otherwise than it was trained",
    )
