"""Text from files and networks, made safe to print."""


def one_line(text: str, limit: int = 200) -> str:
    """Return one line of printable characters, cut at ``limit``."""
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    line = " ".join(printable.split())
    if len(line) > limit:
        line = line[: limit - 1] + "…"
    return line
