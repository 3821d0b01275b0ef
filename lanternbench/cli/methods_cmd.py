"""``methods``: every method, its choices and options."""

from __future__ import annotations

from typing import Any

from lanternbench.cli import options
from lanternbench.cli.output import print_rows


def methods(as_json: options.AsRows = False) -> None:
    """List every method: its four choices, whether it is lossless, and its paper.

    Example: lanternbench methods --json
    """
    from lanternbench.methods.method import named
    from lanternbench.registry import components

    rows: list[dict[str, Any]] = []
    for name, preset in components("preset").items():
        lossless = named(name).lossless if preset.lossless is None else preset.lossless
        row = {"method": name, **preset.choices._asdict(), "lossless": lossless, "paper": preset.paper or "–"}
        if as_json:
            row["options"] = {f: v for f, v in sorted(named(name).read.items()) if v is not None}
        else:
            row["paper"] = row["paper"].rpartition(" ")[2]  # its number in arXiv
        rows.append(row)
    names = ("method", "proposal", "tree", "acceptance", "residual", "lossless", "paper")
    print_rows(rows, as_json, {n: n for n in names})
