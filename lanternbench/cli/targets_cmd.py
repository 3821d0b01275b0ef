"""``targets``: every target, and whether it is here."""

from __future__ import annotations

from lanternbench.cli import options
from lanternbench.cli.output import print_rows


def targets(as_json: options.AsRows = False) -> None:
    """List the targets, and which of them are here.

    Example: lanternbench targets
    """
    from lanternbench.models.entries import catalogue, missing

    rows = []
    for name, entry in catalogue().items():
        absent, size = missing(entry), f"{entry.gigabytes:g} GB" if entry.files else "in the package"
        state = "yes" if not absent else "no" if len(absent) == len(entry.files) else f"lacks {', '.join(absent)}"
        side = entry.shape.get("grid")
        row = {"target": name, "family": entry.family, "here": state, "size": size}
        row["grid"] = f"{side}×{side}" if side else "–"
        rows.append(row | {"licence": entry.licence, "about": entry.about})
    print_rows(rows, as_json, {c: c for c in ("target", "family", "here", "size", "grid", "licence", "about")})
