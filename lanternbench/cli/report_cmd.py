"""``report``: tables, plots and the HTML page of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.output import print_json, print_notes, print_table


def report(
    runs: Annotated[list[str] | None, Argument(metavar="[RUN]...", help="Run ids or folders.")] = None,
    results: options.Results = Path("results"),
    out: Annotated[Path | None, Option(help="Where to write (default: RUN/report).")] = None,
    published: Annotated[bool, Option("--published", help="Show the papers' numbers beside ours.")] = False,
    formats: Annotated[
        str | None, Option("--format", help="Of md, csv, tex, html, json, comma-separated (default: all).")
    ] = None,
    methods: Annotated[
        str | None, Option(help="Show these alone, in this order: labels or names, comma-separated.")
    ] = None,
    columns: Annotated[
        str | None, Option(help="Columns of tables by key, comma-separated: speedup,accept_len,fidelity_loss.")
    ] = None,
    names: Annotated[
        Path | None, Option(metavar="FILE", help="YAML file of names in a paper, such as `eagle-1: EAGLE`.")
    ] = None,
    grid: Annotated[bool, Option("--grid", help="Write grid.png and grid.pdf: images, prompts × methods.")] = False,
    grid_prompts: Annotated[int, Option(min=1, help="How many prompts --grid shows.")] = 4,
    budget: Annotated[float, Option(min=0, help="Fidelity loss that the fastest relaxed method may have.")] = 0.1,
    as_json: Annotated[bool, Option("--json", help="Print the rows and the files written as JSON.")] = False,
) -> None:
    """Write tables, pictures and one HTML page; the latest run by default.

    Example: lanternbench report --published
    """
    from lanternbench import experiment as store
    from lanternbench.notes import preliminary
    from lanternbench.report.load import differing, joined_rows, load_runs
    from lanternbench.report.view import View, read_names
    from lanternbench.report.write import report as write
    from lanternbench.utils.text import one_line

    folders = store.find(results, runs or [])
    view = View(tuple(options.listed(methods or "")), tuple(options.listed(columns or "")),
                read_names(names) if names else {})  # fmt: skip
    form = options.listed(formats) if formats is not None else None
    files = write(folders, out, published, form, budget, view, grid_prompts if grid else 0)
    loaded = view.of(load_runs(folders))
    rows = view.named(joined_rows(loaded))
    if as_json:
        print_json({"rows": rows, "files": [str(f) for f in files]})
        return
    several = len(loaded) > 1
    first = [(f"{run.run_id}: " if several else "") + line for run in loaded if (line := preliminary(run.notes))]
    for line in filter(None, (differing(loaded), *first)):
        print(one_line(line, 4000))
    print_table(rows, view.shown(rows, "terminal") if view.columns else None)
    page, kinds = [file for file in files if file.name == "report.html"], dict[str, list[str]]()
    for file in files:
        kinds.setdefault(file.stem, []).append(file.suffix)
    named = ", ".join(f"{stem}{' '.join(endings)}" for stem, endings in kinds.items() if stem != "report")
    print_notes([*([f"{files[0].parent}: {named}"] if named else []), *page], bullet="")
