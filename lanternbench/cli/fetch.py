"""``fetch``: bring the published files of a target here."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console


def fetch(
    name: Annotated[str, typer.Argument(metavar="TARGET", help="A target of `lanternbench targets`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be fetched, and how much.")] = False,
) -> None:
    """Download a target's published files, resumably, and check them.

    Example: lanternbench fetch llamagen-xl-stage1 --dry-run
    """
    from lanternbench import fetch as fetching
    from lanternbench.models.catalogue import entry

    row, console = entry(name), Console(highlight=False, markup=False, emoji=False)
    if not row.files:
        console.print(f"{name} comes with the package: there is nothing to fetch")
        return
    if dry_run and fetching.offline():
        for role, source in row.files.items():
            console.print(f"{role}: {', '.join(source.files)} of {source.repo}")
        console.print(f"about {row.gigabytes:g} GB into {row.folder} (licence: {row.licence})")
        return
    files = fetching.plan(row)
    if dry_run:
        for file in files:
            console.print(f"{file.role}: {file.name} of {file.repo}, {file.size / 1e9:.2f} GB")
        console.print(f"{sum(f.size for f in files) / 1e9:.2f} GB into {row.folder} (licence: {row.licence})")
        return
    where = fetching.fetch(row, files, log=console.print)
    console.print(f"{where}  ·  next: lanternbench run --target {name} --method cool-sd --lambda 2")
