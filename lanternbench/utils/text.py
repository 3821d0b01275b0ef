"""Texts for messages: those from files and networks made safe to print, and long lists cut."""

from collections.abc import Sequence


def one_line(text: str, limit: int = 200) -> str:
    """Return one line of printable characters, cut at ``limit``."""
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    line = " ".join(printable.split())
    if len(line) > limit:
        line = line[: limit - 1] + "…"
    return line


def first_of(items: Sequence[object], limit: int, separator: str = ", ") -> str:
    """Return the first items as a text, with the number of those left out."""
    shown = separator.join(map(str, items[:limit]))
    if len(items) > limit:
        shown += f"{separator}and {len(items) - limit} more"
    return shown


def listed(text: str) -> list[str]:
    """Return the names in a comma-separated text."""
    parts = (name.strip() for name in text.split(","))
    return [name for name in parts if name]
