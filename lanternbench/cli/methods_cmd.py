"""``methods``: every method, its choices and options."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from lanternbench.cli import options
from lanternbench.cli.output import print_notes, print_rows, stdout

WIDE = 120  # columns from which options have a place in the table


def methods(as_json: options.AsRows = False) -> None:
    """List every method: its four choices, options, paper, and whether it is lossless.

    Example: lanternbench methods --json
    """
    from lanternbench.methods.method import named
    from lanternbench.methods.trees import dynamic, static
    from lanternbench.registry import components

    rows: list[dict[str, Any]] = []
    for name, preset in components("preset").items():
        m = named(name)
        options = {f: v for f, v in sorted(m.read.items()) if v is not None}
        row = {"method": name, **m.choices._asdict(), "lossless": m.lossless}
        rows.append(row | {"options": options, "paper": preset.paper or "–"})
    names = ["method", "proposal", "tree", "acceptance", "residual", "lossless", "paper", "options"]
    room = as_json or stdout().width >= WIDE
    if not as_json:
        for row in rows:
            row["paper"] = row["paper"].rpartition(" ")[2]  # its number in arXiv
            row["options"].pop("variant")
    print_rows(rows, as_json, {n: n for n in names if room or n != "options"})
    notes = [] if room else ["options: in a wider terminal, or by --json"]
    if not as_json:
        notes.append(
            "sizes of trees are the target's unless set; those of papers by --shape: "
            f"{', '.join(static.named())} (static), {', '.join(dynamic.named())} (dynamic, adaptive)"
        )
    print_notes(notes, Console(stderr=True))
