"""``reproduce``: papers' tables, measured with the papers' own settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.options import Given, Takes
from lanternbench.cli.output import print_cells, print_json, print_notes, print_page, print_rows
from lanternbench.cli.run_cmd import execute
from lanternbench.settings import Sweep, TimedExecution

if TYPE_CHECKING:
    from lanternbench.reproduce.recipe import Plan

Rows = Annotated[
    list[str] | None,
    Option("--rows", help="A method of the table; give several by repeating the option."),
]


def reproduce(
    given: Annotated[Given, Takes(Sweep, defaults=False)],  # the defaults are the paper's
    execution: Annotated[TimedExecution, Takes()],
    table: Annotated[
        str | None,
        Argument(metavar="[PAPER[:TABLE]]", help="Such as cool-sd:1; none: list them."),
    ] = None,
    rows: Rows = None,
    dry_run: options.DryRun = False,
    as_json: options.AsRows = False,
) -> None:
    """Measure a paper's table with the paper's settings, and compare figure by figure.

    Options replace the paper's settings; --target tiny rehearses a table without its weights.

    Example: lanternbench reproduce cool-sd:1 --target tiny -n 2
    """
    from lanternbench.reproduce import recipe

    if table is None:
        print_recipes(as_json)
        return
    plans = [recipe.plan(group, given) for group in recipe.chosen(table, rows or ())]
    if dry_run:
        print_plans(plans, as_json)
        return
    results: list[dict[str, object]] = []
    for plan in plans:
        results.append(measured(plan, execution, as_json))
    if as_json:
        print_json({"runs": results})


def measured(plan: Plan, execution: TimedExecution, as_json: bool) -> dict[str, object]:
    """Run one plan, write its verdicts, and print them unless JSON is asked for."""
    from lanternbench.report.load import joined_rows, load_run
    from lanternbench.reproduce import verdict

    folder, _ = execute(plan.config, execution)
    found = verdict.verdicts(plan, joined_rows([load_run(folder)]))
    path = verdict.write(folder, plan, found)
    if not as_json:
        group = plan.group
        print(f"{group.paper}, table {group.table}: {group.title}")
        print_cells(verdict.TITLES, [one.cells for one in found], verdict.TITLES)
        notes = verdict.reasons(found)
        if group.missing:
            notes.append(f"Not implemented: {', '.join(group.missing)}.")
        print_notes([*notes, f"{path}  ·  next: lanternbench report"])
    return {"run": str(folder), "verdicts": [one._asdict() for one in found]}


def print_plans(plans: list[Plan], as_json: bool) -> None:
    """Print each run of a table: its methods and settings, what it needs, what it leaves out."""
    if as_json:
        records = [
            {
                "config": plan.config.model_dump(),
                "sources": plan.sources,
                "needs": plan.needs,
                "missing": plan.group.missing,
            }
            for plan in plans
        ]
        print_json({"runs": records})
        return
    for plan in plans:
        about = {
            "measures": plan.group.title,
            "methods": ", ".join(plan.published),
            "settings": ", ".join(plan.settings),
            "needs": plan.needs,
        }
        if plan.group.missing:
            about["not implemented"] = ", ".join(plan.group.missing)
        print_page(plan.config.name, about)


def number(source: str) -> str:
    """Return the arXiv number of a paper, "–" if it has none."""
    found = [word for word in source.split() if word.startswith("arXiv:")]
    return found[0].removeprefix("arXiv:") if found else "–"


def print_recipes(as_json: bool) -> None:
    """Print the tables that have a recipe."""
    from lanternbench.reproduce import recipe

    lines = []
    for paper, one in recipe.recipes().items():
        for group in recipe.groups(paper):
            known = sum(map(recipe.is_known, group.rows))
            lines.append(
                {
                    "table": f"{paper}:{recipe.table_words(group.table)[0]}",
                    "paper": number(one.source),
                    "measures": group.title,
                    "rows": f"{known} of {len(group.rows)}",
                }
            )
    print_rows(lines, as_json, "table measures rows")
