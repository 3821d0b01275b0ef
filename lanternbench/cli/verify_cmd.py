"""``verify``: proofs that methods do what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from lanternbench.cli import options
from lanternbench.cli.method_options import pairs, specs
from lanternbench.cli.output import number_table, print_json, stdout
from lanternbench.cli.progress import display

if TYPE_CHECKING:
    from lanternbench.lossless import Row

TITLES = ("method", "check", "", "measured", "limit", "detail")


def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[METHOD]...", help="Methods; all by default.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every method.")] = False,
    option: options.MethodOption = None,
    seed: options.Seed = 0,
    as_json: options.AsRows = False,
    method_options: dict[str, Any] | None = None,
) -> None:
    """Prove methods: exact enumeration on small tables, and statistics on the embedded model; exit 1 on failure.

    Example: lanternbench verify eagle-1 --tree chain --acceptance block
    """
    from lanternbench.lossless import verify_all
    from lanternbench.methods.method import Method, method
    from lanternbench.models.catalogue import load_target
    from lanternbench.registry import components

    names = list(components("preset")) if every or not names else list(names)
    given = pairs(option or []) | (method_options or {})
    chosen: list[str | Method] = [*names]
    if given:
        chosen = [method(spec.pop("method"), **spec) for spec in specs(names, given)]
    with display("verifying") as shown:

        def on_row(row: Row) -> None:
            shown.show(0, 0, f"verified {row.method}: {row.check}")

        def on_world(what: str, done: int, of: int) -> None:
            shown.show(done, of, what)

        rows = verify_all(chosen, load_target("tiny"), seed, on_row=on_row, on_world=on_world)
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        stdout().print(checks_table(rows))
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)


def checks_table(rows: list[Row]) -> Table:
    """The checks for a terminal."""
    shown = number_table(TITLES, words=TITLES, padding=(0, 1, 0, 0), pad_edge=False)
    for row in rows:
        mark = {True: "[green]pass[/]", False: "[red]FAIL[/]", None: "–"}[row.passed]
        numbers = ("–" if x is None else f"{x:.3g}" for x in (row.value, row.limit))
        shown.add_row(row.method, row.check, mark, *numbers, row.detail)
    return shown
