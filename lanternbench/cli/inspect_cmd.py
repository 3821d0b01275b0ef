"""Commands that look: ``methods``, ``targets``, ``prompts``, ``doctor``, ``verify``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lanternbench.cli.output import print_json, print_notes, stdout
from lanternbench.cli.progress import display

WIDE = 120  # columns from which options have a place in the table
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print(rows: list[dict[str, Any]], as_json: bool, columns: dict[str, str]) -> None:
    if as_json:
        print_json(rows)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i, title in enumerate(columns.values()):
        table.add_column(title, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in columns))
    stdout().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return str(value).replace("[", "\\[")


def methods(as_json: AsJson = False) -> None:
    """List every method: its four choices, options, paper, and whether it is lossless.

    Example: lanternbench methods --json
    """
    from lanternbench.methods.method import named
    from lanternbench.registry import components

    rows: list[dict[str, Any]] = []
    for name, preset in components("preset").items():
        m = named(name)
        options = {f: v for f, v in sorted(m.read.items()) if v is not None}
        row = {"method": name, **m.choices._asdict(), "lossless": m.lossless}
        rows.append(row | {"options": options, "paper": preset.paper or "–"})
    names = ["method", "proposal", "tree", "acceptance", "residual", "lossless", "paper", "options"]
    room = as_json or stdout().width >= WIDE
    if not as_json:
        for row in rows:
            row["paper"] = row["paper"].rpartition(" ")[2]  # its number in arXiv
            row["options"].pop("variant")
    _print(rows, as_json, {n: n for n in names if room or n != "options"})
    if not room:
        Console(stderr=True).print("options: in a wider terminal, or by --json", style="dim")


def targets(as_json: AsJson = False) -> None:
    """List the targets, and which of them are here.

    Example: lanternbench targets
    """
    from lanternbench.models.catalogue import catalogue, missing

    rows = []
    for name, entry in catalogue().items():
        absent, size = missing(entry), f"{entry.gigabytes:g} GB" if entry.files else "in the package"
        state = "yes" if not absent else "no" if len(absent) == len(entry.files) else f"lacks {', '.join(absent)}"
        rows.append({"target": name, "here": state, "size": size, "licence": entry.licence, "about": entry.about})
    _print(rows, as_json, {c: c for c in ("target", "here", "size", "licence", "about")})


def prompts(
    spec: Annotated[str, typer.Argument(help="demo, coco2017:FILE, parti:FILE, or a text file.")] = "demo",
    num_prompts: Annotated[int, typer.Option("--num-prompts", "-n", help="How many; 0 for all.")] = 8,
    seed: int = 0,
    caption: str = "first",
    as_json: AsJson = False,
) -> None:
    """Preview and validate a prompt source; prints the hash that identifies the selection.

    Example: lanternbench prompts demo -n 4
    """
    from typing import cast

    from lanternbench import prompts as sets

    chosen = sets.load(spec, num_prompts or None, seed, cast(Any, caption))
    rows = [{"id": p.id, "category": p.category or "", "prompt": p.text} for p in chosen]
    if as_json:
        print_json(chosen.record() | {"prompts": rows})
        return
    _print(rows, False, {"id": "id", "category": "category", "prompt": "prompt"})
    print_notes(chosen.notes, Console(stderr=True))
    print(f"{len(chosen)} prompts, selection {chosen.hash[:16]}")


def doctor(as_json: AsJson = False) -> None:
    """Show this machine, what is missing, and how to get it.

    Example: lanternbench doctor
    """
    from lanternbench.experiment.environment import environment
    from lanternbench.metrics import names, scorers_for
    from lanternbench.models.catalogue import catalogue, missing

    rows = [{"item": k, "value": v} for k, v in environment().items()]
    for name, entry in catalogue().items():
        absent = f"missing; `lanternbench fetch {name}` gets it ({entry.gigabytes:g} GB)"
        rows.append({"item": f"target {name}", "value": absent if missing(entry) else "here"})
    for name in names():
        (scorer,) = scorers_for([name], "full")
        rows.append({"item": f"metric {name}", "value": why.text if (why := scorer.available()) else "here"})
    _print(rows, as_json, {"item": "item", "value": "value"})


def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[METHOD]...", help="Methods; all by default.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every method.")] = False,
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """Prove methods: exact enumeration on small tables, and statistics on the embedded model; exit 1 on failure.

    Example: lanternbench verify cool-sd
    """
    from lanternbench.lossless import Row, table, verify_all
    from lanternbench.methods.method import named
    from lanternbench.models.catalogue import load_target
    from lanternbench.registry import components

    chosen = list(components("preset")) if every or not names else list(names)
    for name in chosen:
        named(name)
    with display("verifying") as shown:

        def on_row(row: Row) -> None:
            shown.show(0, 0, f"verified {row.method}: {row.check}")

        rows = verify_all([*chosen], load_target("tiny"), seed, on_row=on_row)
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        Console().print(table(rows))
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)
