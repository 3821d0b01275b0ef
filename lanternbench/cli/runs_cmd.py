"""``runs``: what lies in the results folder."""

from __future__ import annotations

from pathlib import Path

from lanternbench.cli import options
from lanternbench.cli.output import print_rows


def runs(results: options.Results = Path("results"), as_json: options.AsRows = False) -> None:
    """List the runs in the results folder, newest first: are they finished, and was their clock disturbed?

    Example: lanternbench runs
    """
    from lanternbench.experiment.listing import listing

    rows = listing(results)
    for row in () if as_json else rows:
        row["date"] = row["date"][:10]
        row["finished"] = row["finished"] or f"{row['samples']} of {row['of']}"
    print_rows(rows, as_json, "name date target prompts methods finished disturbed")
