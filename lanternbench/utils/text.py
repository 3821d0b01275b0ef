"""Text from elsewhere, made safe to print."""

from __future__ import annotations

import re


def one_line(text: str, limit: int = 200) -> str:
    """One line of printable text, cut at `limit` signs."""
    line = re.sub(r"\s+", " ", "".join(sign if sign.isprintable() else " " for sign in text)).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"
