"""The one exception for a user's mistake."""

import difflib
from collections.abc import Collection


class UserError(Exception):
    """One sentence that names the cause and the fix; the command line prints it and exits with
    code 2.
    """


def unknown(what: str, name: str, known: Collection[str]) -> UserError:
    """The error for a name that is not among the ``known``: ``what``, and the closest of them, or
    all.
    """
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean '{close[0]}'?" if close else f"choose one of {', '.join(known)}"
    return UserError(f"{what}: {hint}")
