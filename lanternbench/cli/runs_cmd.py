"""``runs``: what lies in the results folder."""

from __future__ import annotations

from pathlib import Path

from lanternbench.cli import options
from lanternbench.cli.output import print_rows

COLUMNS = {name: name for name in ("name", "date", "target", "prompts", "methods", "finished", "disturbed")}


def runs(results: options.Results = Path("results"), as_json: options.AsRows = False) -> None:
    """List the runs in the results folder, newest first: are they finished, and was their clock disturbed?

    Example: lanternbench runs
    """
    from lanternbench.experiment.run_reader import listing

    rows = listing(results)
    if not as_json:
        for row in rows:
            row["date"] = row["date"][:10]
            row["finished"] = row["finished"] or f"{row['samples']} of {row['of']}"
            row["disturbed"] = "–" if row["disturbed"] is None else row["disturbed"]
    print_rows(rows, as_json, COLUMNS)
