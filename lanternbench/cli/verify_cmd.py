"""``verify``: proofs that methods do what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.fields import MethodOptions, Takes, specs
from lanternbench.cli.output import print_json, stdout, table_of
from lanternbench.cli.progress import display

if TYPE_CHECKING:
    from lanternbench.lossless import Row

TITLES = ("method", "check", "", "measured", "limit", "detail")
MARKS = {True: Text("pass", "green"), False: Text("FAIL", "red"), None: "–"}


def verify(
    config: Annotated[Any, Takes("seed")],
    method_options: MethodOptions,
    names: Annotated[list[str] | None, Argument(metavar="[METHOD]...", help="Methods; all by default.")] = None,
    every: Annotated[bool, Option("--all", help="Every method.")] = False,
    as_json: options.AsRows = False,
) -> None:
    """Prove methods: exact enumeration on small tables, and statistics on the embedded model; exit 1 on failure.

    Example: lanternbench verify eagle-1 --tree chain --acceptance block
    """
    from lanternbench.lossless import verify_all
    from lanternbench.methods.method import Method, method
    from lanternbench.models.catalogue import load_target
    from lanternbench.registry import components

    names = list(components("preset")) if every or not names else list(names)
    chosen: list[str | Method] = [*names]
    if method_options:
        chosen = [method(spec.pop("method"), **spec) for spec in specs(names, method_options)]
    with display("verifying") as bars:

        def on_row(row: Row) -> None:
            bars.show(0, 0, f"verified {row.method}: {row.check}")

        def on_world(what: str, done: int, of: int) -> None:
            bars.show(done, of, what)

        rows = verify_all(chosen, load_target("tiny"), config.seed, on_row=on_row, on_world=on_world)
    if as_json:
        print_json(rows)
    else:
        stdout().print(checks_table(rows))
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)


def checks_table(rows: list[Row]) -> Table:
    """The checks for a terminal."""
    cells = (
        (r.method, r.check, MARKS[r.passed], *("–" if x is None else f"{x:.3g}" for x in (r.value, r.limit)), r.detail)
        for r in rows
    )
    return table_of(TITLES, cells, left=TITLES, padding=(0, 1, 0, 0), pad_edge=False)
