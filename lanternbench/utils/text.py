"""Makes text from files and networks safe to print."""

import re


def one_line(text: str, limit: int = 200) -> str:
    """One line of printable text, cut at `limit` signs."""
    line = re.sub(
        r"\s+", " ", "".join(sign if sign.isprintable() else " " for sign in text)
    ).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shortened(text: str, limit: int) -> str:
    """One line of at most ``limit`` characters, cut between words where one ends in its second
    half.
    """
    line = one_line(text, 10**6)
    if len(line) <= limit:
        return line
    head = line[:limit].rpartition(" ")[0].rstrip(" ·,:")
    return f"{head if 2 * len(head) >= limit else line[: limit - 1]}…"


def duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return (
                f"{seconds / size:.0f} {unit}"
                if seconds >= 10 * size
                else f"{seconds / size:.1f} {unit}"
            )
    return f"{seconds:.0f} s"


def pace(per_second: float) -> str:
    """A rate in the unit in which it is one or more."""
    for unit, size in (("second", 1), ("minute", 60)):
        if per_second * size >= 1:
            return f"{per_second * size:.3g} a {unit}"
    return f"{per_second * 3600:.3g} an hour"
