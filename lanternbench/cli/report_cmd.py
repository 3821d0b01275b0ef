"""``report``: tables, plots and the HTML page of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lanternbench.cli import options
from lanternbench.cli.output import print_json, print_notes, print_table


def report(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Run ids or folders.")] = None,
    results: options.Results = Path("results"),
    out: Annotated[Path | None, typer.Option("--out", help="Where to write (default: RUN/report).")] = None,
    published: Annotated[bool, typer.Option("--published", help="Show the papers' numbers beside ours.")] = False,
    formats: Annotated[
        str | None, typer.Option("--format", help="Of md, csv, tex, html, json, comma-separated (default: all).")
    ] = None,
    budget: Annotated[float, typer.Option(min=0, help="Fidelity loss that the fastest relaxed method may have.")] = 0.1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows and the files written as JSON.")] = False,
) -> None:
    """Write tables (Markdown, CSV, LaTeX), Pareto plots (PNG, SVG, PDF) and one HTML page; the latest run by default.

    Example: lanternbench report --published
    """
    from lanternbench import experiment as store
    from lanternbench.notes import preliminary
    from lanternbench.report import report as write
    from lanternbench.report.load import differing, joined_rows, load_runs
    from lanternbench.utils.text import one_line

    folders = store.find(results, runs or [])
    files = write(folders, out, published, options.listed(formats) if formats is not None else None, budget)
    loaded = load_runs(folders)
    rows = joined_rows(loaded)
    if as_json:
        print_json({"rows": rows, "files": [str(f) for f in files]})
        return
    several = len(loaded) > 1
    first = [(f"{run.run_id}: " if several else "") + line for run in loaded if (line := preliminary(run.notes))]
    for line in filter(None, (differing(loaded), *first)):
        print(one_line(line, 4000))
    print_table(rows)
    print_notes(files, Console(stderr=True), bullet="")
